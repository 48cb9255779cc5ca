"""How a worker process runs, and the exit statuses with which it ends itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Immutable.

    Attributes:
        spin_us: Microseconds for which a worker looks for the next request before it
            sleeps, and its host for a reply that is due within that time; >= 0. This
            saves wake-ups (about 50 us each) but keeps cores busy, so use it only if
            there are more cores than interpreters. If looking is in vain, it is done
            rarely.
        slab_bytes: Size of the shared memory for tensors, a multiple of 64 KiB. The
            inputs of one request may take a quarter of it; larger ones go through a
            temporary memfd. Pages are taken when they are touched.
        memory_limit_bytes: Private memory that a worker may add to what it starts with,
            not counting weights; 0 for no limit. A call that needs more fails; a worker
            whose model then keeps more than half of it is replaced.
        nice: Added to the CPU niceness, 0 to 19.
        user_id: The user to become, if the server runs as root; None to stay.
        group_id: See ``user_id``.
        oom_score_adj: Makes it more likely that the kernel kills a worker when memory
            runs out, 0 to 1000.
        concurrency: Calls that the worker runs at once, each on a thread of its own, at
            least 1; an interpreter asks for as many as its model takes.
        is_staged: Whether one thread takes all of these calls, for a model in stages.

    """

    spin_us: int = 0
    slab_bytes: int = 64 << 20
    memory_limit_bytes: int = 0
    nice: int = 0
    user_id: int | None = None
    group_id: int | None = None
    oom_score_adj: int = 300
    concurrency: int = 1
    is_staged: bool = False

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
        if self.concurrency < 1:
            raise ValueError("concurrency must be >= 1")


OUT_OF_MEMORY: Final = 97
"""The model holds more memory than it may add."""
LOST_DEVICE: Final = 98
"""A kernel destroyed the process's context on the model's device."""
