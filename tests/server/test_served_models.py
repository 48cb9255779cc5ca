"""tfs.server.served_models and tfs.server.traffic."""

from __future__ import annotations

import pytest

from managers.serving_map import Handle, ServingMap
from tests.present import present
from tests.server.environment import Environment, config, model
from tfs.core.errors import InvalidArgument, NotFound, Quarantined
from tfs.core.servable_id import ServableId
from tfs.server.traffic import share_of

ALL = "model_version_policy { all {} }"
KEYS = [f"caller-{index}" for index in range(200)]


def serving(*versions: int, extra: str = ALL) -> Environment:
    """Returns a core that serves these versions of a."""
    env = Environment()
    for version in versions:
        env.add_version("a", version)
    env.start(config(model("a", "", extra)))
    return env


def canary(fields: str, primary: str = "primary: 1") -> str:
    """Returns a model whose version 2 is on trial."""
    return model(
        "a", "", f"{ALL} traffic {{ {primary} canary {{ version: 2 {fields} }} }}"
    )


def test_a_model_without_traffic_has_no_route() -> None:
    """What nobody configured costs a request nothing."""
    env = serving(1, 2)
    handle = env.core.served.look_at("a", None, None)
    assert handle is env.core.served._map.acquire("a")


@pytest.mark.parametrize(
    ("version", "label"), [(None, None), (1, None), (None, "stable")]
)
def test_a_request_without_a_name_is_refused(
    version: int | None, label: str | None
) -> None:
    """The name comes first, whatever else the spec holds."""
    env = serving(1)
    with pytest.raises(InvalidArgument, match="no name"):
        env.core.served.look_at("", version, label)


@pytest.mark.parametrize("label", [None, "stable"])
def test_who_looks_up_during_a_move_gets_one_of_the_two(
    monkeypatch: pytest.MonkeyPatch, label: str | None
) -> None:
    """A version that goes between a look at what is meant and the pin is looked up anew."""

    def named(version: int) -> str:
        if label is None:
            return model("a", "", f"traffic {{ primary: {version} }}")
        labelled = f'version_labels {{ key: "{label}" value: {version} }}'
        return model("a", "", f"{labelled} {specific(version)}")

    def specific(version: int) -> str:
        return f"model_version_policy {{ specific {{ versions: {version} }} }}"

    env = serving(1)
    env.apply(named(1))
    env.add_version("a", 2)
    acquire = ServingMap.acquire_version
    asked: list[int] = []

    def acquire_after_the_move(self: ServingMap, name: str, version: int) -> Handle:
        asked.append(version)
        if asked == [1]:
            env.apply(named(2))
        return acquire(self, name, version)

    monkeypatch.setattr(ServingMap, "acquire_version", acquire_after_the_move)
    assert env.served("a", label=label) == 2
    assert asked == [1, 2]


def test_a_primary_answers_in_the_latests_place() -> None:
    """Only requests that name a version get another one."""
    env = serving(1, 2, extra=f"{ALL} traffic {{ primary: 1 }}")
    assert env.served("a") == 1
    assert env.served("a", version=2) == 2
    assert env.core.served.primary("a") == 1


def test_like_requests_are_pinned_together_unless_a_trial_sees_each() -> None:
    """Like requests share a look-up with a pin each, unless a trial may see them."""
    env = serving(1, 2, extra=f"{ALL} traffic {{ primary: 1 }}")
    served = env.core.served
    for version, expected in ((None, 1), (2, 2)):
        handle = present(served.acquire_shared("a", version, None, 3))
        assert handle.id.version == expected
        assert handle.num_pins == 3
        for _ in range(3):
            handle.release()
    with pytest.raises(InvalidArgument, match="no name"):
        served.acquire_shared("", None, None, 3)
    env.apply(canary("tee_fraction: 0.5"))
    assert served.acquire_shared("a", None, None, 3) is None
    assert present(served.acquire_shared("a", 2, None, 1)).num_pins == 1


def test_a_caller_of_a_canary_that_goes_gets_the_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A canary that is unloaded between the choice and the pin fails no request."""
    env = serving(1, 2, extra=ALL)
    env.apply(canary("split_fraction: 1"))
    assert env.request("a") == 2
    acquire = ServingMap.acquire_version

    def only_the_primary(self: ServingMap, name: str, version: int) -> Handle:
        if version == 2:
            raise NotFound("it has gone")
        return acquire(self, name, version)

    monkeypatch.setattr(ServingMap, "acquire_version", only_the_primary)
    assert env.request("a") == 1


def test_who_looks_at_a_model_gets_its_primary() -> None:
    """Whatever the share of a canary, what is told of a model is its primary's."""
    env = serving(1, 2, extra=ALL)
    env.apply(canary("split_fraction: 1"))
    handle = env.core.served.look_at("a", None, None)
    assert handle.id.version == 1


def test_nothing_stands_in_for_a_primary_that_is_not_there() -> None:
    """A version that was rolled back does not answer at a start, not even at first."""
    env = serving(2, 3, extra=f"{ALL} traffic {{ primary: 1 }}")
    with pytest.raises(NotFound, match="version 1 is the primary, and is not"):
        env.served("a")
    assert env.served("a", version=3) == 3
    assert env.core.readiness.is_model_available("a") is False
    assert not env.core.readiness.is_ready()
    env.add_version("a", 1)
    env.look()
    assert env.served("a") == 1
    assert env.core.readiness.is_ready()


def test_the_version_before_the_canary_is_the_primary() -> None:
    """A newest version on trial leaves the traffic where it was."""
    env = serving(1, extra="traffic { canary { version: 2 } }")
    env.add_version("a", 2)
    env.look()
    assert env.available("a") == [2, 1]
    assert env.served("a") == 1
    assert env.served("a", version=2) == 2


def test_a_trial_of_what_answers_keeps_it_answering() -> None:
    """Putting the only loaded version on trial is no outage."""
    env = serving(1, 2, extra="")
    assert env.available("a") == [2]
    env.apply(model("a", "", "traffic { canary { version: 2 } }"), settles=False)
    assert env.served("a") == 2
    env.settle()
    assert env.available("a") == [2, 1]
    assert env.served("a") == 1


def test_a_canary_alone_answers_nothing() -> None:
    """A canary without a primary is not asked, and the error says why."""
    env = serving(2, extra="traffic { canary { version: 2 } }")
    with pytest.raises(NotFound, match="canary, version 2, answers nothing"):
        env.served("a")


def test_a_split_goes_by_the_callers_key() -> None:
    """Sticky, by the hash; whoever names a version or a label is left alone."""
    env = serving(1, 2)
    env.apply(canary("split_fraction: 0.3"))
    for key in KEYS:
        expected = 2 if share_of("a", key.encode()) < 0.3 else 1
        assert env.request("a", key) == expected
        assert env.request("a", key) == expected
        assert env.request("a", key, version=1) == 1
    trial = present(env.core.served.trial("a"))
    num_canary = 2 * sum(share_of("a", key.encode()) < 0.3 for key in KEYS)
    assert trial.num_split_to_canary == num_canary
    assert trial.num_split_to_primary == 2 * len(KEYS) - num_canary


def test_a_call_without_a_key_is_drawn_by_lot() -> None:
    """A request that has nothing to be split by is sent somewhere by lot."""
    env = serving(1, 2)
    numbers = iter([0.2, 0.8])
    env.core.served._rng = lambda: next(numbers, 0.99)
    env.apply(canary("split_fraction: 0.5"))
    assert env.request("a") == 2
    numbers = iter([0.8])
    assert env.request("a") == 1


def test_a_canary_that_is_not_loaded_gets_nothing() -> None:
    """The primary answers everybody until it is."""
    env = serving(1)
    env.apply(canary("split_fraction: 1 tee_fraction: 1"))
    assert env.request("a", "key") == 1
    env.add_version("a", 2)
    env.look()
    assert env.request("a", "key") == 2


def test_a_model_that_leaves_takes_its_routes_along() -> None:
    """Its name means nothing any more."""
    env = serving(1, 2)
    env.apply(canary("split_fraction: 1"))
    env.apply()
    with pytest.raises(NotFound):
        env.served("a")
    assert env.core.served.trial("a") is None


@pytest.mark.parametrize("extra", [ALL, f"{ALL} traffic {{ primary: 2 }}"])
def test_a_healthy_older_version_answers_while_one_is_quarantined(extra: str) -> None:
    """Callers that name no version are not refused; the retry brings them back."""
    env = serving(1, 2, extra=extra)
    served, readiness = env.core.served, env.core.readiness
    fault = Quarantined("crashed 3 times")
    env.manager.report_servable_error(ServableId("a", 2), fault)
    env.settle()
    assert env.served("a") == served.primary("a") == 1
    assert env.served("a", version=2) == 2
    assert readiness.is_model_available("a")
    env.manager.report_servable_error(ServableId("a", 1), fault)
    env.settle()
    assert env.served("a") == 2
    assert readiness.is_model_available("a") is False
    env.clock.advance(60)
    env.manager.step()
    env.settle()
    assert env.served("a") == 2
    assert readiness.is_model_available("a")
