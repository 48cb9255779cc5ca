"""How much of the processors other programs used between two samples. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuSample:
    """The processor time used up to one moment. Immutable.

    Attributes:
        all_s: Processor seconds of the whole machine, stolen time included; None where
            unknown.
        own_s: Processor seconds of the processes that measure.

    """

    all_s: float | None
    own_s: float


def sample_cpu(pids: Sequence[int]) -> CpuSample:
    """Returns the processor time used so far by all, and by ``pids``."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return CpuSample(_all_s(tick_s), sum(_process_s(pid, tick_s) for pid in set(pids)))


def foreign_share(before: CpuSample, after: CpuSample, elapsed_s: float) -> float:
    """Returns the share of all processors that others used between two samples.

    It is 0 if the system does not tell. Time is counted in ticks of some 10 ms, so a
    short interval says little.
    """
    if before.all_s is None or after.all_s is None or elapsed_s <= 0:
        return 0.0
    foreign_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, foreign_s) / (elapsed_s * (os.cpu_count() or 1))


def _all_s(tick_s: float) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        user, nice, system, _idle, _wait, irq, soft_irq, steal = fields
        return (user + nice + system + irq + soft_irq + steal) * tick_s
    return None


def _process_s(pid: int, tick_s: float) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * tick_s
    return 0.0
