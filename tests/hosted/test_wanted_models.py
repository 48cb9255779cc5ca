"""What jobs have loaded while models change places."""

from __future__ import annotations

from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.wanted_models import wanted_models


def fleet(*at: str) -> Fleet:
    jobs = {name: Job(name, 10) for name in ("a", "b")}
    return Fleet(jobs, {"m": HostedModel("m", "", 1)}, {"m": at})


def wanted(
    fleet: Fleet, some: dict[str, set[str]], every: dict[str, set[str]] | None = None
) -> dict[str, tuple[str, ...]]:
    full = some if every is None else every
    return wanted_models(
        fleet,
        lambda job, name: name in some.get(job, ()),
        lambda job, name: name in full.get(job, ()),
    )


def test_a_model_leaves_when_it_answers_where_it_goes() -> None:
    """Make before break: no moment without anybody who answers."""
    assert wanted(fleet("b"), {"a": {"m"}}) == {"a": ("m",), "b": ("m",)}
    assert wanted(fleet("b"), {"a": {"m"}, "b": {"m"}}) == {"a": (), "b": ("m",)}


def test_a_model_stays_until_all_replicas_of_its_new_job_answer() -> None:
    """One of three would take three times the load."""
    some = {"a": {"m"}, "b": {"m"}}
    assert wanted(fleet("b"), some, {"a": {"m"}})["a"] == ("m",)


def test_a_model_without_a_place_stays_where_it_serves() -> None:
    """Want of room elsewhere is no reason to serve nobody."""
    assert wanted(fleet(), {"a": {"m"}}) == {"a": ("m",), "b": ()}


def test_what_is_no_model_any_more_goes() -> None:
    """A job that still has a model that was removed is told nothing of it."""
    empty = Fleet({"a": Job("a", 1)}, {}, {})
    assert wanted(empty, {"a": {"gone"}}) == {"a": ()}


def test_a_job_that_is_placed_on_and_gone_is_told_nothing() -> None:
    """Placements may name a job that was removed a moment ago."""
    assert wanted(fleet("gone"), {}) == {"a": (), "b": ()}
