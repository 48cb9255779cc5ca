"""tfs.server.config.waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfs.core.errors import Cancelled, DataLoss
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.config.waiting import (
    error_of,
    failure_of,
    failure_of_change,
    failure_of_primary,
)

LOST = DataLoss("model.pt is damaged")


def state(
    version: int, manager_state: ManagerState, error: DataLoss | None = None
) -> ServableState:
    return ServableState(ServableId("digits", version), manager_state, error)


@pytest.mark.parametrize(
    ("states", "problems", "expected"),
    [
        ([], [], None),
        ([], ["base path /x does not exist"], "base path /x does not exist"),
        ([state(1, ManagerState.LOADING)], ["base path is gone"], None),
        ([state(1, ManagerState.AVAILABLE)], [], ""),
        ([state(2, ManagerState.END, LOST), state(1, ManagerState.AVAILABLE)], [], ""),
        ([state(2, ManagerState.END, LOST), state(1, ManagerState.LOADING)], [], None),
        (
            [state(2, ManagerState.END, LOST), state(1, ManagerState.END, LOST)],
            [],
            "{name: digits version: 2} due to error: DATA_LOSS: model.pt is damaged",
        ),
    ],
)
def test_a_model_settles_when_nothing_more_can_happen(
    states: list[ServableState], problems: list[str], expected: str | None
) -> None:
    """One available version is success; failure is when nothing is moving any more."""
    assert failure_of(states, problems) == expected


def test_a_model_that_hangs_keeps_nobody_waiting() -> None:
    """A server is ready without it, and a reload answers; what unloads is no matter."""
    late = replace(state(1, ManagerState.LOADING), note="it hangs", is_late=True)
    assert failure_of([late], []) == (
        "{name: digits version: 1} does not come to an end: it hangs"
    )
    assert failure_of([state(2, ManagerState.START), late], []) is None
    assert failure_of([state(2, ManagerState.AVAILABLE), late], []) == ""
    leaving = replace(state(1, ManagerState.UNLOADING), is_late=True)
    assert failure_of([state(2, ManagerState.END, LOST), leaving], []) == BLAME


ENDED = state(2, ManagerState.END, LOST)
BLAME = "{name: digits version: 2} due to error: DATA_LOSS: model.pt is damaged"


@pytest.mark.parametrize(
    ("states", "problems", "stale", "is_current", "expected"),
    [
        ([ENDED], [], [], False, BLAME),
        ([ENDED], [], [ENDED], False, None),
        ([ENDED], [], [ENDED], True, BLAME),
        ([ENDED], ["no version"], [ENDED], False, None),
        ([ENDED], ["no version"], [ENDED], True, "no version"),
        ([ENDED], ["no version"], [], True, BLAME),
        ([], ["no version"], [], False, None),
        ([ENDED, state(1, ManagerState.START)], [], [ENDED], True, None),
        ([ENDED, state(1, ManagerState.AVAILABLE)], [], [ENDED], False, ""),
        ([state(1, ManagerState.END)], [], [], True, None),
    ],
)
def test_what_ended_before_the_config_counts_last(
    states: list[ServableState],
    problems: list[str],
    stale: list[ServableState],
    is_current: bool,
    expected: str | None,
) -> None:
    """An old failure is an answer only once the config has had its effect."""
    assert failure_of(states, problems, stale, is_current=is_current) == expected


def test_no_failure_is_no_error() -> None:
    """A reload whose models are all available succeeds."""
    assert error_of({"digits": ""}) is None


def test_failures_are_listed_as_upstream_does() -> None:
    """The message counts the models and says of each what went wrong."""
    error = error_of({"a": "bad", "b": "", "c": "worse"})
    assert str(error) == (
        "UNKNOWN: 2 model(s) did not become available: {{bad}, {worse}, }"
    )


SERVES = state(1, ManagerState.AVAILABLE)
CHANGING = replace(SERVES, is_changing=True)
FAULTY = replace(SERVES, error=LOST)


@pytest.mark.parametrize(
    ("states", "stale", "is_current", "expected"),
    [
        ([SERVES], [], False, None),
        ([SERVES], [], True, ""),
        ([SERVES, state(2, ManagerState.START)], [], True, None),
        ([SERVES, state(2, ManagerState.LOADING)], [], True, None),
        ([SERVES, state(2, ManagerState.UNLOADING)], [], True, ""),
        ([CHANGING], [], True, None),
        ([replace(CHANGING, is_late=True)], [], True, ""),
        ([FAULTY], [], True, BLAME.replace("2", "1")),
        ([replace(FAULTY, note="it moved")], [FAULTY], True, ""),
        ([ENDED, SERVES], [], True, BLAME),
        ([ENDED, SERVES], [ENDED], True, ""),
        ([ENDED], [ENDED], True, BLAME),
    ],
)
def test_a_change_is_over_when_nothing_more_comes_of_it(
    states: list[ServableState],
    stale: list[ServableState],
    is_current: bool,
    expected: str | None,
) -> None:
    """What was served before says nothing of a change; what fails of it is told."""
    assert failure_of_change(states, [], stale, is_current=is_current) == expected


@pytest.mark.parametrize(
    ("outlook", "problems", "expected"),
    [
        (True, ["version 3 is not served: it is being written"], ""),
        (None, ["version 3 is not served: it is being written"], None),
        (False, ["base path /x does not exist"], "base path /x does not exist"),
    ],
)
def test_what_serves_from_before_hides_no_wrong_base_path(
    outlook: bool | None, problems: list[str], expected: str | None
) -> None:
    """A model that moved to where nothing lies is told, though its old version answers."""
    assert failure_of_change([SERVES], problems, outlook=outlook) == expected


def test_a_load_that_was_given_up_is_no_failure() -> None:
    """A model that comes back while its former load still runs is loaded after that."""
    given_up = ServableState(
        ServableId("digits", 1), ManagerState.END, Cancelled("not wanted")
    )
    assert failure_of([given_up], []) is None
    assert failure_of_change([given_up, SERVES], []) == ""
    assert failure_of([given_up], ["no version"]) == "no version"
    assert failure_of([given_up, ENDED], []) == BLAME


@pytest.mark.parametrize(
    ("states", "problems", "at_hand", "expected"),
    [
        ([state(2, ManagerState.AVAILABLE)], [], [2], None),
        ([state(2, ManagerState.LOADING)], [], [2], None),
        ([], [], [2], None),
        (
            [],
            ["version 2 is no version"],
            [2],
            "is not loaded: version 2 is no version",
        ),
        ([], [], [1], "is not under the base path"),
        ([state(2, ManagerState.END, LOST)], [], [2], f"failed: {LOST}"),
        (
            [replace(state(2, ManagerState.LOADING), note="it hangs", is_late=True)],
            [],
            [2],
            "does not come to an end: it hangs",
        ),
    ],
)
def test_a_primary_that_does_not_answer_says_why(
    states: list[ServableState],
    problems: list[str],
    at_hand: list[int],
    expected: str | None,
) -> None:
    """A wait for a primary says why it does not answer, and what answers instead."""
    said = failure_of_primary(2, 1, states, problems, at_hand)
    if not expected:
        assert said == expected
    else:
        assert said == (
            f"version 2, which is to be the primary, {expected}; "
            "version 1 answers meanwhile"
        )
