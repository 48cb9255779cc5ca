"""Pins, and the hand-shake between readers and the unloader."""

from __future__ import annotations

import threading

import pytest

from tfs.core.servable_handle import LAST_RECHECK_S, ServableHandle
from tfs.core.servable_id import ServableId
from tfs.testing.fake_clock import FakeClock

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


def test_unpinned_handle_is_told_without_waiting() -> None:
    """Nothing to wait for: at once."""
    handle = ServableHandle(ID, "model")
    handle.retire()
    assert handle.wait_unpinned(FakeClock(), 0.0)


def test_wait_ends_with_the_last_release() -> None:
    """A blocked unloader goes on when the reader lets go."""
    clock = FakeClock()
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    handle.retire()
    outcome: list[bool] = []
    thread = threading.Thread(
        target=lambda: outcome.append(handle.wait_unpinned(clock))
    )
    thread.start()
    clock.block_until_sleepers(1)
    handle.release()
    thread.join()
    assert outcome == [True]


def test_wait_ends_at_its_deadline() -> None:
    """A pin that stays is not waited for longer than was said."""
    clock = FakeClock()
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    handle.retire()
    assert handle.wait_unpinned(clock, clock.now()) is False
    handle.release()


def test_release_looked_up_before_retiring_is_noticed_by_looking_again() -> None:
    """It wakes nobody, so the waiter looks again by the clock."""
    clock = FakeClock()
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    release = handle.release
    handle.retire()
    thread = threading.Thread(target=lambda: handle.wait_unpinned(clock))
    thread.start()
    clock.block_until_sleepers(1)
    release()
    while thread.is_alive():
        clock.advance(LAST_RECHECK_S)
        thread.join(0.01)
    assert handle.num_pins == 0


def test_dropped_handle_keeps_no_servable_alive() -> None:
    """Whoever still holds the object holds no model."""
    handle = ServableHandle(ID, "model")
    handle.retire()
    handle.drop()
    handle.drop()
    with pytest.raises(AttributeError):
        _ = handle.servable


def test_repr_shows_state_and_pins() -> None:
    """Logs show who holds an unload up."""
    handle = ServableHandle(ID, "model")
    handle.pin(None)
    assert repr(handle) == "<ServableHandle a/1 live pins=1>"
    handle.retire()
    assert "retired" in repr(handle)


@pytest.mark.slow
def test_no_reader_ever_uses_what_was_destroyed() -> None:
    """Readers and an unloader race; a pinned, live servable is never destroyed."""

    class Model:
        is_alive = True

    current = ServableHandle(ID, Model())
    stop = threading.Event()
    faults: list[str] = []
    clock = FakeClock()  # never advanced: only releases may wake the unloader

    def read() -> None:
        while not stop.is_set():
            handle = current
            handle.pin(None)
            if handle.live:
                try:
                    if not handle.servable.is_alive:
                        faults.append("used after destruction")
                except AttributeError:
                    faults.append("used after being dropped")
            handle.release()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(300):
        old, current = current, ServableHandle(ID, Model())
        old.retire()
        while not old.wait_unpinned(clock, clock.now()):
            pass
        old.servable.is_alive = False
        old.drop()
    stop.set()
    for reader in readers:
        reader.join()
    assert faults == []
