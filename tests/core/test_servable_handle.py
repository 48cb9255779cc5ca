"""Pins, and the hand-shake between readers and the unloader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable_handle import ServableHandle, acquire_as, available_as
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest

ID = ServableId("a", 1)


def test_handle_gives_the_servable_and_its_id() -> None:
    """What is pinned is what was loaded (ServableHandle PointerOps, Id)."""
    handle = ServableHandle(ID, "model")
    assert (handle.id, handle.servable, handle.num_pins) == (ID, "model", 0)
    handle.pin(None)
    with handle as servable:
        assert servable == "model"
        assert handle.num_pins == 1
    assert handle.num_pins == 0


def test_with_block_releases_when_it_raises() -> None:
    """A failing request does not pin a model for ever."""
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    with pytest.raises(ZeroDivisionError), handle:
        _ = 1 / 0
    assert handle.num_pins == 0


def test_pins_are_counted() -> None:
    """Every pin is owed one release, and only one."""
    handle = ServableHandle(ID, "model")
    for _ in range(3):
        handle.pin(None)
    assert handle.num_pins == 3
    for _ in range(3):
        handle.release()
    with pytest.raises(IndexError):
        handle.release()


def test_retired_handle_tells_when_the_last_pin_is_gone() -> None:
    """Whoever unloads is woken by the release that may be the last."""
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    handle.pin(None)
    woken: list[int] = []
    handle.retire(lambda: woken.append(handle.num_pins))
    assert not handle.live
    handle.release()
    assert woken == []
    handle.release()
    assert woken == [0]


def test_release_looked_up_before_retiring_tells_nobody() -> None:
    """Such a release notifies nobody, so the unloader must look at the pins again."""
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    release = handle.release
    woken: list[int] = []
    handle.retire(lambda: woken.append(handle.num_pins))
    release()
    assert (handle.num_pins, woken) == (0, [])


def test_dropped_handle_keeps_no_servable_alive() -> None:
    """Whoever still holds the object holds no model."""
    handle = ServableHandle(ID, "model")
    handle.retire(lambda: None)
    handle.drop()
    handle.drop()
    with pytest.raises(AttributeError):
        _ = handle.servable


def test_repr_shows_state_and_pins() -> None:
    """Logs show which handle delays an unload."""
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    assert repr(handle) == "<ServableHandle a/1 live pins=1>"
    handle.retire(lambda: None)
    assert "retired" in repr(handle)


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
