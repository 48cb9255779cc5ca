"""tfs.server.core: what finds, loads and serves versions follows the config.

Cases of TensorFlow Serving's model_servers/server_core_test.cc are named where they
are asserted; docs/divergences.md says what is different on purpose.
"""

from __future__ import annotations

import pytest

from tests.server.environment import Environment, config, model, one
from tfs.core.errors import (
    InvalidArgument,
    NotFound,
)
from tfs.server.config.running_config import Origin


def test_the_first_config_loads_its_models(env: Environment) -> None:
    """A model of the first config answers (CreateWaitsTillModelsAvailable)."""
    assert env.served("a") == 1
    assert env.core.readiness.is_ready()


def test_a_model_left_out_is_unloaded(env: Environment) -> None:
    """A config that omits a model has it unloaded (ReloadConfigUnloadsModels)."""
    env.apply(model("b"))
    with pytest.raises(NotFound):
        env.served("a")
    assert env.available("a") == []


def test_a_model_that_comes_back_is_loaded_again(env: Environment) -> None:
    """A removed model can return (ReloadConfigHandlesLoadingAPreviouslyUnloadedModel)."""
    env.apply(model("b"))
    outcome = one(env.apply(model("a"), model("b")))
    assert outcome.error is None
    assert env.served("a") == 1


def test_a_new_base_path_moves_the_model(env: Environment) -> None:
    """Another base path with another version swaps (ReloadConfigChangeModelBasePath)."""
    env.add_version("a", 2, "/elsewhere")
    env.apply(model("a", "/elsewhere"))
    assert env.served_path("a") == "/elsewhere/2"


def test_a_new_base_path_reloads_the_same_version(env: Environment) -> None:
    """The same number under another path is another version to load."""
    env.add_version("a", 1, "/elsewhere")
    env.apply(model("a", "/elsewhere"))
    assert env.served_path("a") == "/elsewhere/1"


def test_an_absolute_path_is_accepted(env: Environment) -> None:
    """A base path that starts with a slash is fine (AbsolutePathSucceeds)."""
    assert one(env.apply(model("a"))).error is None


def test_models_of_several_platforms_are_served(env: Environment) -> None:
    """Each goes to its adapter (MultiplePlatforms, ...WithConfigChange)."""
    env.apply(model("a"), model("b", "", 'model_platform: "hashmap"'))
    env.add_version("c", 1)
    env.apply(
        model("b", "", 'model_platform: "hashmap"'),
        model("c", "", 'model_platform: "onnx"'),
    )
    assert (env.served("b"), env.served("c")) == (1, 1)
    assert env.available("a") == []


def test_labels_choose_among_available_versions(env: Environment) -> None:
    """Version, latest, label, unknown label (ModelSpecMultipleVersionsAvailable)."""
    env.add_version("a", 2)
    env.apply(
        model(
            "a",
            "",
            "model_version_policy { all {} } "
            'version_labels { key: "stable" value: 1 } '
            'version_labels { key: "canary" value: 2 }',
        )
    )
    assert env.served("a", version=1) == 1
    assert env.served("a") == 2
    assert env.served("a", label="stable") == 1
    assert env.served("a", label="canary") == 2
    with pytest.raises(InvalidArgument, match="Unrecognized servable version label"):
        env.served("a", label="unknown")


def test_a_label_may_come_before_its_version(env: Environment) -> None:
    """It is no error, and answers once the version can.

    Differs from AssignLabelToUnavailableVersion, agrees with ...Allowed.
    """
    labelled = model("a", "", 'version_labels { key: "next" value: 2 }')
    assert one(env.apply(labelled)).error is None
    with pytest.raises(NotFound):
        env.served("a", label="next")
    env.add_version("a", 2)
    env.look()
    assert env.served("a", label="next") == 2


def test_a_labelled_version_is_loaded_whatever_the_policy_says(
    env: Environment,
) -> None:
    """Latest would unload it, and who asks by the label would get nothing."""
    env.apply(model("a", "", 'version_labels { key: "stable" value: 1 }'))
    env.add_version("a", 2)
    env.look()
    assert env.served("a") == 2
    assert env.served("a", label="stable") == 1


def test_a_policy_that_lists_no_version_unloads_those_with_a_label(
    env: Environment,
) -> None:
    """So a model is unloaded by RepositoryModelUnload, whatever its labels are."""
    label = 'version_labels { key: "stable" value: 1 }'
    env.apply(model("a", "", label))
    assert env.available("a") == [1]
    env.apply(model("a", "", f"{label} model_version_policy {{ specific {{}} }}"))
    assert env.available("a") == []


def test_announcing_a_canary_loads_no_older_version(env: Environment) -> None:
    """Only the canary comes, and the version that serves stays."""
    env.add_version("a", 2)
    env.look()
    canary = "traffic { canary { version: 3 } }"
    env.apply(model("a", "", canary))
    assert env.available("a") == [2]
    env.add_version("a", 3)
    env.look()
    assert sorted(env.available("a")) == [2, 3]
    assert env.served("a") == 2


@pytest.mark.parametrize("how", ["primary", "label"])
def test_what_answers_stays_loaded_until_its_successor_can(
    env: Environment, how: str
) -> None:
    """The named version serves until its successor can; the newest does not stand in.

    Between two rollbacks callers would get the version that was rolled back from.
    """

    def pointing_at(version: int) -> str:
        if how == "primary":
            return model("a", "", f"traffic {{ primary: {version} }}")
        named = f'version_labels {{ key: "x" value: {version} }}'
        policy = (
            f"model_version_policy {{ specific {{ versions: {version} versions: 3 }} }}"
        )
        return model("a", "", f"{named} {policy}")

    label = "x" if how == "label" else None
    for version in (2, 3):
        env.add_version("a", version)
    env.apply(pointing_at(1))
    assert env.available("a") == [3, 1]
    seen: list[int] = []
    env.bus.subscribe(lambda _: seen.append(env.served("a", label=label)))
    env.apply(pointing_at(2))
    assert env.available("a") == [3, 2]
    assert set(seen) == {1, 2}
    assert sorted(seen) == seen


@pytest.mark.parametrize("transition", ["", "transition: RESOURCE_PRESERVING"])
def test_a_primary_that_is_not_there_unloads_nothing(
    env: Environment, transition: str
) -> None:
    """The version that answers stays loaded until the named one can, however late it comes."""

    def pointing_at(version: int) -> str:
        return model("a", "", f"{transition} traffic {{ primary: {version} }}")

    for version in (2, 3):
        env.add_version("a", version)
    env.apply(pointing_at(2))
    assert env.served("a") == 2
    env.apply(pointing_at(9))
    env.look()
    assert env.available("a") == [3, 2]
    assert env.served("a") == 2
    env.broken.add("/models/a/9")
    env.add_version("a", 9)
    env.look()
    assert env.served("a") == 2
    env.files.remove("/models/a/9")
    env.look()
    assert env.served("a") == 2
    env.broken.clear()
    env.add_version("a", 10)
    env.apply(pointing_at(10))
    assert env.available("a") == [10]
    assert env.served("a") == 10
    env.apply(pointing_at(11))
    env.apply(model("a", "", transition))
    assert env.available("a") == [10]


@pytest.mark.parametrize("transition", ["", "transition: RESOURCE_PRESERVING"])
def test_a_label_for_a_version_that_is_to_come_unloads_nothing(
    env: Environment, transition: str
) -> None:
    """The label keeps the old version, whichever the policy names."""

    def pointing_at(version: int, policy: str) -> str:
        label = f'version_labels {{ key: "x" value: {version} }}'
        return model(
            "a", "", f"{transition} {label} model_version_policy {{ {policy} }}"
        )

    for version in (2, 3):
        env.add_version("a", version)
    env.apply(pointing_at(2, "specific { versions: 2 versions: 3 }"))
    env.apply(pointing_at(9, "specific { versions: 3 }"))
    env.look()
    assert env.available("a") == [3, 2]
    assert env.served("a", label="x") == 2
    env.add_version("a", 9)
    env.look()
    assert env.available("a") == [9, 3]
    assert env.served("a", label="x") == 9
    env.apply(pointing_at(10, "specific {}"))
    assert env.available("a") == []


def test_a_failed_rollback_leaves_what_answered(env: Environment) -> None:
    """Its target is damaged: the version before it goes on, not the newest."""
    for version in (2, 3):
        env.add_version("a", version)
    env.apply(model("a", "", "traffic { primary: 1 }"))
    env.broken.add("/models/a/2")
    env.apply(model("a", "", "traffic { primary: 2 }"))
    assert env.served("a") == 1
    assert env.available("a") == [3, 1]
    env.apply(model("a"))
    assert env.served("a") == 3
    assert env.available("a") == [3]


@pytest.mark.parametrize("how", ["latest", "primary", "label"])
def test_what_stands_in_for_a_failed_version_answers_as_before(
    env: Environment, how: str
) -> None:
    """Unloaded first, back because its successor failed: callers get it as they did.

    To go back to it for good loads nothing and fails no request.
    """

    def pointing_at(version: int) -> str:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
        extra = {
            "latest": "",
            "primary": f"traffic {{ primary: {version} }}",
            "label": f'version_labels {{ key: "x" value: {version} }}',
        }[how]
        return model("a", "", f"transition: RESOURCE_PRESERVING {policy} {extra}")

    label = "x" if how == "label" else None
    env.apply(pointing_at(1))
    env.add_version("a", 2)
    env.broken.add("/models/a/2")
    env.apply(pointing_at(2))
    assert env.available("a") == [1]
    assert env.served("a", label=label) == 1
    assert env.log.max_num_resident["a"] == 1
    num_loads = env.log.count("load")
    seen: list[int] = []
    env.bus.subscribe(lambda _: seen.append(env.served("a", label=label)))
    env.apply(pointing_at(1))
    env.look()
    assert env.served("a", label=label) == 1
    assert env.log.count("load") == num_loads
    assert set(seen) <= {1}


@pytest.mark.parametrize("how", ["primary", "label"])
def test_a_failed_primary_has_a_stand_in_though_another_version_serves(
    env: Environment, how: str
) -> None:
    """Unloaded first, back because the one that is meant failed: the other is not meant."""

    def pointing_at(version: int, others: str) -> str:
        extra = {
            "primary": f"traffic {{ primary: {version} }}",
            "label": f'version_labels {{ key: "x" value: {version} }}',
        }[how]
        policy = (
            f"model_version_policy {{ specific {{ versions: {version} {others} }} }}"
        )
        return model("a", "", f"transition: RESOURCE_PRESERVING {policy} {extra}")

    label = "x" if how == "label" else None
    env.apply(pointing_at(1, ""))
    for version in (2, 3):
        env.add_version("a", version)
    env.broken.add("/models/a/3")
    env.apply(pointing_at(3, "versions: 2"))
    assert env.available("a") == [2, 1]
    assert env.served("a", label=label) == 1
    env.apply(pointing_at(2, ""))
    assert env.available("a") == [2]
    assert env.served("a", label=label) == 2
    assert env.log.max_num_resident["a"] == 2


def test_a_version_that_comes_back_while_it_serves_is_not_loaded_again(
    env: Environment,
) -> None:
    """It served on because its successor failed, and is aspired again when that is gone."""
    env.add_version("a", 2)
    env.broken.add("/models/a/2")
    env.look()
    assert env.served("a") == 1
    num_loads = env.log.count("load")
    env.files.remove("/models/a/2")
    env.look()
    assert env.served("a") == 1
    assert env.log.count("load") == num_loads


@pytest.mark.parametrize("transition", ["", "transition: RESOURCE_PRESERVING"])
def test_a_changed_model_is_waited_for_though_it_serves(
    env: Environment, transition: str
) -> None:
    """Whoever applied another base path is answered by it when the outcome comes."""
    env.apply(model("a", "", transition))
    moved = env.add_version("a", 1, "/other/a")
    (outcome,) = env.apply(model("a", "/other/a", transition))
    assert outcome.error is None
    assert outcome.models[0].available_versions == [1]
    assert env.served_path("a") == moved
    broken = env.add_version("a", 1, "/broken/a")
    env.broken.add(broken)
    (outcome,) = env.apply(model("a", "/broken/a", transition))
    assert outcome.is_applied
    assert "{name: a version: 1} due to error: DATA_LOSS" in str(outcome.error)
    assert outcome.models[0].available_versions == [1]
    assert env.served_path("a") == moved
    # Whoever changes something else about it hears of it again.
    labelled = transition + ' version_labels { key: "x" value: 1 }'
    for error in ("DATA_LOSS", "None"):
        (outcome,) = env.apply(model("a", "/broken/a", labelled))
        assert error in str(outcome.error)


def test_a_model_of_which_no_version_is_asked_for_has_settled(env: Environment) -> None:
    """An empty list of versions is a wish, and nothing comes of it."""
    (outcome,) = env.apply(model("a", "", "model_version_policy { specific {} }"))
    assert "no version of a is asked for" in str(outcome.error)
    assert env.available("a") == []


def test_a_label_that_is_dropped_lets_its_version_go(env: Environment) -> None:
    """Nothing is kept for a move that nobody wants any more."""
    for version in (2, 3):
        env.add_version("a", version)
    policy = "model_version_policy { specific { versions: %d versions: 3 } }"
    label = ' version_labels { key: "x" value: %d }'
    env.apply(model("a", "", policy % 1 + label % 1))
    env.broken.add("/models/a/2")
    env.apply(model("a", "", policy % 2 + label % 2))
    assert env.served("a", label="x") == 1
    env.apply(model("a", "", policy % 2))
    assert env.available("a") == [3]


def test_a_label_moves_when_its_new_version_can_answer(env: Environment) -> None:
    """A move never leaves the label without an answer.

    Differs from AssignExistingLabelToUnavailableVersionDisallowed, agrees with
    ...Allowed, and is safer than it.
    """
    policy = "model_version_policy { all {} }"
    stable = 'version_labels { key: "stable" value: %d }'
    env.apply(model("a", "", f"{policy} {stable % 1}"))
    env.apply(model("a", "", f"{policy} {stable % 2}"))
    assert env.served("a", label="stable") == 1
    env.add_version("a", 2)
    env.look()
    assert env.served("a", label="stable") == 2


def test_looking_at_all_models_leaves_the_loop_time(env: Environment) -> None:
    """After a look that took long, the next one waits ten times as long."""
    looks: list[float] = []

    def look() -> None:
        looks.append(env.clock.now())
        env.clock.advance(0.005)

    env.core.on_change(look)
    env.apply(model("a"), model("b"))
    env.add_version("a", 2)
    env.look()
    assert len(looks) == 1
    env.clock.advance(0.05)
    env.expire()
    env.run_posted()
    assert len(looks) == 2
    assert env.served("a") == 2


def test_another_runtime_reloads_the_version_that_serves() -> None:
    """The new setting takes effect by loading anew; what was loaded serves until then."""
    env = Environment()
    env.add_version("a", 1)
    env.start(config(model("a")))
    before = env.puppet("a", 1)
    seen: list[int] = []
    env.bus.subscribe(lambda _: seen.append(env.served("a")))
    env.apply(model("a", "", "runtime { num_interpreters: 3 }"))
    after = env.puppet("a", 1)
    assert after is not before
    assert set(seen) == {1}  # it could be requested all the time
    assert "configuration changed" in env.monitor.version_states("a")[0].reason
    env.apply(
        model(
            "a",
            "",
            'runtime { num_interpreters: 3 } version_labels { key: "x" value: 1 }',
        )
    )
    assert env.puppet("a", 1) is after
    env.apply(model("a"))
    assert env.puppet("a", 1) is not after


@pytest.mark.parametrize(
    ("unload_when_empty", "left"), [(False, [1]), (True, list[int]())]
)
def test_an_emptied_repository_unloads_only_on_request(
    unload_when_empty: bool, left: list[int]
) -> None:
    """The flag holds for the directory of models as for those of versions."""
    env = Environment(unload_when_empty=unload_when_empty)
    env.add_version("a", 1)
    env.core.watch_repository("/models")
    env.start("model_config_list {}", Origin.MODEL_REPOSITORY)
    env.look()
    env.look()
    assert env.available("a") == [1]
    env.files.remove("/models/a")
    env.look()
    env.look()
    assert env.available("a") == left


def test_a_message_of_a_fleet_has_only_what_it_changes_listed() -> None:
    """One of ten thousand models is added without a look at the others; a reload looks."""
    env = Environment()
    env.add_version("a", 1)
    env.start(config(model("a")), Origin.FLEET)
    env.add_version("a", 2)
    env.add_version("b", 1)
    env.apply(model("a"), model("b"), origin=Origin.FLEET)
    assert (env.served("a"), env.served("b")) == (1, 1)
    env.look()
    assert env.served("a") == 2
    env.close()
