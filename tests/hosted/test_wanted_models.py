"""What jobs have loaded while models change places."""

from __future__ import annotations

from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.synchronizer import wanted_models


def fleet(*at: str) -> Fleet:
    jobs = {name: Job(name, 10, addresses=(name + "1", name + "2")) for name in "ab"}
    return Fleet(jobs, {"m": HostedModel("m", "", 1)}, {"m": at})


def wanted(fleet: Fleet, *answering: str) -> dict[str, tuple[str, ...]]:
    """Returns what is wanted where the model answers from some of four servers."""
    return wanted_models(fleet, {"m": answering}, {"a1", "a2", "b1", "b2"})


def test_a_model_leaves_when_it_answers_where_it_goes() -> None:
    """Make before break: no moment without anybody who answers."""
    assert wanted(fleet("b"), "a1") == {"a": ("m",), "b": ("m",)}
    assert wanted(fleet("b"), "a1", "a2", "b1", "b2") == {"a": (), "b": ("m",)}


def test_a_model_stays_until_all_replicas_of_its_new_job_answer() -> None:
    """One of three would take three times the load."""
    assert wanted(fleet("b"), "a1", "a2", "b1")["a"] == ("m",)
    silent = wanted_models(fleet("b"), {"m": ("a1",)}, {"a1"})
    assert silent == {"a": ("m",), "b": ("m",)}


def test_a_model_without_a_place_stays_where_it_serves() -> None:
    """Want of room elsewhere is no reason to serve nobody."""
    assert wanted(fleet(), "a1") == {"a": ("m",), "b": ()}


def test_what_is_no_model_any_more_goes() -> None:
    """A job that still has a model that was removed is told nothing of it."""
    empty = Fleet({"a": Job("a", 1, addresses=("a1",))}, {}, {})
    assert wanted(empty, "a1") == {"a": ()}


def test_a_job_that_is_placed_on_and_gone_is_told_nothing() -> None:
    """Placements may name a job that was removed a moment ago."""
    assert wanted(fleet("gone")) == {"a": (), "b": ()}
