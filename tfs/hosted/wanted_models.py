"""Decides which models each serving job should have loaded while models change places.

Make before break: a model leaves a job only when it answers from as many other jobs as
it should be on, or from all jobs on which it is placed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tfs.hosted.fleet import Fleet


def wanted_models(
    fleet: Fleet, answering: Mapping[str, Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """Returns the models of each job, by address; pure.

    Args:
        fleet: The wanted state.
        answering: The models that answer from each job now.

    """
    wanted: dict[str, list[str]] = {address: [] for address in fleet.jobs}
    for name in fleet.models:
        placed = fleet.placement.get(name, ())
        for address in placed:
            if address in wanted:
                wanted[address].append(name)
        if all(name in answering.get(address, ()) for address in placed) and placed:
            continue
        for address in wanted:
            # This also holds for a model without any place: what serves goes on
            # serving.
            if address not in placed and name in answering.get(address, ()):
                wanted[address].append(name)
    return {address: tuple(sorted(names)) for address, names in wanted.items()}
