"""What the HTTP port answers: the REST API, health, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from tfs.core.errors import Internal, NotFound, Unavailable, Unimplemented
from tfs.core.http_call import TEXT, HttpCall, HttpHandler, HttpReply

log = logging.getLogger(__name__)

ALIVE: Final = "/healthz"
READY: Final = "/readyz"


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page that takes milliseconds to write, on a thread.

    Attributes:
        write: Writes it, given the query, in pieces that are sent one after the other.
        content_type: Its content type.

    """

    write: Callable[[str], Sequence[bytes]]
    content_type: str


class HttpRoot:
    """Hands requests to what answers their path. Confined to the serving loop.

    Args:
        apis: What answers each path that begins so, by the beginning.
        is_ready: Whether requests should be sent here, as gRPC health tells of "".
        is_available: Whether a model can answer; None if it is not configured.
        pages: Pages by path.
        others: Answers all other paths.
        run: Runs a function on a thread; raises RuntimeError when the server closes.

    """

    def __init__(
        self,
        apis: Mapping[str, HttpHandler],
        is_ready: Callable[[], bool],
        is_available: Callable[[str], bool | None],
        pages: Mapping[str, TextPage],
        others: HttpHandler,
        run: Callable[[Callable[[], None]], object],
    ) -> None:
        self._apis = tuple(apis.items())
        self._is_ready = is_ready
        self._is_available = is_available
        self._pages = pages
        self._others = others
        self._run = run

    def __call__(self, call: HttpCall) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        path = call.path
        for prefix, handler in self._apis:
            if path.startswith(prefix):
                handler(call)
                return
        if path not in (ALIVE, READY, *self._pages):
            self._others(call)
        elif call.verb not in ("GET", "HEAD"):
            call.fail(Unimplemented(f"{path} takes no {call.verb}"))
        elif path == ALIVE:
            call.respond(HttpReply((b"alive\n",), content_type=TEXT))
        elif path == READY:
            self._tell_ready(call)
        else:
            self._write(call, self._pages[path])

    def _tell_ready(self, call: HttpCall) -> None:
        names = parse_qs(call.query).get("model", [])
        missing = [name for name in names if self._is_available(name) is None]
        if missing:
            call.fail(NotFound(f"no model {missing[0]!r} is configured"))
            return
        ready = self._is_ready() if not names else all(map(self._is_available, names))
        text = b"ready\n" if ready else b"not ready\n"
        call.respond(HttpReply((text,), 200 if ready else 503, TEXT))

    def _write(self, call: HttpCall, page: TextPage) -> None:
        def write() -> None:
            try:
                parts = page.write(call.query)
            except Exception:
                log.exception("event=page_failed path=%s", call.path)
                call.fail(Internal("the page cannot be written; see the log"))
                return
            call.respond(HttpReply(parts, content_type=page.content_type))

        try:
            self._run(write)
        except RuntimeError:
            call.fail(Unavailable("the server is shutting down"))
