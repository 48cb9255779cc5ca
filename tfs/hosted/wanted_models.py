"""Decides which models each serving job should have loaded while models change places.

Make before break: a model leaves a job only when it answers from every replica of all jobs
on which it is placed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tfs.hosted.fleet import Fleet


def wanted_models(
    fleet: Fleet,
    answering: Mapping[str, Collection[str]],
    reporting: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """Returns the models of each job, by name; pure.

    Args:
        fleet: The wanted state.
        answering: The addresses that answer for each model, by what servers report.
        reporting: The addresses of the servers that report anything.

    """
    wanted: dict[str, list[str]] = {job: [] for job in fleet.jobs}
    job_at = {at: name for name, job in fleet.jobs.items() for at in job.addresses}
    there = {
        name: [each for each in job.addresses if each in reporting]
        for name, job in fleet.jobs.items()
    }
    for name in fleet.models:
        placed = fleet.placement.get(name, ())
        for job in placed:
            if job in wanted:
                wanted[job].append(name)
        at = answering.get(name, ())
        if placed and all(
            there.get(job) and all(each in at for each in there[job]) for job in placed
        ):
            continue
        # This also holds for a model without any place: what serves goes on serving.
        for job in {job_at[each] for each in at}.difference(placed):
            wanted[job].append(name)
    return {job: tuple(sorted(names)) for job, names in wanted.items()}
