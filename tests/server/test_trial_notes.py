"""tfs.server.trial_notes, alone and under a server core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.admin.admin_operator import operating
from tests.server.environment import Environment, model
from tfs.core.errors import FailedPrecondition, Internal, NotFound
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.model_settings import CanarySettings, GuardSettings
from tfs.server.trial_notes import Rejection, TrialNotes

SETTINGS = CanarySettings(2, 0.5, 0.0, GuardSettings(max_error_rate=0.0))
REJECTION = Rejection("error rate 1 > 0", 12.5)
TRIAL = (
    "model_version_policy { all {} } traffic { primary: 1 "
    "canary { version: 2 tee_fraction: 1 guard { max_error_rate: 0 } } }"
)
FILE = "trials.json"


def test_a_rejection_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """After a restart the rejection holds for the trial that was ended alone."""
    notes = TrialNotes(str(tmp_path))
    notes.reject("a", "/models/a", SETTINGS, REJECTION)
    notes.hold({"a": ("/models/a", 1)})
    again = TrialNotes(str(tmp_path))
    again.read()
    assert again.held("a", "/models/a") == 1
    assert again.held("a", "/elsewhere") is None
    assert again.rejected("a", "/models/a") == {2: "error rate 1 > 0"}
    assert again.find("a", "/models/a", SETTINGS) == REJECTION
    assert again.find("b", "/models/a", SETTINGS) is None
    assert again.find("a", "/elsewhere", SETTINGS) is None
    assert again.find("a", "/models/a", CanarySettings(2, 0.6)) is None
    again.forget("a", 2)
    again.hold({})
    assert json.loads((tmp_path / FILE).read_text()) == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 7}', '{"a": {"rejected": 1}}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """A trial that begins anew is rejected anew; the server starts."""
    (tmp_path / FILE).write_text(text)
    notes = TrialNotes(str(tmp_path))
    notes.read()
    assert notes.find("a", "/models/a", SETTINGS) is None


def test_a_state_directory_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path,
) -> None:
    """It holds for this process at least."""
    path = tmp_path / "file"
    path.write_text("not a directory")
    notes = TrialNotes(str(path))
    notes.reject("a", "/models/a", SETTINGS, REJECTION)
    assert notes.find("a", "/models/a", SETTINGS) == REJECTION


def reject(env: Environment) -> None:
    """Has the canary fail on a copy."""
    env.puppet("a", 2).error = Internal("broken")
    env.request("a")
    record = env.core.served.trial("a")
    assert record is not None
    assert record.rejected


def test_a_rejected_canary_stays_rejected_over_a_restart(tmp_path: Path) -> None:
    """Whoever restarts the server does not thereby try the version again."""
    reject(operating(1, 2, extra=TRIAL, state_dir=str(tmp_path)).env)
    again = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    report = again.model().canary
    assert report.phase == pb.CanaryReport.REJECTED
    assert "error" in report.reason
    again.env.request("a")
    assert len(again.env.puppet("a", 2).tasks) == 0


def test_without_a_state_directory_a_restart_tries_again() -> None:
    """There is nowhere to remember it."""
    reject(operating(1, 2, extra=TRIAL).env)
    again = operating(1, 2, extra=TRIAL)
    assert again.model().canary.phase != pb.CanaryReport.REJECTED


def test_setting_the_canary_again_ends_the_rejection_for_good(tmp_path: Path) -> None:
    """An operator's word counts more than a guard's, after a restart too."""
    operator = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    reject(operator.env)
    guard = model_config_pb2.Guard(max_error_rate=0.0)
    canary = model_config_pb2.Canary(version=2, tee_fraction=1.0, guard=guard)
    operator.ask("set_canary", pb.SetCanaryRequest(model="a", canary=canary))
    assert operator.model().canary.phase != pb.CanaryReport.REJECTED
    again = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    assert again.model().canary.phase != pb.CanaryReport.REJECTED


def test_a_rejection_outlives_a_rollback(tmp_path: Path) -> None:
    """Its end brings the trial back, but no callers to the version that was rejected."""
    operator = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    reject(operator.env)
    operator.ask("rollback", pb.RollbackRequest(model="a", version=1))
    assert not operator.model().HasField("canary")
    operator.ask("reset_override", pb.ResetOverrideRequest(model="a"))
    assert operator.model().canary.phase == pb.CanaryReport.REJECTED


HELD = "model_version_policy { all {} }"
UNNAMED = (
    f"{HELD} traffic {{ canary {{ version: %d tee_fraction: 1 "
    "guard { max_error_rate: 0 } } }"
)


def test_a_rejected_version_is_never_the_default() -> None:
    """Its trial moves or ends, in the file or by command: what answered goes on."""
    operator = operating(1, 2, extra=UNNAMED % 2)
    reject(operator.env)
    env = operator.env
    env.add_version("a", 3)
    env.look()
    assert env.served("a") == 1
    for extra in (UNNAMED % 3, HELD, UNNAMED % 4, HELD):
        env.apply(model("a", "", extra))
        assert env.served("a") == 1
    operator.ask("reset_override", pb.ResetOverrideRequest(model="a"))
    assert env.served("a") == 1
    operator.ask("promote", pb.PromoteRequest(model="a", version=3))
    assert env.served("a") == 3
    operator.ask("reset_override", pb.ResetOverrideRequest(model="a"))
    env.add_version("a", 4)
    env.look()
    assert env.served("a") == 4


@pytest.mark.parametrize("is_named", [True, False])
def test_a_trial_that_moves_leaves_the_version_that_answers(is_named: bool) -> None:
    """A running trial goes from 2 to 3, by command or in the file; 2 takes over nothing."""
    operator = operating(1, 2, 3, extra=UNNAMED % 3 if not is_named else HELD)
    env = operator.env
    before = env.served("a")
    for version in (4, 5, 6):
        if is_named:
            canary = model_config_pb2.Canary(version=version, tee_fraction=1.0)
            operator.ask("set_canary", pb.SetCanaryRequest(model="a", canary=canary))
        else:
            env.apply(model("a", "", UNNAMED % version))
        env.add_version("a", version)
        env.look()
        assert env.served("a") == before


@pytest.mark.parametrize("moved", [UNNAMED % 3, HELD])
def test_a_restarted_server_remembers_what_a_guard_rejected(
    tmp_path: Path, moved: str
) -> None:
    """After a crash, too, the rejected version is no default, whatever the file says."""
    operator = operating(1, 2, extra=UNNAMED % 2, state_dir=str(tmp_path))
    reject(operator.env)
    operator.env.kill()
    for extra in (moved, moved):
        again = operating(1, 2, 3, extra=extra, state_dir=str(tmp_path))
        assert again.env.served("a") == 1
        again.env.kill()


def test_what_was_rejected_answers_if_somebody_names_it(tmp_path: Path) -> None:
    """By force, or as primary of the config; a rollback alone passes it over."""
    operator = operating(1, 2, 3, extra=UNNAMED % 2, state_dir=str(tmp_path))
    reject(operator.env)
    env = operator.env
    assert env.served("a") == 3
    operator.ask("rollback", pb.RollbackRequest(model="a"))
    assert env.served("a") == 1
    with pytest.raises(FailedPrecondition, match="rejected"):
        operator.ask("promote", pb.PromoteRequest(model="a", version=2))
    operator.ask("promote", pb.PromoteRequest(model="a", version=2, force=True))
    assert env.served("a") == 2
    env.apply(model("a", "", HELD))
    operator.ask("reset_override", pb.ResetOverrideRequest(model="a"))
    assert env.served("a") == 3


def test_a_model_of_which_all_was_rejected_says_so() -> None:
    """Nobody gets the version by default, and the refusal says who can change that."""
    split = (
        f"{HELD} traffic {{ canary {{ version: 2 split_fraction: 1 "
        "guard { max_error_rate: 0 } } }"
    )
    operator = operating(2, extra=split)
    operator.env.puppet("a", 2).error = Internal("broken")
    operator.env.request("a")
    operator.env.apply(model("a", "", HELD))
    with pytest.raises(NotFound, match="rejected on trial: version 2; tfs promote"):
        operator.env.served("a")
    assert operator.env.served("a", version=2) == 2
