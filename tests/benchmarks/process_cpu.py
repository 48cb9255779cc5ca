"""CPU seconds of a process and all its descendants, the ended ones included.

The kernel adds an ended child's time to its parent when the parent waits for it, so a
tree's time is the own and the waited-for time of its living members. Two kinds of
children escape that sum: those nobody waits for, and those whose parent ended first.
Members are therefore remembered by (pid, start time), which no reused pid can fake;
one that vanished without its time showing up in its nearest living ancestor is counted
with what was last seen of it. What such a process used after the last reading is lost:
read more often where that matters.

Rejected: cgroups, which need rights; psutil, whose children(recursive=True) forgets
ended ones; per-thread schedstat, which is finer than the 10 ms ticks used here but
forgets ended threads. Measure seconds, not milliseconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """One reading of /proc/<pid>/stat; times in clock ticks."""

    pid: int
    parent_pid: int
    start: int
    own: int
    waited: int

    @property
    def total(self) -> int:
        return self.own + self.waited


class ProcessTreeCpu:
    """Reads the CPU time of the tree below a process. Confined to one thread.

    Example:
        cpu = ProcessTreeCpu(server.pid)
        before_s = cpu.read_s()
        send_requests(n)
        per_request_s = (cpu.read_s() - before_s) / n
    """

    def __init__(self, root_pid: int, proc: Path = Path("/proc")) -> None:
        self._root_pid = root_pid
        self._proc = proc
        # None until the first reading; empty once every member has ended.
        self._members: dict[int, ProcessTimes] | None = None
        self._lost_ticks = 0

    def read_s(self) -> float:
        """Returns user + system seconds since each member began; never decreases.

        Raises:
            ProcessLookupError: at the first reading, if there is no such process. Later
                its end is an event like any other member's.
        """
        alive = {times.pid: times for times in read_all(self._proc)}
        if self._members is None:
            if self._root_pid not in alive:
                raise ProcessLookupError(f"no process {self._root_pid}")
            members = offspring({self._root_pid}, alive)
        else:
            # A known member stays one when its parent ends and another adopts it.
            known = {
                pid for pid in self._members if _is_alive(self._members[pid], alive)
            }
            members = offspring(known, alive)
            self._lost_ticks += _lost_ticks(self._members, members)
        self._members = members
        ticks = self._lost_ticks + sum(times.total for times in members.values())
        return ticks / _TICKS_PER_S


def _is_alive(times: ProcessTimes, alive: dict[int, ProcessTimes]) -> bool:
    """Tells whether that very process, not a reuse of its pid, is among `alive`."""
    return times.pid in alive and alive[times.pid].start == times.start


def offspring(
    pids: set[int], alive: dict[int, ProcessTimes]
) -> dict[int, ProcessTimes]:
    """Returns the processes `pids` and all that descend from them."""
    children: dict[int, list[int]] = {}
    for times in alive.values():
        children.setdefault(times.parent_pid, []).append(times.pid)
    found = set(pids)
    frontier = list(pids)
    while frontier:
        for pid in children.get(frontier.pop(), ()):
            if pid not in found:
                found.add(pid)
                frontier.append(pid)
    return {pid: alive[pid] for pid in found}


def _lost_ticks(before: dict[int, ProcessTimes], after: dict[int, ProcessTimes]) -> int:
    """Returns the ticks of vanished members that no living member took over.

    The vanished are grouped by their nearest ancestor that still lives; what its
    waited-for time grew by was handed up by them.
    """

    vanished: dict[int | None, int] = {}
    for times in before.values():
        if _is_alive(times, after):
            continue
        ancestor: int | None = times.parent_pid
        while ancestor is not None:
            if ancestor not in before:
                ancestor = None
            elif _is_alive(before[ancestor], after):
                break
            else:
                ancestor = before[ancestor].parent_pid
        vanished[ancestor] = vanished.get(ancestor, 0) + times.total
    lost = 0
    for ancestor, ticks in vanished.items():
        grown = 0
        if ancestor is not None:
            grown = after[ancestor].waited - before[ancestor].waited
        lost += max(0, ticks - grown)
    return lost


def read_all(proc: Path) -> list[ProcessTimes]:
    """Returns every process of the machine; those that end meanwhile are left out."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(parse_stat(text))
    return found


def parse_stat(text: str) -> ProcessTimes:
    """Reads one line of /proc/<pid>/stat; the command's name may hold anything."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    user, system, children_user, children_system = map(int, fields[11:15])
    return ProcessTimes(
        pid=int(head.split(" ", 1)[0]),
        parent_pid=int(fields[1]),
        start=int(fields[19]),
        own=user + system,
        waited=children_user + children_system,
    )
