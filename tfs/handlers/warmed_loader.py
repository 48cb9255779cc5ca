"""Loads a version and warms it up before it becomes available.

A version may bring recorded requests (``warmup_file.py``), which are replayed once it
is loaded. If one of them fails, the load fails, because a version that cannot answer
its own recorded requests should not serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.handlers.warmup_replay import WarmupOptions, replay

log = logging.getLogger(__name__)

OnWarmed = Callable[[ServableId, int], None]
"""Takes a version and with how many requests it was warmed up."""

OnLoaded = Callable[[Servable], None]
"""Takes a version that has loaded, warm-up included, before it is available."""


class WarmedLoader:
    """Loads what another loader loads, then replays its recorded requests.

    Confined to one caller at a time, like every :class:`tfs.core.loader.Loader`. If a
    replay fails, the version is unloaded again, so that ``load`` leaves nothing behind.

    Args:
        inner: Loads the version.
        path: The version directory.
        options: How to warm up.
        stats: The registry with the histogram of warm-up times.
        clock: Measures these times.
        on_warmed: Called with the number of requests after they ran, on the loading
            thread.
        on_loaded: Called with what was loaded at the end of a load that has succeeded,
            on the same thread.

    """

    def __init__(
        self,
        inner: Loader[Servable],
        path: str,
        options: WarmupOptions,
        stats: Stats,
        clock: Clock,
        on_warmed: OnWarmed = lambda _id, _num: None,
        on_loaded: OnLoaded = lambda _servable: None,
    ) -> None:
        self._inner = inner
        self._path = path
        self._options = options
        self._stats = stats
        self._clock = clock
        self._on_warmed = on_warmed
        self._on_loaded = on_loaded

    def estimate_resources(self) -> ResourceAllocation:
        """Returns the inner loader's estimate; replaying takes no more than serving."""
        return self._inner.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        """Loads and warms up; see :meth:`tfs.core.loader.Loader.load`."""
        self._inner.load(servable_id)
        if self._options.enabled:
            self._warm_up(servable_id)
        self._on_loaded(self._inner.servable)

    def _warm_up(self, servable_id: ServableId) -> None:
        begun_s = self._clock.now()
        try:
            num = replay(self._inner.servable, self._path, self._options, self._clock)
        except BaseException:
            self._inner.unload()
            raise
        self._on_warmed(servable_id, num * self._options.num_iterations)
        if num:
            took_s = self._clock.now() - begun_s
            self._stats.histogram(
                stat_names.WARMUP_LATENCY_S,
                stat_names.WARMUP_BOUNDS_S,
                model=servable_id.name,
            ).observe(took_s)
            log.info(
                "event=servable_warmed_up servable=%s records=%d iterations=%d "
                "took_s=%.3f",
                servable_id.slashed,
                num,
                self._options.num_iterations,
                took_s,
            )

    def unload(self) -> None:
        """Frees the version."""
        self._inner.unload()

    @property
    def servable(self) -> Servable:
        """The loaded and warm servable."""
        return self._inner.servable
