"""Makes the jobs that run here what the fleet wants, and tells it where they listen."""

from __future__ import annotations

from tfs.hosted import edits
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.jobs.job_runtime import JobSpec
from tfs.hosted.jobs.running_jobs import RunningJobs
from tfs.hosted.snapshot import Snapshot


class JobKeeper:
    """Follows the fleet. For one thread at a time; blocks on the store."""

    def __init__(self, state: FleetState, jobs: RunningJobs) -> None:
        self._state = state
        self._jobs = jobs

    def keep(self, snapshot: Snapshot) -> None:
        """Has the jobs run that ``snapshot`` says, and notes where they were seen."""
        wanted = {name: job for name, job in snapshot.fleet.jobs.items() if job.is_ours}
        self._jobs.keep(
            JobSpec(name, job.num_replicas, job.memory_bytes, job.cpus)
            for name, job in wanted.items()
        )
        for name, replicas in self._jobs.seen.items():
            found = tuple(each.address for each in replicas if each.address)
            if name in wanted and found != wanted[name].addresses:
                self._state.change(edits.set_addresses(name, found))
