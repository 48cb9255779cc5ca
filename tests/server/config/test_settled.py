"""tfs.server.config.waiting: when a model has settled, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfs.core.errors import DataLoss
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.config.waiting import ModelLook, error_of, failure_of

LOST = DataLoss("model.pt is damaged")
START, LOADING, AVAILABLE, UNLOADING, END = ManagerState


def state(
    version: int, manager_state: ManagerState, error: DataLoss | None = None
) -> ServableState:
    return ServableState(ServableId("digits", version), manager_state, error)


FAILED = state(2, END, LOST)
BLAME = "{name: digits version: 2} due to error: DATA_LOSS: model.pt is damaged"
SERVES = state(1, AVAILABLE)
FAULTY = replace(SERVES, error=LOST)
CHANGING = replace(SERVES, is_changing=True)
HANGS = replace(state(3, LOADING), note="it hangs", is_late=True)
HANGING = "{name: digits version: 3} does not come to an end: it hangs"


def look(
    *states: ServableState,
    problems: str = "",
    failed: tuple[int, ...] = (2,),
    outlook: bool | None = True,
    at_hand: tuple[int, ...] = (1, 2, 3),
    primary: int | None = None,
    answers: int | None = None,
) -> ModelLook:
    told = (problems,) if problems else ()
    return ModelLook(states, failed, told, at_hand, outlook, primary, answers)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(), None),
        (look(problems="/x does not exist", outlook=False), "/x does not exist"),
        (look(problems="it is being written", outlook=None), "it is being written"),
        (look(state(1, LOADING), problems="base path is gone"), None),
        (look(SERVES), ""),
        (look(FAILED, SERVES), ""),
        (look(FAILED, state(1, LOADING)), None),
        (look(FAILED), BLAME),
        (look(FAILED, problems="version 3 is not there"), BLAME),
        (
            look(FAILED, problems="/x does not exist", outlook=False),
            "/x does not exist",
        ),
        # What failed and is not asked for any more says nothing.
        (look(FAILED, failed=()), None),
        (look(state(1, END)), None),
        # What hangs keeps nobody waiting; what unloads is no matter.
        (look(HANGS), HANGING),
        (look(state(2, START), HANGS), None),
        (look(SERVES, HANGS), ""),
        (look(FAILED, replace(state(1, UNLOADING), is_late=True)), BLAME),
    ],
)
def test_a_model_settles_when_nothing_more_can_happen(
    seen: ModelLook, expected: str | None
) -> None:
    """One available version is success; failure is when nothing is moving any more."""
    assert failure_of(seen) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(SERVES), ""),
        (look(SERVES, state(2, START)), None),
        (look(SERVES, state(2, LOADING)), None),
        (look(SERVES, state(2, UNLOADING)), ""),
        (look(CHANGING), None),
        (look(replace(CHANGING, is_late=True)), ""),
        (look(FAULTY, failed=(1,)), BLAME.replace("2", "1")),
        (look(FAILED, SERVES), BLAME),
        (look(FAILED, SERVES, failed=()), ""),
        # What serves from before hides no wrong base path.
        (look(SERVES, problems="version 3 is being written"), ""),
        (look(SERVES, problems="version 3 is being written", outlook=None), None),
        (
            look(SERVES, problems="/x does not exist", outlook=False),
            "/x does not exist",
        ),
    ],
)
def test_a_change_is_over_when_nothing_more_comes_of_it(
    seen: ModelLook, expected: str | None
) -> None:
    """What was served before says nothing of a change; what fails of it is told."""
    assert failure_of(seen, is_changed=True) == expected
    assert failure_of(seen, is_changed=True, is_current=False) is None


def test_what_is_not_taken_in_yet_says_nothing() -> None:
    """An old failure is an answer only once the config has had its effect."""
    for seen in (look(FAILED), look(problems="no version", outlook=False)):
        assert failure_of(seen, is_current=False) is None
    assert failure_of(look(FAILED, SERVES), is_current=False) == ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(SERVES, state(2, AVAILABLE)), None),
        (look(SERVES, state(2, LOADING)), None),
        (look(SERVES), None),
        (
            look(SERVES, problems="version 2 is no version"),
            "is not loaded: version 2 is no version",
        ),
        (look(SERVES, at_hand=(1,)), "is not under the base path"),
        (look(SERVES, FAILED), f"failed: {LOST}"),
        (
            look(SERVES, replace(HANGS, id=ServableId("digits", 2))),
            "does not come to an end: it hangs",
        ),
    ],
)
def test_a_primary_that_does_not_answer_says_why(
    seen: ModelLook, expected: str | None
) -> None:
    """A wait for a primary says why it does not answer, and what answers instead."""
    said = failure_of(replace(seen, primary=2, answers=1))
    if expected is None:
        assert said is None
    else:
        assert said == (
            f"version 2, which is to be the primary, {expected}; "
            "version 1 answers meanwhile"
        )
    assert failure_of(replace(seen, primary=2, answers=2)) == ""


def test_a_model_on_demand_has_settled_while_nobody_asks() -> None:
    """It answers: its first request loads it."""
    assert failure_of(replace(look(), is_on_demand=True)) == ""
    loading = replace(look(state(1, LOADING)), is_on_demand=True)
    assert failure_of(loading) is None
    assert failure_of(replace(look(), is_on_demand=True), is_current=False) is None


def test_failures_are_listed_as_upstream_does() -> None:
    """The message counts the models and says of each what went wrong."""
    error = error_of({"a": "bad", "b": "", "c": "worse"})
    assert str(error) == (
        "UNKNOWN: 2 model(s) did not become available: {{bad}, {worse}, }"
    )
    assert error_of({"digits": ""}) is None
