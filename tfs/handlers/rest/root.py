"""What the HTTP port answers: the REST API, health, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs

from tfs.core.errors import Internal, NotFound, ServingError, Unavailable
from tfs.core.http_call import TEXT, HttpCall, HttpHandler, HttpReply, verb_not_taken

log = logging.getLogger(__name__)

ALIVE: Final = "/healthz"
READY: Final = "/readyz"


Page = Callable[[str], HttpReply]
"""Writes an answer, given the query; blocks for a while."""

Run = Callable[[Callable[[], None]], object]
"""Runs a function on a thread; raises RuntimeError when the server closes."""


class HttpRoot:
    """Hands requests to what answers their path. Confined to the serving loop.

    Args:
        apis: What answers each path that begins so, by the beginning.
        is_ready: Whether requests should be sent here, as gRPC health tells of "".
        is_available: Whether a model can answer; None if it is not configured.
        pages: What else answers, by path.
        others: Answers all other paths.
        run: Runs what blocks.

    """

    def __init__(
        self,
        apis: Mapping[str, HttpHandler],
        is_ready: Callable[[], bool],
        is_available: Callable[[str], bool | None],
        pages: Mapping[str, Page],
        others: HttpHandler,
        run: Run,
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
            call.fail(verb_not_taken(path, call.verb, "GET, HEAD"))
        elif path == ALIVE:
            call.respond(HttpReply((b"alive\n",), content_type=TEXT))
        elif path == READY:
            self._tell_ready(call)
        else:
            page = self._pages[path]
            answer_apart(self._run, call, lambda: page(call.query))

    def _tell_ready(self, call: HttpCall) -> None:
        names = parse_qs(call.query).get("model", [])
        missing = [name for name in names if self._is_available(name) is None]
        if missing:
            call.fail(NotFound(f"no model {missing[0]!r} is configured"))
            return
        ready = self._is_ready() if not names else all(map(self._is_available, names))
        text = b"ready\n" if ready else b"not ready\n"
        call.respond(HttpReply((text,), 200 if ready else 503, TEXT))


def answer_apart(run: Run, call: HttpCall, write: Callable[[], HttpReply]) -> None:
    """Answers with what ``write`` returns on a thread, or with the error that it raises."""

    def answer() -> None:
        try:
            reply = write()
        except ServingError as error:
            call.fail(error)
        except Exception:
            log.exception("event=page_failed path=%s", call.path)
            call.fail(Internal(f"{call.path} cannot be written; see the log"))
        else:
            call.respond(reply)

    try:
        run(answer)
    except RuntimeError:
        call.fail(Unavailable("the server is shutting down"))
