"""The ``SSLContext`` of a listener, made anew when its certificates are renewed."""

from __future__ import annotations

import logging
import ssl

from tfs.core.call import TlsOptions, TlsSource
from tfs.core.errors import InvalidArgument
from tfs.frontends.tls.tls_context import H2, server_context

log = logging.getLogger(__name__)


class TlsContexts:
    """Makes contexts for one listener's connections. For one thread at a time.

    Attributes:
        protocol: What its connections speak.

    Raises:
        InvalidArgument: On creation: the certificates cannot be used.

    """

    def __init__(self, source: TlsSource, protocol: str = H2) -> None:
        self.protocol = protocol
        self._source = source
        self._tls: TlsOptions = source.current()
        self._context = server_context(self._tls, protocol)

    def current(self) -> ssl.SSLContext:
        """Returns the context for a new connection; may read files.

        Certificates that cannot be used are logged once, and the last ones stay.
        """
        tls = self._source.current()
        if tls is not self._tls:
            self._tls = tls
            try:
                self._context = server_context(tls, self.protocol)
            except InvalidArgument as error:
                log.error("event=certificates_refused error=%r", error.message)
        return self._context
