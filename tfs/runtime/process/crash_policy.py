"""How workers end, and what follows: when the next one starts, and when none does.

A SIGKILL does not say who sent it. If the count of processes that the kernel ended for
want of memory has grown since it was last looked at, that was likely the kernel, for the
whole machine or for a control group that was full. That count is the whole machine's;
that of a control group would be more exact, and is not to be found in every container.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfs.runtime.guest.worker_options import LOST_DEVICE, OUT_OF_MEMORY


@dataclass(frozen=True, slots=True)
class CrashPolicy:
    """Immutable.

    Attributes:
        max_crashes: This many crashes of one version within ``window_s`` quarantine it;
            at least 1.
        window_s: For how many seconds a crash counts, > 0.
        max_delay_s: The longest pause before an interpreter that keeps dying is
            started again, seconds.

    """

    max_crashes: int = 3
    window_s: float = 60.0
    max_delay_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_crashes < 1:
            raise ValueError("max_crashes must be >= 1")
        if self.window_s <= 0:
            raise ValueError("window_s must be > 0")
        if self.max_delay_s < 0:
            raise ValueError("max_delay_s must be >= 0")


class CrashHistory:
    """The recent crashes of one version, or of one interpreter. Loop-confined."""

    def __init__(self, policy: CrashPolicy) -> None:
        self._policy = policy
        self._times_s: deque[float] = deque(maxlen=64)

    def add(self, now_s: float) -> None:
        """Records a crash."""
        self._times_s.append(now_s)

    def num_recent(self, now_s: float) -> int:
        """Returns how many crashes lie within the window."""
        since_s = now_s - self._policy.window_s
        return sum(1 for time_s in self._times_s if time_s > since_s)

    def is_too_many(self, now_s: float) -> bool:
        """Whether a version with this history must not be run any more."""
        return self.num_recent(now_s) >= self._policy.max_crashes

    def respawn_delay_s(self, now_s: float) -> float:
        """Returns how long to wait before the next start.

        There is no pause after the first two deaths in the window, so that a single
        crash is repaired within milliseconds. After that it is 0.1 s, and twice as long
        after each further death.
        """
        num = self.num_recent(now_s)
        if num <= 2:
            return 0.0
        return min(0.1 * 2.0 ** (num - 3), self._policy.max_delay_s)


FOR_MEMORY: Final = "was ended by SIGKILL (by the kernel, for want of memory)"
"""How a process ended that was killed while the kernel ended processes for memory."""


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended. Immutable.

    Attributes:
        how: In words.
        was_killed: Whether by a SIGKILL that was not ours.
        for_memory: Whether that was, as far as can be known, for want of memory.

    """

    how: str
    was_killed: bool = False
    for_memory: bool = False


def describe_status(status: int | None) -> str:
    """Returns how a process ended, in words; ``status`` is one of ``os.wait``."""
    if status is None:
        return "ended"
    signal_number = status & 0x7F
    if status == LOST_DEVICE << 8:
        return "ended because a kernel of its model failed, and its device with it"
    if status == OUT_OF_MEMORY << 8:
        return (
            "ended because its model keeps most of the memory that it may add "
            "(--worker_memory_limit_bytes)"
        )
    if signal_number == 0:
        return f"exited with status {status >> 8}"
    names = {
        4: "SIGILL (illegal instruction)",
        6: "SIGABRT (it aborted itself)",
        7: "SIGBUS (bad memory access)",
        8: "SIGFPE (arithmetic fault)",
        9: "SIGKILL (killed, perhaps for memory)",
        11: "SIGSEGV (bad memory access)",
    }
    return f"was ended by {names.get(signal_number) or _name_of(signal_number)}"


def _name_of(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:  # a real-time signal, or one of another system
        return f"signal {signal_number}"


_KILLS: Final = re.compile(rb"^oom_kill (\d+)$", re.M)


def num_memory_kills(path: str = "/proc/vmstat") -> int:
    """Returns the count since the machine started; 0 where the kernel keeps none."""
    try:
        found = _KILLS.search(Path(path).read_bytes())
    except OSError:
        return 0
    return int(found[1]) if found else 0


class KernelCount:
    """Looks at a count when something has ended. Confined to the loop.

    Args:
        count: Returns the count.

    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._num_seen = count()

    def is_more(self) -> bool:
        """Returns whether it has grown since the last look. Takes 0.1 ms."""
        num_before, self._num_seen = self._num_seen, self._count()
        return self._num_seen > num_before
