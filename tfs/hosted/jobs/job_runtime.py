"""The port that starts and ends the replicas of serving jobs, and what keeps these running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tfs.core.clock import Clock
from tfs.hosted import edits
from tfs.hosted.fleet import Fleet, Job
from tfs.hosted.fleet_state import FleetState

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0  # after a look that failed


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job should be: how many equal servers, and their limits. Immutable."""

    name: str
    num_replicas: int
    memory_bytes: int  # for the models of each
    cpus: int = 0  # of each; 0: all that there are
    # A replica with other limits that makes way for one with these.
    renewed: int | None = None

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
    problem: str = ""  # why it has no process; empty if it has
    limits: tuple[int, int] | None = None  # its memory_bytes and cpus, where known
    started_s: float = 0.0  # by this machine's clock; 0: not known

    def is_outdated(self, job: Job | JobSpec) -> bool:
        """Whether it runs with other limits than its job has."""
        return self.limits not in (None, (job.memory_bytes, job.cpus))


Seen = Mapping[str, Sequence[Replica]]
"""The replicas that each job should have, in order, and how they do. A job that should
have none is there while something is left of it."""


class JobRuntime(Protocol):
    """Takes jobs towards what they should be. For one thread.

    Implementors promise:

    1. to look is idempotent: a job gets the number of replicas that it should have, and
       those that run go on, but for one that is to be renewed: it is drained and started
       again;
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


class RunningJobs:
    """The jobs of one runtime. Thread-safe; replicas outlive it.

    Until it is told what to keep, it lets be what an earlier one started.

    Args:
        runtime: Starts and ends replicas; used by its thread alone.
        clock: Times looks.

    Attributes:
        seen: The replicas as they were last seen. Replaced as a whole.

    """

    def __init__(self, runtime: JobRuntime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self.seen: Seen = {}
        # Guards the next three; notified when one of them is set. Leaf.
        self._changed = threading.Condition()
        self._specs: Mapping[str, JobSpec] | None = None
        # What was seen last is after these.
        self._looked: Mapping[str, JobSpec] | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Looks on a thread of its own until ``close``."""
        self._thread.start()

    def keep(self, specs: Iterable[JobSpec]) -> None:
        """Has these jobs running, in a while, and no others."""
        wanted = {each.name: each for each in specs}
        with self._changed:
            if wanted != self._specs:
                self._specs = wanted
                self._changed.notify_all()

    def look(self) -> bool:
        """Looks once, for its thread, or for who never starts it; False if that failed."""
        specs = self._specs
        if specs is None:
            return True
        try:
            self.seen = self._runtime.look(specs)
        except Exception:  # Ray has many; a cluster may be away for a while
            log.exception("event=jobs_failed")
            return False
        with self._changed:
            self._looked = specs
            self._changed.notify_all()
        return True

    def drain(self, deadline_s: float) -> bool:
        """Drains all jobs; returns whether they had ended by the deadline. Blocks."""
        self.keep(())
        with self._changed:
            while self._looked is not self._specs or self.seen:
                if self._clock.now() >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return True

    def close(self) -> None:
        """Ends the thread; replicas go on."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            specs = self._specs
            pause_s = self._runtime.look_s if self.look() else _PAUSE_S
            with self._changed:
                if specs is self._specs and not self._is_closing:
                    self._clock.wait(self._changed, self._clock.now() + pause_s)
                if self._is_closing:
                    return


def keep_jobs(
    jobs: RunningJobs,
    state: FleetState,
    fleet: Fleet,
    routes: Mapping[str, Collection[str]],
    answering: Collection[str],
) -> None:
    """Has the jobs run that are a fleet's own, and notes in it where they listen.

    ``routes`` and who is ``answering`` at all say whether a replica may make way.
    """
    own = {name: job for name, job in fleet.jobs.items() if job.is_ours}
    jobs.keep(
        JobSpec(
            *(name, job.num_replicas, job.memory_bytes, job.cpus),
            _renewed(job, jobs.seen.get(name, ()), routes, answering),
        )
        for name, job in own.items()
    )
    for name, replicas in jobs.seen.items():
        found = tuple(each.address for each in replicas if each.address)
        if name in own and found != own[name].addresses:
            state.change(edits.set_addresses(name, found))


def _renewed(
    job: Job,
    replicas: Sequence[Replica],
    routes: Mapping[str, Collection[str]],
    answering: Collection[str],
) -> int | None:
    """Returns which replica makes way next for one with its job's limits.

    It is the first with others, once all the rest answer for what it answers for.
    """
    replicas = replicas[: job.num_replicas]
    for index, each in enumerate(replicas):
        if each.is_outdated(job):
            rest = {other.address for other in replicas if other is not each}
            routed = [found for found in routes.values() if each.address in found]
            is_spare = all(rest <= {*found} for found in (answering, *routed))
            return index if is_spare else None
    return None
