"""Grants clients that wait for the receive budget what is free of it, however many wait.

Up to 64 are looked at in each round. Of thousands it is 64 in each round until all have
had their turn, and then none for a while. To look at all takes 2 us for each, in every
round: of five hundred new clients with 48 KB each, one took 1.8 ms instead of 0.3, and of
ten thousand as many times more. Everybody else's requests waited for that.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from tfs.core.serving_loop import Timer
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.shared_state import SharedState

FED_PER_ROUND: Final = 64
"""At most this many clients are looked at in a round, which takes 0.1 ms."""

# Seconds for each client that waits, until all are looked at again. It takes 2 us of each,
# and to ask it 5 us, so that is a tenth and a fifth of the loop's time.
_FEED_S: Final = 20e-6
_ASK_S: Final = 25e-6


class Feeding:
    """Refills the windows of clients that wait for it. Confined to the serving loop.

    Args:
        shared: The state of the transport, with the clients that are starved.

    """

    __slots__ = ("_ask_at_s", "_fed_from", "_feed_at_s", "_shared", "_timer", "_unfed")

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._unfed: deque[ClientUploads] = deque()  # who is yet to have a turn
        self._feed_at_s = -inf  # when all have another one at the earliest
        self._ask_at_s = -inf
        # What was taken of the budget when they had the last one.
        self._fed_from = 0, 0
        self._timer: Timer | None = None

    def feed(self) -> None:
        """Grants those that wait what is free; if they are many, a few of them."""
        shared = self._shared
        starved, unfed = shared.starved, self._unfed
        if len(starved) <= FED_PER_ROUND:
            unfed.clear()
            for each in list(starved):
                each.refill()
            return
        favoured = shared.favoured
        if favoured is not None and favoured in starved:
            favoured.refill()
        if not unfed:
            now_s = shared.loop.clock.now()
            if now_s < self._feed_at_s:
                self._feed_later()
                return
            self._fed_from = self._taken
            self._feed_at_s = now_s + len(starved) * _FEED_S
            unfed.extend(starved)
        for _ in range(min(FED_PER_ROUND, len(unfed))):
            unfed.popleft().refill()
        if unfed:
            shared.wants_round = True
        else:
            self._feed_later()

    def may_ask(self) -> bool:
        """Tells whether all may be asked now who wants to be favoured.

        If not, there is a round in which they may.
        """
        num_starved = len(self._shared.starved)
        if num_starved > FED_PER_ROUND:
            now_s = self._shared.loop.clock.now()
            if now_s < self._ask_at_s:
                self._come_back(self._ask_at_s)
                return False
            self._ask_at_s = now_s + num_starved * _ASK_S
        return True

    def forget_fed(self) -> None:
        """Lets go of clients that may have gone, if few wait."""
        if len(self._shared.starved) <= FED_PER_ROUND:
            self._unfed.clear()

    @property
    def _taken(self) -> tuple[int, int]:
        shared = self._shared
        return shared.budget.used_bytes, shared.headroom.unread_bytes

    def _feed_later(self) -> None:
        """Has all fed again, even if nothing else happens, if what is free has changed."""
        if self._taken != self._fed_from:
            self._come_back(self._feed_at_s)

    def _come_back(self, when_s: float) -> None:
        """Has a round run by then, at whose end those that wait are looked at."""
        timer = self._timer
        if timer is not None:
            if timer.fn is not None and timer.when_s <= when_s:
                return
            timer.cancel()
        self._timer = self._shared.loop.call_at(when_s, _do_nothing)


def _do_nothing() -> None:
    """Runs on a timer whose round is what matters."""
