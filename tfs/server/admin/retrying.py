"""Which versions to try again by request, and with what result: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tfs.core.errors import FailedPrecondition, NotFound, ServingError, Unavailable
from tfs.core.servable_state import ManagerState, ServableState


def versions_to_retry(
    name: str,
    wanted: int | None,
    failed: Collection[int],
    states: Sequence[ServableState],
    problem: str,
) -> list[int]:
    """Returns which versions of a model to try again, lowest first.

    Args:
        name: The model.
        wanted: The only version to try; None for all versions that failed.
        failed: Versions that have failed and can be tried again.
        states: States of all its versions.
        problem: What is wrong with its base path, "" if nothing.

    Raises:
        FailedPrecondition: No version has failed, or not the wanted one; says what
        state it is in.

        NotFound: Nothing is known of the wanted version.

    """
    if wanted is None:
        if not failed:
            told = f": {problem}" if problem else ""
            raise FailedPrecondition(
                f"no version of {name} that is asked for has failed{told}"
            )
        return sorted(failed)
    if wanted in failed:
        return [wanted]
    state = next((each for each in states if each.id.version == wanted), None)
    if state is None:
        raise NotFound(
            f"version {wanted} of {name} is not known: "
            + (problem or "see its base path and model_version_policy")
        )
    if state.manager_state is ManagerState.END:
        raise FailedPrecondition(
            f"version {wanted} of {name} has ended and is not asked for: see "
            "model_version_policy"
        )
    raise FailedPrecondition(
        f"version {wanted} of {name} has not failed: it is {state.manager_state.name}"
    )


def problem_of_retried(
    versions: Sequence[int], states: Sequence[ServableState]
) -> ServingError | None:
    """Returns the error of the first version that does not answer; None if all do."""
    by_number = {state.id.version: state for state in states}
    for version in versions:
        state = by_number.get(version)
        if state is None:
            return Unavailable(f"version {version} is not asked for any more")
        if state.error is not None:
            return state.error
        if state.manager_state is not ManagerState.AVAILABLE:
            return Unavailable(f"version {version} is {state.manager_state.name}")
    return None
