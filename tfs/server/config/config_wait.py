"""Decides when a new config has taken effect, from states and problems; pure.

A model has settled when one of its versions is available, when all that were tried
have failed or hang, or when its base path cannot be read. (TensorFlow Serving waits for ever
for a model without versions: docs/divergences.md.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tfs.core.errors import Cancelled, DeadlineExceeded, ServingError, Unknown
from tfs.core.servable_state import ManagerState, ServableState

MAX_NAMED: Final = 10
"""Most models, or problems of models, that one sentence names."""

_LONGEST_MARGIN_S: Final = 0.25


def failure_of(
    states: Sequence[ServableState],
    problems: Sequence[str],
    stale: Collection[ServableState] = (),
    *,
    is_current: bool = True,
) -> str | None:
    """Returns why a model will not become available; "" if it is; None if unsettled.

    Args:
        states: States of all its versions.
        problems: What the source says is wrong with its base path.
        stale: States in which versions had ended before the config. They count only if
            nothing else is known, that is, if the config had no effect.
        is_current: Whether states and problems show the effects of the config already.

    """
    if any(state.manager_state is ManagerState.AVAILABLE for state in states):
        return ""
    if any(
        state.manager_state is not ManagerState.END and not state.is_late
        for state in states
    ):
        return None
    late = [
        state
        for state in states
        if state.is_late and state.manager_state is not ManagerState.UNLOADING
    ]
    if late:
        newest = max(late, key=lambda state: state.id.version)
        return f"{newest.id} does not come to an end: {newest.note}"
    failed = [state for state in states if _has_failed(state)]
    fresh = [state for state in failed if state not in stale]
    if fresh:
        return _newest(fresh)
    if not is_current:
        return None
    if problems:
        return _all(problems)
    return _newest(failed) if failed else None


def failure_of_change(
    states: Sequence[ServableState],
    problems: Sequence[str],
    stale: Collection[ServableState] = (),
    *,
    is_current: bool = True,
    outlook: bool | None = True,
) -> str | None:
    """Returns what went wrong with a model's change; "" if nothing; None if unsettled.

    A version from before may serve all the time, so a change is over when nothing more
    follows from it.

    Args:
        states: See ``failure_of``.
        problems: See ``failure_of``.
        stale: See ``failure_of``.
        is_current: See ``failure_of``.
        outlook: Whether there is a version to serve at the path in the config; None if
            there may still come one.

    """
    if not is_current or any(_is_on_its_way(state) for state in states):
        return None
    known = [state.error for state in stale]
    failed = [
        state
        for state in states
        if _has_failed(state)
        and not any(state.error is error for error in known)
        and state.manager_state in (ManagerState.AVAILABLE, ManagerState.END)
    ]
    if failed:
        return _newest(failed)
    if outlook is None:
        return None
    if not outlook and problems:
        return _all(problems)
    return failure_of(states, problems, stale)


def failure_of_primary(
    primary: int,
    answers: int | None,
    states: Sequence[ServableState],
    problems: Sequence[str],
    at_hand: Collection[int],
) -> str | None:
    """Returns why a primary does not answer; "" if it does; None if unsettled.

    It is for a model with which nothing else is wrong. Requests that name no version
    get only the primary. So if it is missing, that is a failure, whatever serves beside
    it.

    Args:
        primary: The version that should answer.
        answers: The version that does answer; None for none.
        states: States of all its versions.
        problems: What the source says is wrong with its base path.
        at_hand: Versions that are under the base path.

    """
    state = next((each for each in states if each.id.version == primary), None)
    if primary == answers:
        return ""
    if state is not None and state.manager_state is ManagerState.AVAILABLE:
        return None  # requests are sent to it in a moment
    if state is not None and _is_on_its_way(state):
        return None
    if state is not None and _has_failed(state):
        why = f"failed: {state.error}"
    elif state is not None and state.is_late:
        why = f"does not come to an end: {state.note}"
    elif primary not in at_hand:
        why = "is not under the base path"
    elif problems:
        why = f"is not loaded: {'; '.join(problems)}"
    else:
        return None  # it is still settling, or still being copied
    meanwhile = (
        "requests that name no version get NOT_FOUND"
        if answers is None
        else f"version {answers} answers meanwhile"
    )
    return f"version {primary}, which is to be the primary, {why}; {meanwhile}"


def _has_failed(state: ServableState) -> bool:
    # A load that was cancelled is not a failure of the version: if the version is
    # wanted again, it is loaded anew when the cancelled load has ended.
    return state.error is not None and not isinstance(state.error, Cancelled)


def _is_on_its_way(state: ServableState) -> bool:
    is_coming = state.manager_state in (ManagerState.START, ManagerState.LOADING)
    return (is_coming or state.is_changing) and not state.is_late


def _all(problems: Sequence[str]) -> str:
    return "; ".join(problems)


def _newest(failed: Sequence[ServableState]) -> str:
    newest = max(failed, key=lambda state: state.id.version)
    return f"{newest.id} due to error: {newest.error}"


def late_error(unsettled: Sequence[str]) -> ServingError:
    """Returns the error for a caller whose deadline comes before the models do."""
    listed = ", ".join(unsettled[:MAX_NAMED])
    more = len(unsettled) - MAX_NAMED
    return DeadlineExceeded(
        f"the configuration is in force, but {len(unsettled)} model(s) are not "
        f"available yet: {listed}" + (f" and {more} more" if more > 0 else "")
    )


def margin_s(remaining_s: float) -> float:
    """Returns how long before a caller's deadline its answer must leave."""
    return min(_LONGEST_MARGIN_S, max(0.0, remaining_s) / 10)


def model_error(why: str) -> ServingError | None:
    """Returns the error for one model that will not become available; None for ""."""
    return Unknown(why) if why else None


def error_of(failures: Mapping[str, str]) -> ServingError | None:
    """Returns the error for models that will not become available; None if there are none."""
    bad = [why for _, why in sorted(failures.items()) if why]
    if not bad:
        return None
    listed = "".join(f"{{{why}}}, " for why in bad)
    return Unknown(f"{len(bad)} model(s) did not become available: {{{listed}}}")
