"""tfs.server.canary.rejections, alone and under a server core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.admin.admin_operator import Operator, operating
from tests.server.environment import Environment, config, model
from tfs.core.errors import Internal
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.canary.rejections import CanaryRejections, Rejection
from tfs.server.model_settings import CanarySettings, GuardSettings

SETTINGS = CanarySettings(2, 0.5, 0.0, GuardSettings(max_error_rate=0.0))
REJECTION = Rejection("error rate 1 > 0", 12.5)
TRIAL = (
    "model_version_policy { all {} } traffic { primary: 1 "
    "canary { version: 2 tee_fraction: 1 guard { max_error_rate: 0 } } }"
)
FILE = "canary_rejections.json"


def test_a_rejection_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """After a restart the rejection holds for the trial that was ended alone."""
    CanaryRejections(str(tmp_path)).put("a", "/models/a", SETTINGS, REJECTION)
    again = CanaryRejections(str(tmp_path))
    again.read()
    assert again.find("a", "/models/a", SETTINGS) == REJECTION
    assert again.find("b", "/models/a", SETTINGS) is None
    assert again.find("a", "/elsewhere", SETTINGS) is None
    assert again.find("a", "/models/a", CanarySettings(2, 0.6)) is None
    again.forget("a")
    assert json.loads((tmp_path / FILE).read_text()) == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 7}', '{"a": {"reason": 1}}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """A trial that begins anew is rejected anew; the server starts."""
    (tmp_path / FILE).write_text(text)
    rejections = CanaryRejections(str(tmp_path))
    rejections.read()
    assert rejections.find("a", "/models/a", SETTINGS) is None


def test_a_state_directory_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path,
) -> None:
    """It holds for this process at least."""
    path = tmp_path / "file"
    path.write_text("not a directory")
    rejections = CanaryRejections(str(path))
    rejections.put("a", "/models/a", SETTINGS, REJECTION)
    assert rejections.find("a", "/models/a", SETTINGS) == REJECTION


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


def test_the_end_of_a_trial_is_the_end_of_its_rejection(tmp_path: Path) -> None:
    """The same version may be put on trial another day."""
    operator = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    reject(operator.env)
    without = config(model("a", "", "model_version_policy { all {} }"))
    operator.ask("apply_config", pb.ApplyConfigRequest(text=without))
    assert json.loads((tmp_path / FILE).read_text()) == {}
    again = Operator(Environment(str(tmp_path)))
    again.env.add_version("a", 1)
    again.env.add_version("a", 2)
    again.env.start(config(model("a", "", TRIAL)))
    assert again.model().canary.phase != pb.CanaryReport.REJECTED
