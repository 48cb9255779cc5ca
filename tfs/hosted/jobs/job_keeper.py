"""Makes the jobs that run here what the fleet wants, and tells it where they listen."""

from __future__ import annotations

import logging

from tfs.core.errors import ServingError
from tfs.hosted import edits
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.jobs.job_runtime import JobRuntime, JobSpec
from tfs.hosted.snapshot import Snapshot

log = logging.getLogger(__name__)


class JobKeeper:
    """Follows the fleet. For one thread at a time; blocks on the store."""

    def __init__(self, state: FleetState, runtime: JobRuntime) -> None:
        self._state = state
        self._runtime = runtime

    def keep(self, snapshot: Snapshot) -> None:
        """Starts, scales and removes jobs as ``snapshot`` says, and notes addresses."""
        wanted = {name: job for name, job in snapshot.fleet.jobs.items() if job.is_ours}
        for name, job in wanted.items():
            spec = JobSpec(name, job.num_replicas, job.memory_bytes, job.cpus)
            try:
                self._runtime.ensure(spec)
            except ServingError as error:
                log.error("event=job_not_kept job=%s problem=%s", name, error)
                continue
            replicas = self._runtime.replicas(name)
            found = tuple(each.address for each in replicas if each.address)
            if found != job.addresses:
                self._state.change(edits.set_addresses(name, found))
        for name in self._runtime.jobs():
            if name not in wanted:
                self._runtime.remove(name)

    def problem(self, name: str) -> str:
        """Returns what is wrong with the replicas of a job; empty if nothing is."""
        found = [each.problem for each in self._runtime.replicas(name)]
        return "; ".join(each for each in found if each)
