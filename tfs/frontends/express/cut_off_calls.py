"""Calls that ended without their handlers, which may still work on them.

A call that its client reset, or whose deadline passed, is over for the client. Its work
goes on until its handler takes note. Until then its stream counts against the
connection's limit, or a client could have any amount of work done by resetting what it
asked for (CVE-2023-44487).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from tfs.frontends.express.call import ExpressCall
from tfs.frontends.http2.state import ConnectionState
from tfs.frontends.http2.stream import Stream


class CutOffCalls:
    """The calls of one client that were cut off and are worked on. Loop-confined.

    Invariant: the connection's ``num_cut_off`` is the number of calls here, and none of
    their streams has been released.

    Args:
        state: The client's connection's.
        post: Runs a function on the loop. Handlers may let go of a call on any thread.

    """

    __slots__ = ("_calls", "_post", "_state")

    def __init__(
        self, state: ConnectionState, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._state = state
        self._post = post
        self._calls: dict[int, tuple[weakref.ref[ExpressCall], Stream]] = {}

    def add(self, call: ExpressCall) -> None:
        """Keeps the stream until :meth:`end`, or until the handler drops the call."""
        key = id(call)
        post = self._post
        reference = weakref.ref(call, lambda _: post(partial(self._end, key)))
        self._calls[key] = (reference, call.stream)
        self._state.num_cut_off += 1

    def end(self, call: ExpressCall) -> None:
        """Releases the stream of a call that its handler has finished; idempotent."""
        self._end(id(call))

    def _end(self, key: int) -> None:
        found = self._calls.pop(key, None)
        if found is not None:
            self._state.num_cut_off -= 1
            self._state.release_all(found[1])
