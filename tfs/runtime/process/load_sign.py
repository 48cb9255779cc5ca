"""Shows a loading worker whether the server has, or lately had, requests to answer.

The worker looks at this sign where its load yields to requests
(:mod:`tfs.core.loop.pacing`). It loads at the lowest priority, but a thread of the server
that was interrupted, and has had a few microseconds more than its share, has to wait for
the load all the same; and whatever runs beside a load takes longer.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.core.loop.pacing import Traffic
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.runtime.guest.slab import HOST_TRAFFIC, Slab


class LoadSign:
    """The sign of one worker, set after each round while it loads. Loop-confined.

    Args:
        loop: The sign is set after each of its rounds.
        slab: The slab that holds the sign.
        traffic: Returns quickly what is shown.

    """

    def __init__(
        self, loop: ServingLoop, slab: Slab, traffic: Callable[[], Traffic]
    ) -> None:
        self._loop = loop
        self._slab = slab
        self._traffic = traffic
        self._num_loads = 0

    def begin(self) -> None:
        """Notes that the worker has begun background work."""
        if not self._num_loads:
            self._loop.add_round_hook(self._show, Phase.FLUSH)
        self._num_loads += 1

    def end(self, num: int = 1) -> None:
        """Notes that ``num`` pieces of this work are over; others may go on."""
        self._num_loads -= num
        if num and not self._num_loads:
            self._loop.remove_round_hook(self._show)
            self._slab.words[HOST_TRAFFIC] = Traffic.NONE

    def _show(self, _: float) -> None:
        self._slab.words[HOST_TRAFFIC] = self._traffic()
