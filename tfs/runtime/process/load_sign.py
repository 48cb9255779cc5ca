"""Shows a loading worker whether the server has, or recently had, requests to answer.

A thread that wakes up goes before a load. But one that was interrupted, and has had a
few microseconds more than its share, has to wait for the load; and whatever runs beside
a load takes longer. So where a load asks for the right of way
(:mod:`tfs.core.right_of_way`), it looks at this sign and sleeps until the request is
answered. If requests came recently, it is paced. The server knows that better than a
worker which has only begun to look.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.core.serving_loop import Phase, ServingLoop
from tfs.runtime.guest.slab import HOST_TRAFFIC, HostTraffic, Slab


class LoadSign:
    """The sign of one worker, set after each round while it loads. Loop-confined.

    Args:
        loop: The sign is set after each of its rounds.
        slab: The slab that holds the sign.
        is_answering: Returns quickly whether the server has requests to answer.
        has_traffic: Returns quickly whether it has some, or had some recently.

    """

    def __init__(
        self,
        loop: ServingLoop,
        slab: Slab,
        is_answering: Callable[[], bool],
        has_traffic: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._slab = slab
        self._is_answering = is_answering
        self._has_traffic = has_traffic
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
            self._slab.words[HOST_TRAFFIC] = HostTraffic.NONE

    def _show(self, _: float) -> None:
        traffic = HostTraffic.NONE
        if self._has_traffic():
            traffic = HostTraffic.LATELY
        if self._is_answering():
            traffic = HostTraffic.NOW
        self._slab.words[HOST_TRAFFIC] = traffic
