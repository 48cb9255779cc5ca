"""Changes of a fleet: each whole, or a refusal that leaves everything as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hosted.fleets import MIB, EditedFleet, config, model, server
from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted import edits
from tfs.hosted.fleet import (
    Fleet,
    HostedModel,
    Job,
    config_text,
    read_config,
    room_for,
)
from tfs.hosted.fleet_state import Edit


@pytest.fixture
def there() -> EditedFleet:
    return EditedFleet(server("a", 100 * MIB), server("b", 100 * MIB))


def scale(name: str, least: int, most: int) -> Edit:
    def changed(found: HostedModel) -> HostedModel:
        now = min(max(found.num_replicas, least), most)
        return replace(found, min_replicas=least, max_replicas=most, num_replicas=now)

    return edits.update_model(name, changed, "scale")


def test_a_model_has_room_for_its_swaps() -> None:
    """Two versions are loaded during a swap, one where the old one goes first."""
    gap = "transition: RESOURCE_PRESERVING"
    both = "model_version_policy { latest { num_versions: 2 } }"
    assert [room_for(config("m", each), 10) for each in ("", gap, both)] == [20, 10, 30]


def test_what_no_server_reads_is_refused() -> None:
    """A wrong config would be refused together with its neighbours'."""
    with pytest.raises(InvalidArgument):
        read_config("nonsense: 1")


def test_what_has_no_room_is_refused_whole(there: EditedFleet) -> None:
    """The others keep their places, and nothing of the new one is kept."""
    before = there.apply(edits.add_model(model("m", 60 * MIB)))
    with pytest.raises(ResourceExhausted, match="add a serving job"):
        there.apply(edits.add_model(model("wide", 60 * MIB, 2)))
    with pytest.raises(AlreadyExists):
        there.apply(edits.add_model(model("m")))
    assert there.fleet == before


def test_a_job_counts_with_all_its_replicas() -> None:
    """Three equal servers with a model are three replicas of it."""
    job = Job("local", 100 * MIB, num_replicas=3, is_ours=True)
    there = EditedFleet(job, server("b", 200 * MIB))
    assert there.apply(edits.add_model(model("m", least=3))).packing() == {
        "m": ("local",)
    }
    placed = there.apply(scale("m", 4, 4)).packing()["m"]
    assert set(placed) == {"local", "b"}
    with pytest.raises(ResourceExhausted, match="no room for 1 of 5"):
        there.apply(scale("m", 5, 5))


def test_a_job_that_goes_has_its_models_moved(there: EditedFleet) -> None:
    """It does not leave while its models have no other place, unless told so."""
    there.apply(edits.add_model(model("m", 60 * MIB, 2)))
    with pytest.raises(ResourceExhausted):
        there.apply(edits.drain_job("a"))
    with pytest.raises(NotFound):
        there.apply(edits.drain_job("absent"))
    fleet = there.apply(edits.drain_job("a", force=True))
    assert fleet.packing() == {"m": ("b",)}
    fleet = there.apply(edits.put_job(server("c", 60 * MIB)))
    assert set(fleet.packing()["m"]) == {"b", "c"}


def test_a_job_leaves_when_it_has_nothing_left_to_do(there: EditedFleet) -> None:
    """A leaving job takes no models and goes when it is empty; others stay."""
    (at,) = there.apply(edits.add_model(model("m"))).packing()["m"]
    (other,) = {"a", "b"} - {at}
    fleet = there.apply(edits.drain_job(at))
    assert fleet.packing() == {"m": (other,)}
    assert fleet.jobs[at].is_leaving
    assert there.apply(edits.empty_job(other)) is fleet
    assert set(there.apply(edits.empty_job(at)).jobs) == {other}
    assert there.apply(edits.empty_job(at)).packing() == {"m": (other,)}


def test_a_job_that_is_down_is_replaced_and_welcome_back(there: EditedFleet) -> None:
    """Its models go where there is room; what is elsewhere by then stays there."""
    (at,) = there.apply(edits.add_model(model("m"))).packing()["m"]
    (other,) = {"a", "b"} - {at}
    moved = {"m": (other,)}
    assert there.apply(edits.note_jobs({at: True})).packing() == moved
    fleet = there.apply(edits.note_jobs({at: False}))
    assert fleet.packing() == moved
    assert there.apply(edits.note_jobs({at: False})) is fleet
    assert there.apply(edits.note_jobs({"absent": True})) is fleet


def test_a_job_that_is_changed_keeps_what_it_is(there: EditedFleet) -> None:
    """Its generation grows; servers that run are no job that the fleet starts."""
    there.apply(edits.add_model(model("m", 60 * MIB)))
    fleet = there.apply(edits.put_job(server("a", 200 * MIB)))
    assert (fleet.jobs["a"].memory_bytes, fleet.jobs["a"].generation) == (200 * MIB, 2)
    with pytest.raises(AlreadyExists, match="another kind"):
        there.apply(edits.put_job(Job("a", MIB, is_ours=True)))
    there.apply(edits.put_job(Job("ours", 100 * MIB, is_ours=True)))
    there.apply(edits.set_addresses("ours", ("unix:/s",)))
    fleet = there.apply(edits.put_job(Job("ours", MIB, is_ours=True)))
    assert fleet.jobs["ours"].addresses == ("unix:/s",)
    assert there.apply(edits.set_addresses("absent", ())) is fleet


def num_placed(fleet: Fleet) -> int:
    return len(fleet.packing()["m"])


def test_replicas_follow_load_within_limits_and_room(there: EditedFleet) -> None:
    """Load asks for no more than was allowed, nor for what has no room."""

    def follow(**wanted: int) -> Fleet:
        return there.apply(edits.follow_load(wanted))

    there.apply(edits.add_model(model("m", 60 * MIB, 1, 5)))
    assert num_placed(follow(m=2)) == 2
    assert follow(m=3, absent=2).models["m"].num_replicas == 2
    there.apply(edits.put_job(server("c", 100 * MIB)))
    assert num_placed(follow(m=9)) == 3
    assert num_placed(follow(m=0)) == 1
    assert num_placed(there.apply(scale("m", 2, 2))) == 2
    with pytest.raises(ResourceExhausted):
        there.apply(scale("m", 4, 4))
    with pytest.raises(NotFound, match="there are: m"):
        there.apply(scale("absent", 1, 1))


def test_a_version_of_a_pinned_model_is_refused(there: EditedFleet) -> None:
    """It would wait for ever: who pinned another has to say what to do with it."""
    there.apply(edits.add_model(model("m")))
    assert there.apply(edits.add_version("m", 2)).models["m"].generation == 2
    pinned = config_text(config("m", "traffic { primary: 1 }"))
    there.apply(edits.update_model("m", lambda m: replace(m, config=pinned), "promote"))
    with pytest.raises(FailedPrecondition, match="version 1 of m is pinned"):
        there.apply(edits.add_version("m", 3))
    there.apply(edits.add_version("m", 1))


def test_estimates_give_way_to_what_was_measured(there: EditedFleet) -> None:
    """A measurement replaces an estimate, unless it is close; never a stated size."""
    guessed = replace(model("guessed", 20 * MIB), is_estimate=True)
    there.apply(edits.add_model(guessed))
    there.apply(edits.add_model(model("said", MIB)))

    def learn(**measured: int) -> dict[str, int]:
        fleet = there.apply(edits.learn(measured))
        return {name: each.memory_bytes for name, each in fleet.models.items()}

    close = learn(guessed=11 * MIB, said=50 * MIB, gone=MIB)
    assert close == {"guessed": 20 * MIB, "said": MIB}
    assert learn(guessed=30 * MIB, said=50 * MIB) == {"guessed": 60 * MIB, "said": MIB}


def test_a_model_that_goes_leaves_its_room(there: EditedFleet) -> None:
    """What had no place gets it."""
    there.apply(edits.add_model(model("m", 60 * MIB, 2)))
    with pytest.raises(ResourceExhausted):
        there.apply(edits.add_model(model("next", 60 * MIB)))
    assert there.apply(edits.remove_model("m")).packing() == {}
    there.apply(edits.add_model(model("next", 60 * MIB)))
    with pytest.raises(NotFound):
        there.apply(edits.remove_model("m"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("min_replicas", 0), ("max_replicas", 0), ("memory_bytes", 0), ("name", "")],
)
def test_values_that_make_no_sense_cannot_be_made(field: str, value: object) -> None:
    """A fleet holds only models that could be served."""
    changed: dict[str, object] = {field: value}
    with pytest.raises(InvalidArgument):
        replace(model("m"), **changed)  # type: ignore[arg-type]
    for name, memory_bytes, num_replicas in (("", 1, 1), ("a", 0, 1), ("a", 1, 0)):
        with pytest.raises(InvalidArgument):
            Job(name, memory_bytes, num_replicas=num_replicas)
