"""A fleet in its store: read along, changed as a whole, requests that act once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.hosted.fleets import MIB, model, server, state_in
from tests.hosted.transactions import acquire, history, transact
from tests.threads import run_together
from tfs.core.errors import (
    Aborted,
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.hosted import edits
from tfs.hosted.fleet import Fleet, Job
from tfs.hosted.fleet_state import Edit, FleetState
from tfs.hosted.reports import JobSighting, ReplicaSighting
from tfs.hosted.snapshot import FleetCopy, Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb

JOB = Job("a", 100 * MIB, "gpu", 2, 1, True, ("unix:/a", "unix:/b"), is_down=True)
MODEL = replace(model("m", 3, 1, 4), partition="gpu", num_replicas=2, placed=("a",))
FLEET = Fleet({"a": JOB}, {"m": MODEL})


@pytest.fixture
def state(tmp_path: Path) -> FleetState:
    return state_in(tmp_path)


def add(name: str) -> Edit:
    return edits.add_model(model(name))


def named(
    request_id: str, model: str = "", if_generation: int | None = None
) -> pb.AddModelRequest:
    edit = pb.Edit(request_id=request_id, if_generation=if_generation)
    return pb.AddModelRequest(model=model, edit=edit)


def why(state: FleetState, name: str) -> list[str]:
    return [each.why for each in history(state.store, 9, "model", name)]


def test_what_was_written_is_read(state: FleetState, tmp_path: Path) -> None:
    """Every field survives, for who reads along and for who begins."""
    assert state.read() == Snapshot()
    along = state_in(tmp_path)
    along.read()
    state.change(Edit("first", lambda _: FLEET))
    for other in (state, along, state_in(tmp_path)):
        assert (other.read().revision, other.read().fleet) == (1, FLEET)
    state.change(Edit("all gone", lambda _: Fleet()))
    assert along.read().fleet == Fleet()


def test_an_edit_that_raises_or_changes_nothing_is_no_revision(
    state: FleetState,
) -> None:
    """A refused edit leaves the state as it was."""
    state.change(Edit("first", lambda _: FLEET))

    def refuse(_: Fleet) -> Fleet:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        state.change(Edit("refused", refuse))
    assert state.change(Edit("same", lambda fleet: fleet)).revision == 1
    assert {each.why for each in history(state.store, 9)} == {"first"} | set(
        why(state, "m")
    )


def test_changes_at_once_are_all_there(state: FleetState) -> None:
    """Each edit sees what the one before it left."""

    def add_job(index: int) -> None:
        state.change(edits.put_job(server(f"j{index}", 1)))

    run_together(*(partial(add_job, index) for index in range(8)))
    assert len(state.read().fleet.jobs) == 8
    assert [each.revision for each in history(state.store, 3)] == [8, 7, 6]


def test_what_is_no_fleet_is_told(state: FleetState) -> None:
    """Rows of another form are named, not taken for an empty fleet."""
    for row in ("[]", "{", '{"name": "a"}', '{"addresses": [], "x": 1}'):
        transact(state.store, lambda t, row=row: t.put("job", "a", row))  # type: ignore[misc]
        with pytest.raises(DataLoss):
            state.read()


def test_a_store_of_an_earlier_release_is_read(state: FleetState) -> None:
    """What servers were seen to do had a value more, which nobody needs any more."""
    row = '[["a:1"], "slow", [[1000, 0]]]'
    transact(state.store, lambda t: t.put("job seen", "a", row))
    assert state.read().jobs_seen["a"] == (("a:1",), "slow")


def test_the_history_says_why_a_model_is_where_it_is(state: FleetState) -> None:
    """Placed here for its room, taken from there because it is down, refused for want."""
    state.change(edits.put_job(server("a", 100 * MIB)))
    state.change(edits.put_job(server("b", 200 * MIB)))
    state.change(add("m"))
    state.change(edits.note_jobs({"a": True}))
    big = edits.add_model(model("big", 900 * MIB))
    with pytest.raises(ServingError):
        state.commit(big, named("1", "big"))
    down, added = why(state, "m")
    assert added == "add-model m; placed on a, which had 100 MiB free"
    assert down == (
        "a is down; placed on b, which had 200 MiB free; taken from a, which is down"
    )
    (refused,) = why(state, "big")
    assert "refused: no room for 1 of 1 replicas of big" in refused
    assert "big" not in state.read().fleet.models


def test_a_request_acts_once_however_often_it_is_repeated(
    state: FleetState, tmp_path: Path
) -> None:
    """The answer is the same, here and at any other controller, until the end."""
    state.change(edits.put_job(server("a", 100 * MIB)))
    first = state.commit(add("m"), named("1", "m"))
    other = state_in(tmp_path)
    for each in (state, other):
        for _ in range(50):
            assert each.commit(add("m"), named("1", "m")) == first
    state.change(edits.remove_model("m"))
    assert other.commit(add("m"), named("1", "m")) == first
    assert not other.read().fleet.models
    assert other.request("1") == first
    assert other.request("2") is None


def test_a_refusal_is_an_answer_too(state: FleetState) -> None:
    """A repetition does not act because there is room by now."""
    with pytest.raises(ServingError) as refused:
        state.commit(add("m"), named("1", "m"))
    state.change(edits.put_job(server("a", 100 * MIB)))
    with pytest.raises(type(refused.value)) as again:
        state.commit(add("m"), named("1", "m"))
    assert again.value.message == refused.value.message
    assert isinstance(state.request("1"), type(refused.value))
    assert state.commit(add("m"), named("2", "m")).generation == 1


def test_an_id_is_of_one_request(state: FleetState) -> None:
    """Two that share an id by mistake must not get each other's answer."""
    state.change(edits.put_job(server("a", 100 * MIB)))
    state.commit(add("m"), named("1", "m"))
    with pytest.raises(InvalidArgument, match="used for another"):
        state.commit(add("n"), named("1", "n"))


def test_a_generation_guards_an_edit(state: FleetState) -> None:
    """Who looked at what is not there any more changes nothing."""
    state.change(edits.put_job(server("a", 100 * MIB)))
    state.commit(add("m"), named("1", "", if_generation=0))
    version = edits.add_version("m", 2)
    state.commit(version, named("2", "", if_generation=1))
    with pytest.raises(Aborted, match="m is at generation 2, not 1"):
        state.commit(version, named("3", "", if_generation=1))
    with pytest.raises(Aborted, match="b is at generation 0, not 1"):
        state.commit(edits.drain_job("b"), named("4", "", if_generation=1))
    job = edits.drain_job("a", force=True)
    state.commit(job, named("5", "", if_generation=1))


def test_a_refused_edit_of_a_model_leaves_it(state: FleetState) -> None:
    """The note of the refusal is no change of what is wanted."""
    state.change(edits.put_job(server("a", 100 * MIB)))
    before = state.change(add("m")).fleet
    with pytest.raises(AlreadyExists):
        state.commit(add("m"), named("1"))
    assert state.read().fleet == before
    assert "refused: model m is served already" in why(state, "m")[0]


def test_sightings_are_read_and_written_only_when_they_differ(
    state: FleetState, tmp_path: Path
) -> None:
    """A fleet that is well makes no revisions."""
    seen = {"a": ReplicaSighting(2, 1, (1, 2), (3,), 2, "slow")}
    job = JobSighting(("a",), "b is away")
    state.note({"m": seen}, {"j": job})
    now = state_in(tmp_path).read()
    assert (now.models_seen, now.jobs_seen) == ({"m": seen}, {"j": job})
    state.note({"m": seen}, {"j": job})
    assert state.read().revision == now.revision == 1
    state.note({"m": None}, {})
    assert not state.read().models_seen


def test_who_does_not_lead_any_more_changes_nothing(state: FleetState) -> None:
    """A paused synchronizer that comes back cannot mark jobs or note what it saw."""
    old = acquire(state.store, "x", "a", 0.0)
    acquire(state.store, "x", "b", 60.0)
    with pytest.raises(Aborted):
        state.change(edits.put_job(server("a", 1)), old)
    with pytest.raises(Aborted):
        state.note({"m": {}}, {}, old)
    assert state.read().revision == 0


def test_a_copy_holds_what_was_wanted(tmp_path: Path, state: FleetState) -> None:
    """A start without the store goes on with it; what is no copy is none."""
    path = tmp_path / "copy.json"
    copy = FleetCopy(str(path))
    assert copy.read() is None
    copy.keep(Snapshot(7, FLEET))
    assert FleetCopy(str(path)).read() == Snapshot(7, FLEET)
    before = path.stat().st_mtime_ns
    copy.keep(Snapshot(8, FLEET))
    assert path.stat().st_mtime_ns == before
    for text in ("", "{", '{"format": 1}', '{"format": 2, "revision": 1}', "[]"):
        path.write_text(text)
        assert FleetCopy(str(path)).read() is None
    FleetCopy("").keep(Snapshot(7, FLEET))
    for fleet in (FLEET, Fleet()):
        FleetCopy(str(path)).keep(Snapshot(9, fleet))
        assert copy.read() == Snapshot(9, fleet)


def test_a_request_about_what_is_not_there_is_refused(state: FleetState) -> None:
    """The names there are help who mistyped one."""
    with pytest.raises(NotFound, match="there are: none"):
        state.commit(edits.remove_model("m"), named("1"))


def test_a_store_that_is_older_than_the_copy_is_neither_read_nor_changed(
    tmp_path: Path,
) -> None:
    """Who keeps jobs, takes commands or routes would undo what the lost changes did."""
    copy = FleetCopy(str(tmp_path / "copy.json"))
    copy.keep(Snapshot(2, FLEET))
    store = state_in(tmp_path).store
    state = FleetState(store, copy)
    state_in(tmp_path).change(edits.put_job(server("other", MIB)))
    asks: list[Callable[[], object]] = [
        state.read,
        lambda: state.change(add("m")),
        lambda: state.commit(add("m"), named("1")),
    ]
    for ask in asks:
        with pytest.raises(FailedPrecondition, match="older copy"):
            ask()
    assert [*state_in(tmp_path).read().fleet.jobs] == ["other"]
    assert FleetState(store, copy, take_over=True).read().revision == 1
