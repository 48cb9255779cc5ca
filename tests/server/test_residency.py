"""Models that are loaded on demand, from the config to the pinned version."""

from __future__ import annotations

import pytest

from tests.server.environment import Environment, config, model, one
from tfs.core.errors import (
    Cancelled,
    DataLoss,
    NotFound,
    ResourceExhausted,
    ServingError,
)
from tfs.core.servable_state import ManagerState
from tfs.handlers.model_lookup import NotResident
from tfs.testing.fake_call import FakeCall

ON_DEMAND = "residency: ON_DEMAND"


def registered(*names: str, limit_bytes: int = 0) -> Environment:
    """Returns a core with models that nobody has asked for yet."""
    env = Environment(limit_bytes=limit_bytes)
    for name in names:
        env.add_version(name, 1)
    env.start(config(*(model(name, "", ON_DEMAND) for name in names)))
    return env


class Request:
    """A request for a model as a handler makes it, waiting for the load if need be."""

    def __init__(self, env: Environment, name: str) -> None:
        self.call = FakeCall()
        self.outcomes: list[ServingError | None] = []
        try:
            env.core.served.acquire(name, None, None, None, self.call).release()
            self.outcomes.append(None)
        except NotResident as absent:
            absent.then(
                self.call, lambda: self.outcomes.append(None), self.outcomes.append
            )


def states(env: Environment, name: str) -> list[tuple[int, ManagerState]]:
    """Returns where a model's versions stand, as the status tells."""
    return [
        (each.id.version, each.manager_state) for each in env.core.version_states(name)
    ]


def test_a_registered_model_is_ready_and_takes_no_memory() -> None:
    """It counts as one that answers: its first request loads it."""
    env = registered("a")
    assert not env.log.events
    assert states(env, "a") == [(1, ManagerState.START)]
    assert env.core.served.primary("a") == 1
    assert env.core.readiness.is_model_available("a")
    assert env.core.readiness.is_ready()


def test_version_0_is_a_primary_as_any_other() -> None:
    """It answers, although the model has a newer version that is not loaded either."""
    env = Environment()
    env.add_version("a", 0)
    env.add_version("a", 1)
    both = "model_version_policy { all {} } traffic { primary: 0 }"
    env.start(config(model("a", "", f"{ON_DEMAND} {both}")))
    assert env.core.served.primary("a") == 0


def test_all_who_ask_wait_for_one_load() -> None:
    """However many ask meanwhile, the version is loaded once."""
    env = registered("a")
    requests = [Request(env, "a") for _ in range(5)]
    assert all(each.outcomes == [] for each in requests)
    env.settle()
    assert all(each.outcomes == [None] for each in requests)
    assert env.served("a") == 1
    assert env.log.count("load") == 1


def test_the_least_recently_used_makes_way() -> None:
    """When memory is short, the model goes that was asked for longest ago."""
    env = registered("a", "b", "c", limit_bytes=2)
    for name in ("a", "b", "a"):
        Request(env, name)
        env.settle()
    waiting = Request(env, "c")
    env.settle()
    assert waiting.outcomes == [None]
    assert env.available("a") == env.available("c") == [1]
    assert states(env, "b") == [(1, ManagerState.START)]
    assert env.core.residency.is_resident("b") is False


def test_a_look_is_no_use() -> None:
    """Whoever asks about a model does not keep it loaded."""
    env = registered("a", "b", "c", limit_bytes=2)
    for name in ("a", "b"):
        Request(env, name)
        env.settle()
    env.core.served.look_at("a", None, None).release()
    Request(env, "c")
    env.settle()
    assert env.available("a") == []
    assert env.available("b") == env.available("c") == [1]


def test_a_pinned_model_stays_while_another_can_go() -> None:
    """A model that answers a request is not the one to make way, however long ago it began."""
    env = registered("a", "b", "c", limit_bytes=2)
    Request(env, "a")
    env.settle()
    with env.core.served.look_at("a", None, None):
        for name in ("b", "c"):
            Request(env, name)
            env.settle()
        assert env.available("a") == env.available("c") == [1]


def test_what_goes_while_it_is_pinned_is_unloaded_afterwards() -> None:
    """A request is never cut off; the one that needs the memory waits."""
    env = registered("a", "b", limit_bytes=1)
    Request(env, "a")
    env.settle()
    with env.core.served.look_at("a", None, None) as servable:
        waiting = Request(env, "b")
        env.settle()
        assert waiting.outcomes == []
        assert servable.is_alive  # type: ignore[attr-defined]  # a FakeServable
    env.settle()
    assert waiting.outcomes == [None]


def test_an_ordinary_model_gets_the_memory_of_those_on_demand() -> None:
    """What is to be loaded always comes before what is loaded when asked for."""
    env = registered("a", limit_bytes=1)
    Request(env, "a")
    env.settle()
    env.add_version("b", 1)
    env.apply(model("a", "", ON_DEMAND), model("b"))
    env.settle()
    assert env.available("b") == [1]
    refused = Request(env, "a")
    env.settle()
    (error,) = refused.outcomes
    assert isinstance(error, ResourceExhausted)
    assert env.available("b") == [1]


def test_a_load_that_fails_is_told_and_tried_by_the_next_request() -> None:
    """Who waited hears why; the model is registered again, and its state shows the error."""
    env = registered("a")
    env.broken.add("/models/a/1")
    first = Request(env, "a")
    env.settle()
    assert [type(each) for each in first.outcomes] == [DataLoss]
    assert states(env, "a") == [(1, ManagerState.END)]
    env.broken.clear()
    second = Request(env, "a")
    env.settle()
    assert second.outcomes == [None]


def test_who_waits_hears_why_a_load_failed_and_no_paths() -> None:
    """The log and the status have them: clients know nothing of the server's folders."""
    env = registered("a")
    env.broken.add("/models/a/1")
    waiting = Request(env, "a")
    env.settle()
    (error,) = waiting.outcomes
    assert isinstance(error, DataLoss)
    assert "is damaged" in error.message
    assert "/models" not in error.message


def test_a_request_waits_no_longer_than_its_caller() -> None:
    """The load goes on for those who come later."""
    env = registered("a")
    waiting = Request(env, "a")
    waiting.call.client_cancels()
    assert [type(each) for each in waiting.outcomes] == [Cancelled]
    env.settle()
    assert len(waiting.outcomes) == 1
    assert env.available("a") == [1]


def test_new_versions_replace_what_is_loaded_and_what_is_not() -> None:
    """A resident model swaps as any other; a registered one loads only the newest."""
    env = registered("a", "b")
    Request(env, "a")
    env.settle()
    for name in ("a", "b"):
        env.add_version(name, 2)
    env.look()
    assert env.available("a") == [2]
    assert states(env, "b") == [(2, ManagerState.START)]


def test_a_model_that_becomes_on_demand_stays_until_its_memory_is_needed() -> None:
    """A change of residency alone unloads nothing, and the other way it loads at once."""
    env = Environment(limit_bytes=1)
    env.add_version("a", 1)
    env.add_version("b", 1)
    env.start(config(model("a")))
    assert one(env.apply(model("a", "", ON_DEMAND))).error is None
    assert env.available("a") == [1]
    assert (
        one(env.apply(model("a", "", ON_DEMAND), model("b", "", ON_DEMAND))).error
        is None
    )
    Request(env, "b")
    env.settle()
    assert env.available("b") == [1]
    env.apply(model("a"))
    assert env.available("a") == [1]


def test_a_model_that_is_removed_tells_who_waits() -> None:
    """Nobody waits for a load that will not come."""
    env = registered("a")
    waiting = Request(env, "a")
    env.apply()
    env.settle()
    assert waiting.outcomes == [None]
    with pytest.raises(NotFound):
        env.served("a")


def test_many_that_go_make_room_for_many_that_come() -> None:
    """However often models change places, no more is loaded than there is room for."""
    names = [f"m{index}" for index in range(12)]
    env = registered(*names, limit_bytes=3)
    for name in names * 2:
        waiting = Request(env, name)
        env.settle()
        assert waiting.outcomes == [None]
        assert sum(bool(env.available(each)) for each in names) <= 3
    together = [Request(env, name) for name in names[:3]]
    env.settle()
    assert [each.outcomes for each in together] == [[None]] * 3
