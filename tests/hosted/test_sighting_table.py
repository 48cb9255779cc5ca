"""What jobs have loaded while models change places, and where requests go meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.reports import JobReport, ReplicaSighting
from tfs.hosted.sighting_table import SightingTable

ALL = ("a1", "a2", "b1", "b2")
MODEL = HostedModel("m", "config", 1, generation=7)


def fleet(*at: str) -> Fleet:
    jobs = {name: Job(name, 10, addresses=(name + "1", name + "2")) for name in "ab"}
    return Fleet(jobs, {"m": replace(MODEL, placed=at)})


def heard(
    *answering: str, reporting: Collection[str] = ALL, told: Collection[str] = ()
) -> dict[str, JobReport]:
    """Returns what four servers say; those that do not report have said it before."""
    return {
        at: JobReport(
            1.0,
            {"m": ReplicaSighting(0, 1, (1,))} if at in answering else {},
            told={"m": "config"} if at in told else {},
            is_silent=at not in reporting,
        )
        for at in ALL
    }


def table(fleet: Fleet, says: dict[str, JobReport]) -> SightingTable:
    made = SightingTable()
    made.take(fleet, says)
    return made


def wanted(made: SightingTable) -> dict[str, tuple[str, ...]]:
    return {job: tuple(configs) for job, configs in made.wanted.items()}


def test_a_model_leaves_when_it_answers_where_it_goes() -> None:
    """Make before break: no moment without anybody who answers."""
    made = table(fleet("b"), heard("a1"))
    assert wanted(made) == {"a": ("m",), "b": ("m",)}
    made.take(fleet("b"), heard(*ALL))
    assert wanted(made) == {"a": (), "b": ("m",)}


def test_who_gives_a_model_up_next_gets_no_more_requests() -> None:
    """Those that know routes and nothing else do not ask another server on NOT_FOUND."""
    made = table(fleet("b"), heard("a1", "b1"))
    assert made.routes == {"m": ("a1", "b1")}
    made.take(fleet("b"), heard(*ALL))
    assert made.routes == {"m": ("b1", "b2")}
    displaced = replace(fleet(), models={"m": replace(MODEL, is_temp=True)})
    made.take(displaced, heard("b1"))
    assert made.routes == {"m": ("b1",)}, "nobody else has it"


def test_a_model_stays_until_all_replicas_of_its_new_job_answer() -> None:
    """One of three would take three times the load."""
    assert wanted(table(fleet("b"), heard("a1", "a2", "b1")))["a"] == ("m",)
    silent = table(fleet("b"), heard("a1", reporting={"a1"}))
    assert wanted(silent) == {"a": ("m",), "b": ("m",)}


def test_a_model_without_a_place_stays_where_it_serves() -> None:
    """Want of room elsewhere is no reason to serve nobody."""
    assert wanted(table(fleet(), heard("a1"))) == {"a": ("m",), "b": ()}


def test_a_model_of_temp_that_lost_its_place_goes() -> None:
    """Else Prod, which needs its memory, would have the place and no room to load."""
    displaced = replace(fleet(), models={"m": replace(MODEL, is_temp=True)})
    assert wanted(table(displaced, heard("a1"))) == {"a": (), "b": ()}


def test_what_is_no_model_any_more_goes() -> None:
    """A job that still has a model that was removed is told nothing of it."""
    made = table(fleet("a"), heard("a1"))
    gone = replace(fleet("a"), models={})
    assert made.take(gone, heard("a1")) == {"m"}
    assert wanted(made) == {"a": (), "b": ()}
    assert not made.routes
    sighting = made.sighting("m")
    assert sighting is not None
    assert sighting.keys() == {"a1"}
    made.take(gone, heard())
    assert made.sighting("m") is None


def test_a_job_that_is_placed_on_and_gone_is_told_nothing() -> None:
    """Packings may name a job that was removed a moment ago."""
    assert wanted(table(fleet("gone"), heard())) == {"a": (), "b": ()}


def test_a_job_that_missed_a_question_is_tried_where_no_other_answers() -> None:
    """It may only be slow; requests that another replica can take do not wait for it."""
    made = table(fleet("a"), heard("a1", "a2", reporting={"a1", "b1"}))
    assert made.routes == {"m": ("a1",)}
    made.take(fleet("a"), heard("a1", "a2", reporting={"b1"}))
    assert made.routes == {"m": ("a1", "a2")}
    made.take(fleet("a"), {})
    assert made.routes == {"m": ()}


def test_a_server_has_a_change_when_it_was_told_before_it_reported() -> None:
    """A model's generation counts for it then, and not for those that are behind."""
    made = table(fleet("a"), heard("a1", "a2", told={"a1"}))
    sighting = made.sighting("m")
    assert sighting is not None
    found = {at: each.generation for at, each in sighting.items()}
    assert found == {"a1": 7, "a2": 0}


def test_only_what_changed_is_done_anew() -> None:
    """Nothing of what nobody spoke of; a report's other figures are no change."""
    says = heard("a1")
    made = table(fleet("a"), says)
    two = {**MODEL_FLEET.models, "n": HostedModel("n", "other", 1, placed=("b",))}
    more = Fleet(MODEL_FLEET.jobs, two)
    made.take(MODEL_FLEET, says)
    assert made.take(more, says) == {"n"}
    assert made.take(more, says) == set()
    report = replace(says["a1"], request_s={"m": 1.0})
    assert made.take(more, {**says, "a1": report}) == set()


MODEL_FLEET = fleet("a")
