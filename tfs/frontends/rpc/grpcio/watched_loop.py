"""An asyncio loop that watches descriptors as a serving loop does, for TLS handshakes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tfs.core.clock import Clock
from tfs.core.serving_loop import READABLE, WRITABLE


class WatchedLoop:
    """A :class:`tfs.frontends.rpc.tls.tls_handshake.HandshakeLoop` over asyncio's.

    Confined to the loop's thread, except for ``post``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self.clock = clock

    def watch(self, fd: int, fn: Callable[[int], None], events: int = READABLE) -> None:
        """Calls ``fn``; a connection that has failed is ready for reading."""
        self.unwatch(fd)
        if events & READABLE:
            self._loop.add_reader(fd, fn, READABLE)
        if events & WRITABLE:
            self._loop.add_writer(fd, fn, WRITABLE)

    def unwatch(self, fd: int) -> None:
        """Stops watching ``fd``; idempotent."""
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop, unless that is closed. Thread-safe."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(fn)
