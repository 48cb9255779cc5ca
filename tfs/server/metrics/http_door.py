"""A plain HTTP port for pages that monitoring reads. It answers only GET and HEAD.

It is not for requests of clients, which are told so. Each page is written by a thread of its own, at most
``num_readers`` at once. A reader that takes longer than ``timeout_s`` in all, for
example because it reads byte by byte, is cut off.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from tfs.core.errors import Unavailable
from tfs.core.own_descriptors import OWN

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5  # how often it is checked which readers take too long

Page = Callable[[], str]
"""Writes a page; may take milliseconds, never blocks for long."""


class HttpDoor:
    """Serves pages on a TCP port until closed. One thread starts and closes it.

    Args:
        host: Address or name to listen on; one of IPv6 may have brackets.
        port: The port; 0 picks a free one.
        pages: The pages by path.
        content_type: The content type of all pages.
        num_readers: Connections at once; more wait to be accepted.
        timeout_s: How long a reader may take to ask, and to read the answer.

    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        content_type: str,
        *,
        num_readers: int = 4,
        timeout_s: float = 10.0,
    ) -> None:
        self._address = host.strip("[]"), port
        self._handler = _handler(pages, content_type, timeout_s)
        self._num_readers = num_readers
        self._timeout_s = timeout_s
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Opens the port; returns its address, "HOST:PORT".

        Raises:
            Unavailable: It cannot be opened.

        """
        host, port = self._address
        name = f"[{host}]" if ":" in host else host
        try:
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, self._address, self._handler)
        except OSError as error:
            raise Unavailable(
                f"cannot listen for HTTP on {name}:{port} (--rest_api_port): "
                f"{error.strerror}"
            ) from error
        self._server.let_in(self._num_readers, self._timeout_s)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        address = f"{name}:{self._server.server_port}"
        OWN.add_address(address)
        return address

    def close(self) -> None:
        """Closes the port; readers under way may finish; idempotent."""
        if self._server is None or self._thread is None:
            return
        self._server.is_closing = True
        self._server.shutdown()
        self._thread.join()
        OWN.remove_address(f":{self._server.server_port}")
        self._server.server_close()
        self._server = None

    def _run(self) -> None:
        assert self._server is not None
        self._server.serve_forever(_LOOK_S)


class _Server(ThreadingHTTPServer):
    """The standard library's server, with a limit on readers and on the time of each.

    Attributes:
        is_closing: Set when it closes; no further reader is accepted then.

    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self,
        family: int,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
    ) -> None:
        self.address_family = family
        super().__init__(address, handler)
        self.is_closing = False
        self.let_in(1, _LOOK_S)
        # Guards _begun_s; leaf.
        self._lock = threading.Lock()
        self._begun_s: dict[socket.socket, float] = {}

    def let_in(self, num_readers: int, timeout_s: float) -> None:
        """Sets how many readers there may be, and how long each may take. Call it first."""
        self._places = threading.BoundedSemaphore(num_readers)
        self._timeout_s = timeout_s

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._places.acquire(timeout=_LOOK_S):
            if self.is_closing:
                self.shutdown_request(request)
                return
            self.service_actions()
        with self._lock:
            self._begun_s[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread could not be started
            self._leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def service_actions(self) -> None:
        """Cuts off readers that take too long. Called between readers, and twice a second."""
        late_s = time.monotonic() - self._timeout_s
        with self._lock:
            late = [each for each, begun_s in self._begun_s.items() if begun_s < late_s]
        for each in late:  # its thread then reads an end or fails to write
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._begun_s.pop(request, None)
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("event=metrics_reader_failed peer=%s", client_address)


def _handler(
    pages: Mapping[str, Page], content_type: str, timeout_s: float
) -> type[BaseHTTPRequestHandler]:
    """Returns a class of handlers, which is what the standard library takes."""
    # Clients of TensorFlow Serving's REST API come here too.
    other = (
        f"there is {', '.join(pages)}, and no REST API: call gRPC, at the port that "
        "--port names\n"
    )

    class Handler(BaseHTTPRequestHandler):
        timeout: ClassVar[float] = timeout_s
        server_version = "tfs"
        sys_version = ""

        def do_GET(self) -> None:
            """Answers with the page, or with the list of pages."""
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self._answer(404, f"no such page; {other}")
                return
            try:
                text = page()
            except Exception:
                log.exception("event=metrics_failed path=%s", self.path)
                self._answer(500, "the page cannot be written; see the log\n")
                return
            self._answer(200, text)

        do_HEAD = do_GET

        def send_error(
            self, code: int, message: str | None = None, explain: str | None = None
        ) -> None:
            """Answers what the library refuses: another method, or no HTTP at all."""
            self.close_connection = True
            self._answer(code, f"{message or 'refused'}; {other}")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing, because somebody asks every few seconds."""

    return Handler
