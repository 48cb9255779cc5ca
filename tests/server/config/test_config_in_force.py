"""Configs are validated whole, and who asked for one is told what becomes of it.

Cases of TensorFlow Serving's model_servers/server_core_test.cc are named where they
are asserted; docs/divergences.md says what is different on purpose.
"""

from __future__ import annotations

import pytest

from tests.present import present
from tests.server.environment import Environment, config, message, model, one
from tfs.core.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unknown,
)
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import Message, read_config_text
from tfs.server.config.waiting import ConfigOutcome


def test_a_reload_is_done_when_its_new_models_answer(env: Environment) -> None:
    """The caller hears of success only then (ReloadConfigWaitsTillModelsAvailable)."""
    outcomes = env.apply(model("a"), model("b"), settles=False)
    assert outcomes == []
    env.settle()
    assert one(outcomes).error is None
    assert env.served("b") == 1


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
    before = env.core.config.running
    outcome = one(env.apply(*models))
    assert isinstance(outcome.error, kind)
    assert words in outcome.error.message
    assert not outcome.is_applied
    assert env.core.config.running is before
    assert env.served("a") == 1
    assert present(env.core.config.refusal).error.message == outcome.error.message


def test_every_wrong_model_is_told(env: Environment) -> None:
    """A refusal says of each model what is wrong with it, not of the first alone."""
    outcome = one(env.apply(model("a", "x"), model("b", "y"), model("c")))
    errors = {each.model: each.status.message for each in outcome.models}
    assert sorted(errors) == ["a", "b"]
    assert "model b" in errors["b"]


@pytest.mark.parametrize(
    "extra", ["", 'model_platform: "tensorflow"', "model_type: TENSORFLOW"]
)
def test_a_platform_may_be_left_to_detection(env: Environment, extra: str) -> None:
    """Configs without a platform, or with a deprecated type, start unchanged
    (DeprecatedModelTypeConfig).
    """
    assert one(env.apply(model("a", "", extra))).error is None


def test_a_custom_config_is_no_way_to_go(env: Environment) -> None:
    """A list can only be replaced by a list (IllegalReconfigurationToCustomConfig)."""
    custom = Message()
    custom.custom_model_config.SetInParent()
    outcomes: list[ConfigOutcome] = []
    env.core.config.apply(lambda: custom, Origin.CONFIG_FILE, "test", outcomes.append)
    error = one(outcomes).error
    assert isinstance(error, FailedPrecondition)
    assert "It is only legal to transition from one ModelConfigList" in error.message


def test_an_empty_config_is_not_the_end_of_all_models(env: Environment) -> None:
    """A truncated file must not unload everything."""
    outcomes: list[ConfigOutcome] = []
    env.core.config.apply(Message, Origin.CONFIG_FILE, "test", outcomes.append)
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
    by_name = {each.model: each for each in outcome.models}
    assert by_name["a"].status.code == 0
    assert by_name["b"].status.code != 0
    assert env.served("a") == 1


def test_a_model_that_does_not_exist_blocks_nothing(env: Environment) -> None:
    """A typo is told at once, and the next config is read."""
    outcome = one(env.apply(model("a"), model("typo")))
    assert "/models/typo of typo does not exist" in present(outcome.error).message
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


@pytest.mark.parametrize(
    ("base_path", "extra", "words"),
    [
        ("/nowhere", "", "/nowhere of a does not exist"),
        (
            "",
            "model_version_policy { specific { versions: 77 } }",
            "version 77 of a is",
        ),
    ],
)
def test_a_change_to_what_is_not_there_is_told_though_the_old_version_serves(
    env: Environment, base_path: str, extra: str, words: str
) -> None:
    """Whoever mistypes a base path, or a version, hears of it from the reload."""
    outcome = one(env.apply(model("a", base_path, extra)))
    assert outcome.is_applied
    assert words in present(outcome.error).message
    assert env.served("a") == 1
    again = one(env.apply(model("a", base_path, extra)))
    assert again.error is None, "nothing was changed, and it serves"


def test_a_change_that_the_manager_has_not_heard_of_is_waited_for(
    env: Environment,
) -> None:
    """A reload does not end before the manager has taken the change in."""
    env.add_version("a", 1, "/models/other")
    outcomes = env.apply(model("a", "/models/other"), settles=False)
    env.run_posted()  # those who wait are looked after; the manager has not stepped
    assert outcomes == []
    env.settle()
    assert one(outcomes).error is None
    assert env.served_path("a") == "/models/other/1"


def test_a_primary_that_is_not_there_is_told_with_what_serves_meanwhile(
    env: Environment,
) -> None:
    """Requests that name no version get no other: the reload has not done what it says."""
    gone = model("a", "", "traffic { primary: 9 }")
    for _ in range(2):  # the same again is no better
        outcome = one(env.apply(gone))
        assert outcome.is_applied
        assert outcome.error is not None
        assert (
            "version 9, which is to be the primary, is not under the base path; "
            "version 1 answers meanwhile" in outcome.error.message
        )
    env.add_version("c", 1)
    (added,) = one(env.apply(model("c", "", "traffic { primary: 9 }"))).models[1:]
    assert added.status.code != 0
    assert added.status.message.endswith("that name no version get NOT_FOUND")
    env.add_version("c", 9)
    env.look()
    assert one(env.apply(model("c", "", "traffic { primary: 9 }"))).error is None


def test_a_primary_is_waited_for_while_it_may_come(env: Environment) -> None:
    """One that loads, or whose files are not still yet, is no failure."""
    env.files.write("/models/a/9/model.pt", b"half")
    env.files.write("/models/a/9/signatures.json", b"{}")
    outcomes = env.apply(model("a", "", "traffic { primary: 9 }"))
    assert outcomes == []
    env.add_version("a", 9)
    env.look()
    assert one(outcomes).error is None
    assert env.served("a") == 9


def test_a_version_that_is_missing_beside_others_is_a_note(env: Environment) -> None:
    """What serves is what was asked for, as far as it is there."""
    named = "model_version_policy { specific { versions: 1 versions: 77 } }"
    outcome = one(env.apply(model("a", "", named)))
    assert outcome.error is None
    assert "version 77 of a is wanted, but is not under /models/a" in outcome.notes


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_jump_of_the_wall_clock_holds_nobody_up(
    env: Environment, jump_s: float
) -> None:
    """Which failures are new is told by what was known before, not by the time."""
    env.broken.add("/models/b/1")
    outcomes = env.apply(model("a"), model("b"), settles=False)
    env.clock.set_wall(env.clock.wall_s() + jump_s)
    env.settle()
    assert "/models/b/1 is damaged" in present(one(outcomes).error).message


def test_a_newer_config_supersedes_one_that_waits(env: Environment) -> None:
    """Nobody waits behind a config that hangs."""
    first = env.apply(model("a"), model("b"), settles=False)
    second = env.apply(model("a"), settles=False)
    assert isinstance(one(first).error, Aborted)
    env.settle()
    assert one(second).error is None


def test_the_same_config_again_supersedes_nobody(env: Environment) -> None:
    """Who edits the file and reloads it by hand is not told off by the edit's own look."""
    first = env.apply(model("a"), model("b"), settles=False)
    second = env.apply(model("a"), model("b"), origin=Origin.CONFIG_FILE, settles=False)
    assert first == []
    env.settle()
    assert one(first).error is None
    assert one(second).error is None


def test_a_reload_waits_for_what_an_earlier_one_still_waits_for(
    env: Environment,
) -> None:
    """Who asks again after a deadline is not told that a model answers that still loads."""
    for asked_again in (False, True):
        outcomes = env.apply(model("a"), model("b"), waits_for_all=False, settles=False)
        assert outcomes == [], asked_again
    env.settle()
    error = one(outcomes).error
    assert error is None
    env.broken.add("/models/c/1")
    env.add_version("c", 1)
    later = env.apply(model("a"), model("c"), waits_for_all=False)
    assert one(later).error is not None
    again = env.apply(model("a"), model("c"), waits_for_all=False)
    assert one(again).error is None, "it failed before, and is not new"


def test_who_waits_is_answered_when_the_server_ends(env: Environment) -> None:
    """A reload that waits for a load, or comes as late, keeps no server from draining."""
    waiting = env.apply(model("a"), model("b"), settles=False)
    env.core.stop_waiting()
    late = env.apply(model("a"), model("b"), model("c"), settles=False)
    for outcomes in (waiting, late):
        outcome = one(outcomes)
        assert isinstance(outcome.error, Aborted)
        assert "shutting down" in outcome.error.message
        assert outcome.is_applied


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
    """A model that was broken before fails no reload, as in TensorFlow Serving."""
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


def test_a_reload_by_rpc_waits_for_a_model_that_it_corrects(env: Environment) -> None:
    """One that did not answer is as good as new: OK means that it answers now."""
    env.add_version("b", 1)
    env.broken.add(env.add_version("c", 1))

    def reload(*models: str, settles: bool = True) -> list[ConfigOutcome]:
        return env.apply(model("a"), *models, waits_for_all=False, settles=settles)

    assert one(reload(model("b", "/models/typo"))).error is not None
    outcomes = reload(model("b"), settles=False)
    assert outcomes == []
    env.settle()
    assert one(outcomes).error is None
    assert env.served("b") == 1
    assert one(reload(model("c", "/models/typo"))).error is not None
    assert "DATA_LOSS" in present(one(reload(model("c"))).error).message
    only = "model_version_policy { specific { versions: 7 } }"
    assert one(reload(model("d", "/models/b", only))).error is not None
    assert one(reload(model("d", "/models/b"))).error is None
    assert env.served("d") == 1


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (Origin.CONFIG_FILE, "only the config file survives a restart; this configu"),
        (Origin.CONFIG_FILE, "the next edit of the file replaces it"),
        (Origin.COMMAND_LINE, "only what the command line says survives a restart"),
        (Origin.MODEL_REPOSITORY, "the next model that comes or goes there replaces"),
    ],
)
def test_a_config_that_does_not_last_says_what_ends_it(
    first: Origin, words: str
) -> None:
    """The reply says that a restart brings back what the server was started with."""
    env = Environment()
    env.add_version("a", 1)
    env.start(config(model("a")), first)
    (note,) = one(env.apply(model("a", "", "transition: RESOURCE_PRESERVING"))).notes
    assert words in note


def test_validation_alone_changes_nothing(env: Environment) -> None:
    """A dry run says what would change."""
    before = env.core.config.running
    outcome = one(env.apply(model("b"), validate_only=True))
    assert outcome.error is None
    assert {e.model: e.change for e in outcome.models} == {
        "a": pb.ModelOutcome.REMOVED,
        "b": pb.ModelOutcome.ADDED,
    }
    assert env.core.config.running is before
    refused = one(env.apply(model("b", "x"), validate_only=True))
    assert refused.error is not None
    assert env.core.config.refusal is None


def test_the_config_cannot_be_changed_before_the_start() -> None:
    """A request that comes before the first config is told to come again."""
    environment = Environment()
    outcome = one(environment.apply(model("a")))
    assert present(outcome.error).code.name == "UNAVAILABLE"


def test_an_unknown_platform_ends_the_start() -> None:
    """A server does not start with what it cannot do."""
    environment = Environment()
    text = config(model("a", "", 'model_platform: "caffe"'))
    with pytest.raises(InvalidArgument, match="caffe"):
        environment.core.config.check(read_config_text(text, "test"))


def test_closing_ends_every_wait(env: Environment) -> None:
    """Nobody waits for a server that is gone."""
    outcomes = env.apply(model("a"), model("b"), settles=False)
    env.core.close(env.clock.now() + 1)
    assert isinstance(one(outcomes).error, Aborted)
