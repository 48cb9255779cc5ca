"""Typed pins, on whatever is a manager."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable_handle import ServableHandle, acquire_as, available_as
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest


class OneServable:
    """The smallest manager there is."""

    def __init__(self, servable: object) -> None:
        self.handle: ServableHandle[object] = ServableHandle(
            ServableId("a", 1), servable
        )

    def acquire(self, request: ServableRequest) -> ServableHandle[object]:
        if request.name != "a":
            raise NotFound(f"Servable not found for request: {request}")
        self.handle.pin(None)
        return self.handle

    def list_available_ids(self) -> Sequence[ServableId]:
        return [self.handle.id]


def test_pin_of_the_right_type_is_given_out() -> None:
    """The handle is the manager's own (manager_test NoErrors)."""
    manager = OneServable("text")
    handle = acquire_as(manager, ServableRequest.latest("a"), str)
    assert handle.servable == "text"
    assert handle.num_pins == 1
    handle.release()


def test_pin_of_the_wrong_type_is_given_back() -> None:
    """The caller gets an error and owes nothing (manager_test TypeError)."""
    manager = OneServable("text")
    with pytest.raises(InvalidArgument, match="Servable type doesn't match"):
        acquire_as(manager, ServableRequest.latest("a"), int)
    assert manager.handle.num_pins == 0


def test_what_is_not_there_stays_not_found() -> None:
    """The manager's error is passed on."""
    with pytest.raises(NotFound):
        acquire_as(OneServable("text"), ServableRequest.latest("b"), str)


def test_handles_of_other_types_are_given_back() -> None:
    """Only what fits is kept (GetAvailableServableHandlesWrongType and without)."""
    text, number = OneServable("text"), OneServable(7)
    pinned = [m.acquire(ServableRequest.latest("a")) for m in (text, number)]
    kept = available_as(pinned, str)
    assert kept == {ServableId("a", 1): text.handle}
    assert (text.handle.num_pins, number.handle.num_pins) == (1, 0)
    assert available_as([], str) == {}
