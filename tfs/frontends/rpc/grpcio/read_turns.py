"""Has clients' connections read in turn while they bring more than can be read at once.

grpcio hands over a call every few rounds of its loop, and no more than one. If a round
read what every connection brings, sixty that flood us would make it last a tenth of a
second, and a good call would wait for hundreds of these. So while much is to be read,
that takes half a millisecond at a time, and as much time is left for everything else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

_TURN_S: Final = 0.0005
# While reading took less than that of so long a time, connections are read at once.
_WINDOW_S: Final = 0.002
_PAUSE_S: Final = 0.0005  # the system makes it a millisecond if nothing else happens


class Source(Protocol):
    """A connection that has something to read."""

    def hold_off(self, is_held_off: bool) -> None:
        """Tells of nothing to read any more, or again."""
        ...

    def read(self) -> None:
        """Reads a part, unless the connection is to be left alone now."""
        ...


class ReadTurns:
    """Decides which connection is read next. Confined to the loop's thread.

    Args:
        loop: Where connections are read.

    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: OrderedDict[Source, None] = OrderedDict()
        self._since_s = self._spent_s = 0.0
        self._is_armed = False

    def read(self, source: Source) -> None:
        """Reads a connection now, or in its turn if others wait or much was read."""
        begun_s = self._loop.time()
        if begun_s - self._since_s > _WINDOW_S:
            self._since_s, self._spent_s = begun_s, 0.0
        if not self._waiting and self._spent_s < _TURN_S:
            source.read()
            self._spent_s += self._loop.time() - begun_s
            return
        self._go_on_later()
        self._waiting[source] = None
        source.hold_off(True)

    def forget(self, source: Source) -> None:
        """Forgets a connection that is gone; idempotent."""
        self._waiting.pop(source, None)

    def _go_on_later(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._is_armed = False
        until_s = self._loop.time() + _TURN_S
        try:
            while self._waiting and self._loop.time() < until_s:
                source = self._waiting.popitem(last=False)[0]
                source.hold_off(False)
                source.read()
        finally:  # a source that fails does not stop the others
            if self._waiting:
                self._go_on_later()
