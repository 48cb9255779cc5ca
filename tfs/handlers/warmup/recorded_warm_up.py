"""Warms a version up with the requests that it brings, at the end of its load.

A version may bring recorded requests (``warmup_replay.py``), which are replayed once it
is loaded. If one of them fails, the load fails, because a version that cannot answer
its own recorded requests should not serve.
"""

from __future__ import annotations

import logging

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.servable import Servable
from tfs.core.stats import Stats
from tfs.handlers.warmup.warmup_replay import WarmupOptions, replay

log = logging.getLogger(__name__)


def warm_up(
    servable: Servable, path: str, options: WarmupOptions, stats: Stats, clock: Clock
) -> int:
    """Warms a version up; returns by how many requests. Blocks.

    Args:
        servable: The version.
        path: Its directory.
        options: How to warm up.
        stats: The registry with the histogram of warm-up times.
        clock: Measures these times.

    Raises:
        ServingError: A record cannot be read, or its replay failed.

    """
    if not options.enabled:
        return 0
    begun_s = clock.now()
    num = replay(servable, path, options, clock)
    if num:
        took_s = clock.now() - begun_s
        stats.histogram(
            stat_names.WARMUP_LATENCY_S,
            stat_names.WARMUP_BOUNDS_S,
            model=servable.id.name,
        ).observe(took_s)
        log.info(
            "event=servable_warmed_up servable=%s records=%d iterations=%d took_s=%.3f",
            servable.id.slashed,
            num,
            options.num_iterations,
            took_s,
        )
    return num * options.num_iterations
