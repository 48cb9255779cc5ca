"""Decides which models each serving job should have loaded while models change places.

Make before break: a model leaves a job only when it answers from every replica of all jobs
on which it is placed.
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.hosted.fleet import Fleet


def wanted_models(
    fleet: Fleet,
    answers_from_some: Callable[[str, str], bool],
    answers_from_all: Callable[[str, str], bool],
) -> dict[str, tuple[str, ...]]:
    """Returns the models of each job, by name; pure.

    Args:
        fleet: The wanted state.
        answers_from_some: Whether a job, in any of its replicas, answers for a model.
        answers_from_all: Whether a job, in all of its replicas that answer at all and at
            least in one, answers for a model.

    """
    wanted: dict[str, list[str]] = {job: [] for job in fleet.jobs}
    for name in fleet.models:
        placed = fleet.placement.get(name, ())
        for job in placed:
            if job in wanted:
                wanted[job].append(name)
        if placed and all(answers_from_all(job, name) for job in placed):
            continue
        for job in wanted:
            # This also holds for a model without any place: what serves goes on
            # serving.
            if job not in placed and answers_from_some(job, name):
                wanted[job].append(name)
    return {job: tuple(sorted(names)) for job, names in wanted.items()}
