"""Shows a worker that loads whether the server has requests to answer, or had lately.

A load gives way to whoever wakes up, but the scheduler lets it go on before somebody who
was interrupted and has had microseconds more than his share, and next to it everything
takes longer. So a load looks at this sign where it asks for the way
(:mod:`tfs.core.right_of_way`), sleeps until the request is answered, and is paced where
some came lately, which the server knows better than who has just begun to look.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.core.serving_loop import Phase, ServingLoop
from tfs.runtime.guest.slab import HOST_TRAFFIC, HostTraffic, Slab


class LoadSign:
    """The sign of one worker, set after each round while that loads. Loop-confined.

    Args:
        loop: The loop after whose rounds the sign is set.
        slab: The slab that holds the sign.
        is_answering: Whether the server has requests to answer; quick.
        has_traffic: Whether it has, or had some lately; likewise.

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
        """Notes that the worker does something in the background."""
        if not self._num_loads:
            self._loop.add_round_hook(self._show, Phase.FLUSH)
        self._num_loads += 1

    def end(self, num: int = 1) -> None:
        """Notes that so many of these things are over; others may go on."""
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
