"""When a new config has taken effect: a pure judgement over states and problems.

A model has settled when one of its versions is available, when all that were tried
have failed, or when its base path cannot be read. (TensorFlow Serving waits for ever
for a model without versions: docs/divergences.md.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs.core.errors import ServingError, Unknown
from tfs.core.servable_state import ManagerState, ServableState


def failure_of(states: Sequence[ServableState], problems: Sequence[str]) -> str | None:
    """Returns why a model will not become available, "" if it is, None if unsettled.

    Args:
        states: Of all its versions.
        problems: What the source says is wrong with its base path.

    """
    if any(state.manager_state is ManagerState.AVAILABLE for state in states):
        return ""
    failed = [state for state in states if state.error is not None]
    moving = [state for state in states if state.manager_state is not ManagerState.END]
    if moving:
        return None
    if failed:
        newest = max(failed, key=lambda state: state.id.version)
        return f"{{{newest.id} due to error: {newest.error}}}"
    if problems:
        return f"{{{'; '.join(problems)}}}"
    return None


def error_of(failures: Mapping[str, str]) -> ServingError | None:
    """Returns the error for models that will not become available, None without any."""
    bad = [why for why in failures.values() if why]
    if not bad:
        return None
    listed = "".join(f"{why}, " for why in bad)
    return Unknown(f"{len(bad)} model(s) did not become available: {{{listed}}}")
