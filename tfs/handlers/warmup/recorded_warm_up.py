"""Warms a version up with the requests that it brings, at the end of its load.

A version may bring recorded requests (``warmup_replay.py``), which are replayed once it
is loaded. If one of them fails, the load fails, because a version that cannot answer
its own recorded requests should not serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.handlers.warmup.warmup_replay import WarmupOptions, replay

log = logging.getLogger(__name__)


class RecordedWarmUp:
    """Replays the recorded requests of versions. Thread-safe.

    Args:
        options: How to warm up.
        stats: The registry with the histogram of warm-up times.
        clock: Measures these times.
        on_warmed: Called with a version and with how many requests it was warmed up.
        on_loaded: Called with a version that is warm, before it is available.
        check: Called with it and its directory before that; what it raises fails the load.

    """

    def __init__(
        self,
        options: WarmupOptions,
        stats: Stats,
        clock: Clock,
        on_warmed: Callable[[ServableId, int], None] = lambda _id, _num: None,
        on_loaded: Callable[[Servable], None] = lambda _servable: None,
        check: Callable[[Servable, str], None] = lambda _servable, _path: None,
    ) -> None:
        self._check = check
        self._options = options
        self._stats = stats
        self._clock = clock
        self._on_warmed = on_warmed
        self._on_loaded = on_loaded

    def replay(self, servable: Servable, path: str) -> None:
        """Warms a version up; blocks.

        Args:
            servable: The version.
            path: Its directory.

        Raises:
            ServingError: A record cannot be read, or its replay failed, or the check.

        """
        if self._options.enabled:
            self._replay(servable, path)
        self._check(servable, path)
        self._on_loaded(servable)

    def _replay(self, servable: Servable, path: str) -> None:
        begun_s = self._clock.now()
        num = replay(servable, path, self._options, self._clock)
        self._on_warmed(servable.id, num * self._options.num_iterations)
        if num:
            took_s = self._clock.now() - begun_s
            self._stats.histogram(
                stat_names.WARMUP_LATENCY_S,
                stat_names.WARMUP_BOUNDS_S,
                model=servable.id.name,
            ).observe(took_s)
            log.info(
                "event=servable_warmed_up servable=%s records=%d iterations=%d "
                "took_s=%.3f",
                servable.id.slashed,
                num,
                self._options.num_iterations,
                took_s,
            )
