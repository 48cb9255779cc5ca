"""Who asks a server over HTTP in end-to-end tests."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from tests.certificates import Certificates
from tfs.testing.patience import PATIENCE_S


class Rest:
    """Asks one server.

    Attributes:
        base: The URL of its root.

    """

    def __init__(self, port: int, certificates: Certificates | None = None) -> None:
        self.base = f"http{'s' if certificates else ''}://127.0.0.1:{port}"
        self._context: ssl.SSLContext | None = None
        if certificates is not None:
            authority = certificates.authority.decode()
            self._context = ssl.create_default_context(cadata=authority)

    def ask(
        self, path: str, body: object = None, verb: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Returns the status, the document, and the headers; POST if there is a body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, None if body is None else data, headers, method=verb
        )
        try:
            with urllib.request.urlopen(
                request, timeout=PATIENCE_S, context=self._context
            ) as reply:
                text, status, given = reply.read(), reply.status, dict(reply.headers)
        except urllib.error.HTTPError as error:
            text, status, given = error.read(), error.code, dict(error.headers)
        if given["Content-Type"] == "application/json":
            return status, json.loads(text), given
        if given["Content-Type"].startswith("text/"):
            return status, text.decode(), given
        return status, text, given
