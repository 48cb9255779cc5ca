"""tfs.server.core: configs take effect whole or not at all.

Cases of TensorFlow Serving's model_servers/server_core_test.cc are named where they
are asserted; docs/divergences.md says what is different on purpose.
"""

from __future__ import annotations

import os

import pytest

from tests.server.environment import Environment, config, message, model
from tfs.core.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unknown,
)
from tfs.server.config.config_outcome import ConfigOutcome
from tfs.server.config.running_config import Change, Origin
from tfs.server.config.server_config import Message, read_config_text


@pytest.fixture
def env() -> Environment:
    """A core with models a and b at hand, serving a."""
    environment = Environment()
    for name in ("a", "b"):
        environment.add_version(name, 1)
    environment.start(config(model("a")))
    return environment


def one(outcomes: list[ConfigOutcome]) -> ConfigOutcome:
    """Returns the only outcome there is."""
    (outcome,) = outcomes
    return outcome


def test_the_first_config_loads_its_models(env: Environment) -> None:
    """A model of the first config answers (CreateWaitsTillModelsAvailable)."""
    assert env.served("a") == 1
    assert env.core.is_ready()


def test_a_reload_is_done_when_its_new_models_answer(env: Environment) -> None:
    """The caller hears of success only then (ReloadConfigWaitsTillModelsAvailable)."""
    outcomes = env.apply(model("a"), model("b"), settles=False)
    assert outcomes == []
    env.settle()
    assert one(outcomes).error is None
    assert env.served("b") == 1


def test_a_server_stays_ready_while_a_model_is_added(env: Environment) -> None:
    """Who serves is not sent away because of what is still loading beside it."""
    env.apply(model("a"), model("b"), settles=False)
    assert env.core.is_ready()
    assert env.core.is_model_available("b") is False
    env.settle()
    assert env.core.is_model_available("b")


def test_a_server_is_ready_when_all_models_of_its_start_have_settled() -> None:
    """One that loads for longer keeps requests away from it."""
    environment = Environment()
    for name in ("a", "b"):
        environment.add_version(name, 1)
    environment.core.start(read_config_text(config(model("a"), model("b")), "test"))
    assert not environment.core.is_ready()
    environment.settle()
    assert environment.core.is_ready()


def test_a_model_left_out_is_unloaded(env: Environment) -> None:
    """Omission means unload (ReloadConfigUnloadsModels)."""
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


@pytest.mark.parametrize(
    ("models", "kind", "words"),
    [
        # RelativePathFails, AbsolutePathWithEmptyPathFails, MixedAbsoluteRelativeFails
        ([model("b", "relative")], InvalidArgument, "absolute path or URI; got"),
        (['config { name: "b" }'], InvalidArgument, "got base_path()="),
        ([model("a"), model("b", "x/y")], InvalidArgument, "model b"),
        # DuplicateModelNameInConfig
        ([model("b"), model("b")], InvalidArgument, "list model b multiple times"),
        # UnknownModelPlatform
        (
            [model("b", "", 'model_platform: "caffe"')],
            InvalidArgument,
            "platform caffe",
        ),
        # IllegalConfigModelTypeAndPlatformSet
        (
            [model("b", "", 'model_type: TENSORFLOW model_platform: "tensorflow"')],
            InvalidArgument,
            "Illegal setting both ModelServerConfig::model_type (deprecated)",
        ),
        (
            [model("b", "", "model_type: OTHER")],
            InvalidArgument,
            "choice 2 not supported",
        ),
        # IllegalToChangeModelPlatform
        (
            [model("a", "", 'model_platform: "hashmap"')],
            FailedPrecondition,
            "For model a platform was tensorflow and new platform requested is hashmap",
        ),
        (
            [model("b", "", "logging_config { log_collector_config { type: 'x' } }")],
            InvalidArgument,
            "logging_config",
        ),
    ],
)
def test_a_bad_config_changes_nothing(
    env: Environment, models: list[str], kind: type[ServingError], words: str
) -> None:
    """Validation comes first; what was served is served on."""
    before = env.core.running
    outcome = one(env.apply(*models))
    assert isinstance(outcome.error, kind)
    assert words in outcome.error.message
    assert not outcome.is_applied
    assert env.core.running is before
    assert env.served("a") == 1
    refusal = env.core.refusal
    assert refusal is not None
    assert refusal.error is outcome.error


def test_every_wrong_model_is_told(env: Environment) -> None:
    """A refusal says of each model what is wrong with it, not of the first alone."""
    outcome = one(env.apply(model("a", "x"), model("b", "y"), model("c")))
    errors = {each.change.name: each.error for each in outcome.models}
    assert sorted(errors) == ["a", "b"]
    assert "model b" in str(errors["b"])


@pytest.mark.parametrize(
    "extra", ["", 'model_platform: "tensorflow"', "model_type: TENSORFLOW"]
)
def test_a_platform_may_be_left_to_detection(env: Environment, extra: str) -> None:
    """Unchanged configs start (DeprecatedModelTypeConfig)."""
    assert one(env.apply(model("a", "", extra))).error is None


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


def test_a_custom_config_is_no_way_to_go(env: Environment) -> None:
    """From a list only to a list (IllegalReconfigurationToCustomConfig)."""
    custom = Message()
    custom.custom_model_config.SetInParent()
    outcomes: list[ConfigOutcome] = []
    env.core.apply(custom, Origin.CONFIG_FILE, "test", outcomes.append)
    error = one(outcomes).error
    assert isinstance(error, FailedPrecondition)
    assert "It is only legal to transition from one ModelConfigList" in error.message


def test_an_empty_config_is_not_the_end_of_all_models(env: Environment) -> None:
    """A truncated file must not unload everything."""
    outcomes: list[ConfigOutcome] = []
    env.core.apply(Message(), Origin.CONFIG_FILE, "test", outcomes.append)
    assert isinstance(one(outcomes).error, InvalidArgument)
    assert env.served("a") == 1


def test_a_failing_model_is_named_and_the_others_serve(env: Environment) -> None:
    """The config stays, its error names the version and why (ErroringModel)."""
    env.broken.add("/models/b/1")
    outcome = one(env.apply(model("a"), model("b")))
    assert outcome.is_applied
    assert isinstance(outcome.error, Unknown)
    assert outcome.error.message == (
        "1 model(s) did not become available: "
        "{{{name: b version: 1} due to error: DATA_LOSS: /models/b/1 is damaged}, }"
    )
    by_name = {each.change.name: each for each in outcome.models}
    assert by_name["a"].error is None
    assert by_name["b"].error is not None
    assert env.served("a") == 1


def test_a_model_that_does_not_exist_blocks_nothing(env: Environment) -> None:
    """A typo is told at once, and the next config is read."""
    outcome = one(env.apply(model("a"), model("typo")))
    assert outcome.error is not None
    assert "/models/typo of typo does not exist" in outcome.error.message
    assert one(env.apply(model("a"), model("b"))).error is None


def test_what_failed_under_an_earlier_config_does_not_count(env: Environment) -> None:
    """A corrected base path is judged by what comes of it, not by the past."""
    env.broken.add("/models/b/1")
    env.apply(model("a"), model("b"))
    env.clock.advance(1)
    env.add_version("b", 1, "/good")
    outcomes = env.apply(model("a"), model("b", "/good"), settles=False)
    assert outcomes == []
    env.settle()
    assert one(outcomes).error is None
    assert env.served("b") == 1


def test_what_failed_before_is_told_where_nothing_comes_of_the_config(
    env: Environment,
) -> None:
    """Nobody waits for a version that failed and is not tried again."""
    env.broken.add("/models/b/1")
    env.apply(model("a"), model("b"))
    for extra in ("", 'version_labels { key: "x" value: 1 }'):
        outcome = one(env.apply(model("a"), model("b", "", extra)))
        assert outcome.error is not None
        assert "/models/b/1 is damaged" in outcome.error.message


def test_a_base_path_counts_more_than_what_failed_under_the_old_one(
    env: Environment,
) -> None:
    """The blame is where the config points now."""
    env.broken.add("/models/b/1")
    env.apply(model("a"), model("b"))
    outcome = one(env.apply(model("a"), model("b", "/nowhere")))
    assert outcome.error is not None
    assert "/nowhere of b does not exist" in outcome.error.message


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_jump_of_the_wall_clock_holds_nobody_up(
    env: Environment, jump_s: float
) -> None:
    """Which failures are new is told by what was known before, not by the time."""
    env.broken.add("/models/b/1")
    outcomes = env.apply(model("a"), model("b"), settles=False)
    env.clock.set_wall(env.clock.wall_s() + jump_s)
    env.settle()
    error = one(outcomes).error
    assert error is not None
    assert "/models/b/1 is damaged" in error.message


def test_a_newer_config_supersedes_one_that_waits(env: Environment) -> None:
    """Nobody waits behind a config that hangs."""
    first = env.apply(model("a"), model("b"), settles=False)
    second = env.apply(model("a"), settles=False)
    assert isinstance(one(first).error, Aborted)
    env.settle()
    assert one(second).error is None


def test_a_caller_is_answered_before_its_deadline(env: Environment) -> None:
    """Waiting ends shortly before the deadline, and says what is missing."""
    now_s = env.clock.now()
    outcomes = env.apply(model("a"), model("b"), deadline_s=now_s + 1, settles=False)
    env.clock.advance(0.9)
    env.expire()
    outcome = one(outcomes)
    assert isinstance(outcome.error, DeadlineExceeded)
    assert "1 model(s) are not available yet: b" in outcome.error.message
    assert outcome.is_applied
    env.settle()
    assert env.served("b") == 1
    assert len(outcomes) == 1


def test_a_reload_by_rpc_waits_for_new_models_alone(env: Environment) -> None:
    """As in TensorFlow Serving, a model that was broken before fails no reload."""
    env.broken.add("/models/b/1")
    env.apply(model("a"), model("b"))
    errors: list[ServingError | None] = []
    env.core.apply_config(
        message(model("a"), model("b", "", "transition: RESOURCE_PRESERVING")),
        "reload",
        None,
        errors.append,
    )
    env.settle()
    assert errors == [None]


def test_validation_alone_changes_nothing(env: Environment) -> None:
    """A dry run says what would change."""
    before = env.core.running
    outcome = one(env.apply(model("b"), validate_only=True))
    assert outcome.error is None
    assert {e.change.name: e.change.change for e in outcome.models} == {
        "a": Change.REMOVED,
        "b": Change.ADDED,
    }
    assert env.core.running is before
    refused = one(env.apply(model("b", "x"), validate_only=True))
    assert refused.error is not None
    assert env.core.refusal is None


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


@pytest.mark.parametrize("how", ["primary", "label"])
def test_what_answers_stays_loaded_until_its_successor_can(
    env: Environment, how: str
) -> None:
    """Also where the newest version serves all the time: it is not what was asked for.

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


def test_the_config_cannot_be_changed_before_the_start() -> None:
    """A request that comes before the first config is told to come again."""
    environment = Environment()
    outcome = one(environment.apply(model("a")))
    assert outcome.error is not None
    assert outcome.error.code.name == "UNAVAILABLE"


def test_an_unknown_platform_ends_the_start() -> None:
    """A server does not start with what it cannot do."""
    environment = Environment()
    text = config(model("a", "", 'model_platform: "caffe"'))
    with pytest.raises(InvalidArgument, match="caffe"):
        environment.core.check(read_config_text(text, "test"))


def test_closing_ends_every_wait(env: Environment) -> None:
    """Nobody waits for a server that is gone."""
    outcomes = env.apply(model("a"), model("b"), settles=False)
    env.core.close(env.clock.now() + 1)
    assert isinstance(one(outcomes).error, Aborted)


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
    assert len(looks) == 2
    assert env.served("a") == 2


def test_the_first_loads_get_more_threads_and_later_ones_do_not() -> None:
    """A start has nobody to disturb (ConnectSourcesWithFastInitialLoad)."""
    env = Environment(has_threads=True)
    pool = env.threads("load")
    before = pool.num_threads
    env.core.begin(
        read_config_text("model_config_list {}", "test"), Origin.MODEL_REPOSITORY
    )
    env.settle()
    assert pool.num_threads == max(before, 4 * (os.cpu_count() or 1))
    env.add_version("a", 1)
    env.broken.add(env.add_version("b", 1))
    env.apply(model("a"), model("b"))
    assert env.available("a") == [1]
    assert pool.num_threads == before


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
