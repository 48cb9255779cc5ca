"""The certificates of ``--ssl_config_file``, a text ``SSLConfig`` as TensorFlow Serving's.

Its fields hold PEM contents, not paths. They are tried before a port is opened, because gRPC
reports bad ones only as a failure to listen. Afterwards the file is read again when it
changes, for connections made from then on.
(TensorFlow Serving: model_servers/server.cc, BuildServerCredentialsFromSSLConfigFile.)
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from tfs.core.call import TlsOptions
from tfs.core.errors import FailedPrecondition, InvalidArgument, ServingError
from tfs.frontends.tls_context import server_context
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import ssl_config_pb2

log = logging.getLogger(__name__)


class TlsFile:
    """The certificates of a file, read again when it changes. Thread-safe.

    If the file cannot be used any more, that is logged once, and the last certificates
    stay until it can. A change of ``client_verify`` is treated in the same way, because it takes a
    restart.

    Raises:
        ServingError: On creation, as :func:`read_tls_file`.

    """

    def __init__(self, path: str, flag: str = "--ssl_config_file") -> None:
        self._path = path
        self._flag = flag
        # Guards _mark, _tls and _problem; leaf lock.
        self._lock = threading.Lock()
        self._mark = _mark_of(path)
        self._tls = read_tls_file(path, flag)
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why the file is not followed any more, in a sentence; "" if it is."""
        self.current()
        with self._lock:
            return self._problem

    def current(self) -> TlsOptions:
        """Returns the certificates; looks whether the file has changed."""
        mark = _mark_of(self._path)
        with self._lock:
            if mark != self._mark:
                # Noted before reading, so that a later change is seen.
                self._mark = mark
                self._read_again()
            return self._tls

    def _read_again(self) -> None:
        try:
            tls = read_tls_file(self._path, self._flag)
            if tls.verify_client != self._tls.verify_client:
                raise InvalidArgument(
                    f"{self._flag}={self._path}: client_verify cannot change "
                    "while the server runs; restart it"
                )
        except ServingError as error:
            log.error("event=certificates_kept error=%r", error.message)
            self._problem = f"the certificates from before stay in use: {error.message}"
            return
        self._problem = ""
        if tls != self._tls:
            self._tls = tls
            log.info("event=certificates_renewed path=%s", self._path)


def _mark_of(path: str) -> tuple[int, int, int] | None:
    """Returns a value that changes with the file's contents; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_tls_file(path: str, flag: str = "--ssl_config_file") -> TlsOptions:
    """Reads the certificates of a flag's file and tries them out.

    Raises:
        FailedPrecondition: The file cannot be read.
        InvalidArgument: It is no SSLConfig, or its certificates cannot be used; says
            which and why, but never shows the key.

    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(f"{flag}={path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{flag}={path}: not text") from error
    config = ssl_config_pb2.SSLConfig()
    try:
        read_text(text, config)
    except ParseError as error:
        # The parser quotes the line that it cannot read, which may be a part of the
        # key.
        where = f"line {error.GetLine()}" if error.GetLine() else "somewhere"
        raise InvalidArgument(
            f"Invalid protobuf file: '{path}': no SSLConfig, at {where}"
        ) from None
    tls = TlsOptions(
        server_key=config.server_key.encode(),
        server_cert=config.server_cert.encode(),
        client_ca=config.custom_ca.encode(),
        verify_client=config.client_verify,
    )
    try:
        server_context(tls)
    except InvalidArgument as error:
        raise InvalidArgument(f"{flag}={path}: {error.message}") from error
    return tls
