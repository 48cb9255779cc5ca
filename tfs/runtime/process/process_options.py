"""How process interpreters behave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tfs.core.executor import Executor, InlineExecutor
from tfs.core.loop.pacing import Traffic
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.crash_policy import (
    CrashPolicy,
    KernelCount,
    num_memory_kills,
)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Immutable.

    Attributes:
        worker: How the processes run.
        max_queued: Most tasks that may wait for an interpreter; one more is
            Unavailable.
        call_timeout_s: A call that takes longer (or 10 times what calls of its size
            took, if that is more) ends its interpreter.
        load_timeout_s: The same for loading a version.
        slow_load_s: When the first interpreter of a version has been loading it for so
            long, the others begin beside it instead of after it.
        crashes: How many crashes are too many.
        memory_kills: Tells, when a worker was killed, whether it was for want of memory.
        on_quarantine: Called on the loop, once, with a version and the reason.
        is_urgent: Whether loads need not give way to requests, because the server is
            starting or has nothing to serve. Called on any thread.
        traffic: The requests for which loads make way. Called on the loop, after each
            round while something loads.
        executor: Copies large tensors, and packs many strings, which would hold up the
            loop.

    """

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    max_queued: int = 256
    call_timeout_s: float = 30.0
    load_timeout_s: float = 600.0
    slow_load_s: float = 0.3
    crashes: CrashPolicy = field(default_factory=CrashPolicy)
    memory_kills: KernelCount = field(
        default_factory=lambda: KernelCount(num_memory_kills)
    )
    on_quarantine: Callable[[ServableId, str], None] = lambda _servable, _reason: None
    is_urgent: Callable[[], bool] = lambda: False
    traffic: Callable[[], Traffic] = lambda: Traffic.NONE
    executor: Executor = field(default_factory=InlineExecutor)

    def __post_init__(self) -> None:
        if self.max_queued < 1:
            raise ValueError("max_queued must be >= 1")
        if self.call_timeout_s <= 0 or self.load_timeout_s <= 0:
            raise ValueError("timeouts must be > 0")
