"""How a worker process runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Immutable.

    Attributes:
        spin_us: Microseconds a worker looks for the next request before it sleeps,
            and its host for a reply that is due within them, >= 0. Saves wake-ups
            (about 50 us each) and burns cores meanwhile: only where there are more
            cores than interpreters. Looks that are in vain become rare.
        slab_bytes: Size of the shared memory for tensors, a multiple of 64 KiB. A
            quarter of it is what one request's inputs may take; more go through a
            temporary memfd. Pages are taken when touched.
        memory_limit_bytes: Private memory a worker may add to what it starts with,
            weights apart; 0 for no limit. A call that needs more fails; a worker whose
            model keeps more than half of it then is replaced.
        nice: Added to the CPU niceness, 0 to 19.
        user_id: User and group to become, where the server runs as root; None to
            stay.
        group_id: See ``user_id``.
        oom_score_adj: Raises the worker's chance to be the one the kernel kills when
            memory runs out, 0 to 1000.

    """

    spin_us: int = 0
    slab_bytes: int = 64 << 20
    memory_limit_bytes: int = 0
    nice: int = 0
    user_id: int | None = None
    group_id: int | None = None
    oom_score_adj: int = 300

    def __post_init__(self) -> None:
        if not 0 <= self.spin_us <= 1000:
            raise ValueError("spin_us must be between 0 and 1000")
        if self.slab_bytes < 1 << 20 or self.slab_bytes % (1 << 16):
            raise ValueError("slab_bytes must be a multiple of 64 KiB, 1 MiB at least")
        if self.memory_limit_bytes < 0:
            raise ValueError("memory_limit_bytes must be >= 0; 0 is no limit")
        if not 0 <= self.nice <= 19:
            raise ValueError("nice must be between 0 and 19")
        if not 0 <= self.oom_score_adj <= 1000:
            raise ValueError("oom_score_adj must be between 0 and 1000")
