"""The port that starts and ends the replicas of serving jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job should be: how many equal servers, and their limits. Immutable."""

    name: str
    num_replicas: int
    memory_bytes: int  # for the models of each
    cpus: int = 0  # of each; 0: all that there are

    @property
    def limits(self) -> tuple[int, int]:
        """The memory_bytes and cpus of each."""
        return self.memory_bytes, self.cpus


@dataclass(frozen=True, slots=True)
class Replica:
    """One server of a job. Immutable."""

    # Its gRPC port, which stays the same when it is started again, at least on the same
    # machine; empty while it has no place.
    address: str
    is_running: bool  # it has a process
    problem: str = ""  # why it has none
    limits: tuple[int, int] | None = None  # its memory_bytes and cpus, where known
    started_s: float = 0.0  # by this machine's clock; 0: not known


Seen = Mapping[str, Sequence[Replica]]
"""The replicas that each job should have, in order, and how they do. A job that should
have none is there while something is left of it."""


def all_serve(
    replicas: Iterable[Replica | None], is_ready: Callable[[str], bool]
) -> bool:
    """Whether these replicas serve, so that another one of their job may be drained."""
    return all(each and each.is_running and is_ready(each.address) for each in replicas)


class JobRuntime(Protocol):
    """Takes jobs towards what they should be. For one thread.

    Implementors promise:

    1. to look is idempotent: a job gets the number of replicas that it should have, and
       those that run go on, unless their limits change: then they are drained and started
       again one after the other;
    2. a replica that ends is started again, at once for the first time, then after
       pauses that double, until it has run for a while;
    3. a replica that is one too many is drained: it answers what it has accepted;
    4. who makes a runtime anew, after a crash, finds what the one before started;
    5. no replica takes more memory than its job's limit, and a margin that the
       implementor states, without being ended or refused.
    """

    look_s: float  # between two looks

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        """Does what is due so that there are these jobs, by name, and no others.

        Returns soon: what takes longer goes on by itself, and is seen by a later look.
        """
        ...
