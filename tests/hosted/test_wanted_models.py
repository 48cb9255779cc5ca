"""What jobs have loaded while models change places."""

from __future__ import annotations

from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.wanted_models import wanted_models


def fleet(*at: str) -> Fleet:
    jobs = {name: Job(name, 10) for name in ("a", "b")}
    return Fleet(jobs, {"m": HostedModel("m", "", 1)}, {"m": at})


def test_a_model_leaves_when_it_answers_where_it_goes() -> None:
    """Make before break: no moment without anybody who answers."""
    assert wanted_models(fleet("b"), {"a": {"m"}}) == {"a": ("m",), "b": ("m",)}
    assert wanted_models(fleet("b"), {"a": {"m"}, "b": {"m"}}) == {"a": (), "b": ("m",)}


def test_a_model_without_a_place_stays_where_it_serves() -> None:
    """Want of room elsewhere is no reason to serve nobody."""
    assert wanted_models(fleet(), {"a": {"m"}}) == {"a": ("m",), "b": ()}


def test_what_is_no_model_any_more_goes() -> None:
    """A job that still has a model that was removed is told nothing of it."""
    empty = Fleet({"a": Job("a", 1)}, {}, {})
    assert wanted_models(empty, {"a": {"gone"}}) == {"a": ()}


def test_a_job_that_is_placed_on_and_gone_is_told_nothing() -> None:
    """Placements may name a job that was removed a moment ago."""
    assert wanted_models(fleet("gone"), {}) == {"a": (), "b": ()}
