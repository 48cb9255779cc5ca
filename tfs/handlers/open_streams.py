"""Streams that clients keep open between questions, until the server drains.

Tools keep such streams open for days. Nobody waits for an answer on one, and a drain
that waited for its end would last until the deadline.
"""

from __future__ import annotations

from tfs.core.call import StreamCall
from tfs.core.errors import ServingError, Unavailable


class OpenStreams:
    """Ends streams when the server drains. Confined to the serving loop."""

    def __init__(self) -> None:
        self._calls: set[StreamCall] = set()
        self._is_closed = False

    def add(self, call: StreamCall) -> bool:
        """Adds a stream. Returns False, and fails the call, if the server drains."""
        if self._is_closed:
            call.fail(Unavailable("the server is shutting down", retry_after_s=1.0))
            return False
        self._calls.add(call)
        call.on_cancel(lambda: self._calls.discard(call))
        return True

    def finish(self, call: StreamCall) -> None:
        """Ends a stream whose client will ask no more."""
        if call in self._calls:
            self._calls.discard(call)
            call.finish()

    def fail(self, call: StreamCall, error: ServingError) -> None:
        """Ends a stream with an error."""
        self._calls.discard(call)
        call.fail(error)

    def close(self) -> None:
        """Ends all streams with OK, after the answers that were sent before."""
        self._is_closed = True
        for call in list(self._calls):
            self.finish(call)
