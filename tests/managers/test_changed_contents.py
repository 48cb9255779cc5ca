"""A version whose files change, or that comes back before it has gone."""

from __future__ import annotations

import threading

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.transition_policy import resource_preserving
from managers.versions.version import RetryOptions
from tests.managers.environment import POOLS, Environment, Pools, saving
from tests.present import present
from tfs.core.errors import (
    InvalidArgument,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ManagerState
from tfs.testing.fake_loader import FakeLoader, FakeServable
from tfs.testing.sequencer import Sequencer


def test_changed_files_are_loaded_beside_what_serves(env: Environment) -> None:
    """A version with another loader is reloaded; it is AVAILABLE all the while."""
    sequencer = Sequencer()
    changed = env.loader(
        "S1", 1, value="changed", on_load=lambda: sequencer.reach("load")
    )
    is_inline = env.executors[0].num_threads == 1
    if is_inline:
        sequencer.open("load")
    env.manager.annotate(ServableId("S1", 1), note="runs in process: asked for")
    before = len(env.events())
    env.aspire("S1", 0, changed, reason="1 changed")
    env.manager.step()
    if not is_inline:
        sequencer.wait_reached("load")
        with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
            assert isinstance(servable, FakeServable)
            assert servable.value == 1
        state = present(env.monitor.state(ServableId("S1", 1)))
        assert state.reason.endswith("before serves; replacement: loading")
        assert state.note == "runs in process: asked for"  # as it still does
        sequencer.open("load")
    env.settle()
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "changed"
    states = {s for i, s in env.events()[before:] if i == "S1/1"}
    assert states == {"AVAILABLE"}
    assert env.log.count("unload", ServableId("S1", 1)) == 1
    assert len(env.manager.snapshots("S1")) == 2


def test_changed_files_that_fail_leave_the_loaded_ones_serving(
    env: Environment,
) -> None:
    """A reload that fails shows its error and takes nothing away."""
    bad = env.loader("S1", 1, errors=[InvalidArgument("corrupt")])
    env.aspire("S1", 0, bad)
    env.settle()
    assert env.state("S1", 1) is ManagerState.AVAILABLE
    assert str(env.error("S1", 1)) == "INVALID_ARGUMENT: corrupt"
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == 1
    env.aspire("S1", 0, env.loader("S1", 1, value="good"))
    env.settle()
    assert env.error("S1", 1) is None
    with env.manager.acquire(ServableRequest.specific("S1", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "good"


def test_contents_that_were_replaced_go_though_the_next_ones_fail() -> None:
    """Files that change again while they load leave only the newest good contents."""
    env = Environment(POOLS[0])
    env.aspire("m", env.loader("m", 1, value="first"))
    env.settle()
    bad = env.loader("m", 1, errors=[InvalidArgument("corrupt")])
    second = env.loader("m", 1, value="second", on_load=lambda: env.aspire("m", bad))
    env.aspire("m", second)
    env.settle()
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: corrupt"
    with env.manager.acquire(ServableRequest.specific("m", 1)) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "second"
    assert env.log.resident == [ServableId("m", 1)]


def test_changed_files_under_resource_preserving_unload_first(
    env: Environment,
) -> None:
    """Two generations of a version count as two: never both loaded."""
    env.manager.set_transition_policy("S1", resource_preserving)
    env.aspire("S1", 1)
    env.settle()
    env.log.max_num_resident.clear()
    before = len(env.events())
    env.aspire("S1", env.loader("S1", 1, value="changed"))
    env.settle()
    assert env.log.max_num_resident["S1"] == 1
    assert [s for _, s in env.events()[before:]] == [
        "AVAILABLE",  # changed, says its reason
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "AVAILABLE",
    ]


def test_a_note_on_old_contents_hides_nothing_of_the_new_ones() -> None:
    """A note on old contents hides neither the progress nor the fault of new ones."""
    env = Environment(POOLS[3])
    env.aspire("m", 1)
    env.settle()
    sequencer = Sequencer()
    bad = env.loader(
        "m",
        1,
        errors=[InvalidArgument("damaged")],
        on_load=lambda: sequencer.reach("load"),
    )
    env.aspire("m", bad)
    env.manager.step()
    sequencer.wait_reached("load", 1)
    env.manager.annotate(ServableId("m", 1), note="left the loop")
    state = present(env.monitor.state(ServableId("m", 1)))
    assert state.manager_state is ManagerState.AVAILABLE
    assert state.is_changing
    sequencer.open("load")
    env.settle()
    env.manager.annotate(ServableId("m", 1), note="and came back")
    state = present(env.monitor.state(ServableId("m", 1)))
    assert (str(state.error), state.is_changing) == ("INVALID_ARGUMENT: damaged", False)


def test_a_note_of_new_contents_is_not_shown_on_old_ones() -> None:
    """What a load finds out holds once its contents serve, and never if they fail."""
    env = Environment(POOLS[3])
    env.aspire("m", 1)
    env.settle()
    id_ = ServableId("m", 1)
    env.manager.annotate(id_, note="runs inline", resident_bytes=1)

    def note_of(loader: FakeLoader) -> str:
        env.aspire("m", loader)
        env.settle()
        state = present(env.monitor.state(id_))
        assert {each.split(":")[0] for each in seen} <= {"runs inline"}
        seen.clear()
        return f"{state.note} {state.resident_bytes}"

    seen: list[str] = []

    def look(number: int) -> None:
        env.manager.annotate(
            id_, note=f"runs in {number}", resident_bytes=number, is_loading=True
        )
        env.manager.annotate(id_, note="runs inline: quickly")
        seen.append(present(env.monitor.state(id_)).note)

    bad = env.loader(
        "m", 1, errors=[InvalidArgument("damaged")], on_load=lambda: look(2)
    )
    assert note_of(bad) == "runs inline: quickly 1"
    good = env.loader("m", 1, on_load=lambda: look(3))
    assert note_of(good) == "runs in 3 3"


class SameFiles(FakeLoader):
    """A loader that knows which files it loads: equal to others of the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameFiles) and other.id == self.id

    __hash__ = None  # type: ignore[assignment]


def test_version_that_comes_back_in_time_goes_on_serving(empty: Environment) -> None:
    """A rollback to what still serves loads nothing, if the loader is the same."""
    first = SameFiles(ServableId("S3", 1), log=empty.log)
    empty.aspire("S3", first)
    empty.settle()
    bad = empty.loader("S3", 2, errors=[InvalidArgument("corrupt")])
    empty.aspire("S3", bad)
    empty.settle()
    assert empty.available("S3") == (1,)
    again = SameFiles(ServableId("S3", 1), log=empty.log)
    empty.aspire("S3", again, reason="edit: specific(1)")
    empty.settle()
    assert empty.available("S3") == (1,)
    assert (first.num_loads, first.num_unloads, again.num_loads) == (1, 0, 0)
    empty.aspire("S3")
    empty.settle()
    assert first.num_unloads == 1


def test_old_contents_come_back_for_new_ones_that_fail() -> None:
    """Replaced contents are unloaded first, too; the state says why the old ones serve."""
    env = saving()
    before = len(env.events())
    env.aspire("m", env.loader("m", 1, errors=[InvalidArgument("no such device")]))
    env.settle()
    assert env.available("m") == (1,)
    assert env.state("m", 1) is ManagerState.AVAILABLE
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: no such device"
    assert [state for _, state in env.events()[before:]] == [
        "AVAILABLE",  # changed, says its reason
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "END",
        "START",  # what it was before comes back, like any other
        "LOADING",
        "AVAILABLE",
    ]
    env.aspire("m", env.loader("m", 1, value="mended"))
    env.settle()
    assert env.error("m", 1) is None
    with env.manager.acquire(ServableRequest.latest("m")) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "mended"
    assert env.log.max_num_resident["m"] == 1


@pytest.mark.parametrize("what", ["load", "unload"])
def test_a_version_replaced_while_its_old_self_hangs_is_loaded(what: str) -> None:
    """A dead mount delays the old contents, not the new ones under the same number."""
    env = Environment(Pools(1, 1))
    sequencer = Sequencer()
    hang = {f"on_{what}": lambda: sequencer.reach("it")}
    env.aspire("m", env.loader("m", 1, **hang))
    env.manager.step()
    if what == "unload":
        env.settle()
        env.aspire("m")
        env.manager.step()
    sequencer.wait_reached("it", 1)
    env.aspire("m", env.loader("m", 1, value="new"))
    due_s = present(env.manager.step())
    assert env.available("m") == ()
    env.clock.advance(due_s - env.clock.now())
    available = threading.Event()
    env.monitor.listen(
        lambda e: (
            available.set() if e.event.manager_state is ManagerState.AVAILABLE else None
        )
    )
    env.manager.step()
    assert available.wait(10.0)
    with env.manager.acquire(ServableRequest.latest("m")) as servable:
        assert isinstance(servable, FakeServable)
        assert servable.value == "new"
    before = len(env.events())
    sequencer.open("it")
    env.settle()
    assert env.events()[before:] == []
    assert env.error("m", 1) is None


@pytest.mark.parametrize("is_pinned", [True, False])
def test_what_took_a_versions_place_is_told_of_alone(is_pinned: bool) -> None:
    """Pins on the old contents hide nothing of the new ones, and nothing more is
    published of them when they go.
    """
    env = Environment(POOLS[0])
    env.aspire("m", 1)
    env.settle()
    old = env.manager.acquire(ServableRequest.latest("m"))
    env.aspire("m", env.loader("m", 1, value="new"))
    env.settle()
    new = env.manager.acquire(ServableRequest.latest("m")) if is_pinned else None
    before = len(env.events())
    env.aspire("m")
    env.settle()
    if new is not None:
        assert env.events()[before:] == [("m/1", "UNLOADING")]
    old.release()
    env.settle()
    if new is not None:
        assert env.events()[before:] == [("m/1", "UNLOADING")]
        new.release()
        env.settle()
    assert env.events()[before:] == [("m/1", "UNLOADING"), ("m/1", "END")]


def test_nothing_takes_a_versions_place_before_its_end_is_told() -> None:
    """A version's end is told, and its successor begins, after its memory is free."""
    sequencer = Sequencer()
    env = Environment(
        POOLS[3],
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=0),
            release_memory=lambda: sequencer.reach("release"),
        ),
    )
    env.aspire("m", 1)
    env.settle()
    before = len(env.events())
    env.aspire("m")
    while not sequencer.num_reached("release"):
        env.manager.step()
    env.aspire("m", env.loader("m", 1, value="new"))
    env.manager.step()
    env.executors[0].wait_idle()  # type: ignore[attr-defined]
    assert [state for _, state in env.events()[before:]] == ["UNLOADING"]
    sequencer.open("release")
    env.settle()
    assert [state for _, state in env.events()[before:]] == [
        "UNLOADING",
        "END",
        "START",
        "LOADING",
        "AVAILABLE",
    ]
