"""Look-ups, swaps and the hand-shake with the unloader."""

from __future__ import annotations

import pytest

from managers.serving_map import Handle, ServingMap, retire
from tfs.core.errors import NotFound
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest


def handle(name: str, version: int) -> Handle:
    return ServableHandle(ServableId(name, version), f"{name}@{version}")


def filled(*versions: int) -> tuple[ServingMap, dict[int, Handle]]:
    serving_map = ServingMap()
    handles = {version: handle("a", version) for version in versions}
    for each in handles.values():
        serving_map.publish(each)
    return serving_map, handles


def test_acquire_pins_the_highest_version() -> None:
    """Latest is the highest version, whatever the order of publication."""
    serving_map, handles = filled(2, 9, 5)
    pinned = serving_map.acquire("a")
    assert pinned is handles[9]
    assert pinned.num_pins == 1
    pinned.release()
    assert pinned.num_pins == 0


def test_version_zero_can_be_the_latest() -> None:
    """ServableHandleLatestVersionIsZero: 0 is a version like any other."""
    serving_map, handles = filled(0)
    assert serving_map.acquire("a") is handles[0]
    assert serving_map.acquire_version("a", 0) is handles[0]


def test_a_map_is_empty_while_nothing_can_be_requested() -> None:
    """A version that others still pin cannot be requested any more."""
    assert ServingMap().is_empty
    serving_map, handles = filled(1, 2)
    handles[2].pin(None)
    for version in (1, 2):
        assert not serving_map.is_empty
        retire(serving_map, handles[version], lambda: None)
    assert serving_map.is_empty


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ServableRequest.latest("b"), "Latest(b)"),
        (ServableRequest.earliest("b"), "Earliest(b)"),
        (ServableRequest.specific("b", 1), "Specific(b, 1)"),
        (ServableRequest.specific("a", 7), "Specific(a, 7)"),
    ],
)
def test_absent_version_is_not_found(request_: ServableRequest, message: str) -> None:
    """NOT_FOUND repeats the request in TensorFlow Serving's words.

    ServableHandleNotFoundMissingLoaderName, ServableHandleNotFoundMissingVersion upstream.
    """
    serving_map, _ = filled(1)
    with pytest.raises(NotFound) as caught:
        serving_map.acquire_request(request_)
    assert caught.value.message == f"Servable not found for request: {message}"


def test_withdrawn_version_gives_way_to_the_next_lower() -> None:
    """UpdateServingMapServableHandleLatest: Latest moves on while the newest unloads."""
    serving_map, handles = filled(1, 2)
    serving_map.withdraw(handles[2])
    assert serving_map.acquire("a") is handles[1]
    serving_map.withdraw(handles[1])
    assert serving_map.list_ids() == []
    with pytest.raises(NotFound):
        serving_map.acquire("a")


def test_republished_version_replaces_and_the_old_one_cannot_withdraw_it() -> None:
    """A reloaded version takes the place of the old one under the same number."""
    serving_map, handles = filled(1)
    newer = handle("a", 1)
    assert serving_map.publish(newer) is handles[1]
    serving_map.withdraw(handles[1])
    assert serving_map.acquire_version("a", 1) is newer


def test_pinned_handle_delays_its_own_version_only() -> None:
    """Per-servable pins: a handle held on one model does not hold up another."""
    serving_map, handles = filled(1)
    other = handle("b", 1)
    serving_map.publish(other)
    held = serving_map.acquire("a")
    assert retire(serving_map, other, lambda: None) is True
    woken: list[int] = []
    assert retire(serving_map, handles[1], lambda: woken.append(1)) is False
    held.release()
    assert woken == [1]
    assert handles[1].num_pins == 0


def test_reader_that_pinned_a_retired_handle_looks_again() -> None:
    """The hand-shake: pin, then look whether it lives; back out if it does not."""
    serving_map, handles = filled(1, 2)
    old = handles[2]
    newer = handle("a", 3)
    real_pin = old.pin

    def pin_late(item: None) -> None:
        # What an unloader does between a reader's look-up and its pin.
        serving_map.publish(newer)
        retire(serving_map, old, lambda: None)
        old.pin = real_pin
        real_pin(item)

    old.pin = pin_late
    assert serving_map.acquire("a") is newer
    assert old.num_pins == 0


def test_published_table_is_never_changed() -> None:
    """Readers may keep a table: writers build another one."""
    serving_map, handles = filled(1)
    before = serving_map._streams
    kept = dict(before)
    serving_map.publish(handle("a", 2))
    serving_map.withdraw(handles[1])
    assert before == kept
    assert serving_map._streams is not before


def test_acquire_all_pins_everything_that_lives() -> None:
    """GetAvailableServableHandles: each available version once, in order."""
    serving_map, handles = filled(2, 1)
    serving_map.publish(handle("b", 1))
    handles[2].retire(lambda: None)
    pinned = serving_map.acquire_all()
    assert [h.id.slashed for h in pinned] == ["a/1", "b/1"]
    assert all(h.num_pins == 1 for h in pinned)
    assert handles[2].num_pins == 0


def test_versions_are_listed_in_order() -> None:
    """Listings are sorted by name and version."""
    serving_map, _ = filled(3, 1)
    assert serving_map.versions("a") == (1, 3)
    assert serving_map.versions("b") == ()
    assert serving_map.latest_version("a") == 3
    assert serving_map.latest_version("b") is None
