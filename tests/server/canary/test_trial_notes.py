"""tfs.server.canary.trial_notes, alone and under a server core."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.present import present
from tests.server.admin.admin_operator import operating
from tests.server.environment import Environment, model
from tfs.core.errors import FailedPrecondition, Internal, NotFound
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.canary.trial_notes import Rejection, TrialNotes, settings_form

SETTINGS = model_config_pb2.Canary(
    version=2, tee_fraction=0.5, guard=model_config_pb2.Guard(max_error_rate=0.0)
)
REJECTION = Rejection(settings_form(SETTINGS), "error rate 1 > 0", 12.5)
TRIAL = (
    "model_version_policy { all {} } traffic { primary: 1 "
    "canary { version: 2 tee_fraction: 1 guard { max_error_rate: 0 } } }"
)
FILE = "trials.json"


def test_a_rejection_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """After a restart the rejection holds for the trial that was ended alone."""
    notes = TrialNotes(str(tmp_path))
    notes.reject("a", "/models/a", 2, REJECTION)
    again = TrialNotes(str(tmp_path))
    again.read()
    assert again.rejected("a", "/models/a") == {2: "error rate 1 > 0"}
    assert again.find("a", "/models/a", SETTINGS) == REJECTION
    assert again.find("b", "/models/a", SETTINGS) is None
    assert again.find("a", "/elsewhere", SETTINGS) is None
    assert (
        again.find(
            "a", "/models/a", model_config_pb2.Canary(version=2, tee_fraction=0.6)
        )
        is None
    )
    again.forget("a", 2)
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
    notes.reject("a", "/models/a", 2, REJECTION)
    assert notes.find("a", "/models/a", SETTINGS) == REJECTION


def reject(env: Environment) -> None:
    """Has the canary fail on a copy."""
    env.puppet("a", 2).error = Internal("broken")
    env.request("a")
    assert present(env.core.served.trial("a")).rejected


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
    operator.ask(pb.SetCanaryRequest(model="a", canary=canary))
    assert operator.model().canary.phase != pb.CanaryReport.REJECTED
    again = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    assert again.model().canary.phase != pb.CanaryReport.REJECTED


def test_other_words_for_the_same_settings_leave_a_trial_as_it_is() -> None:
    """A config that only spells a default out costs an ended trial none of its figures."""
    env = operating(1, 2, extra=TRIAL).env
    reject(env)
    before = env.core.served.trial("a")
    env.apply(model("a", "", TRIAL.replace("guard {", "guard { min_samples: 1")))
    after = env.core.served.trial("a")
    assert after is present(before)
    assert after.rejected
    assert after.total.num_samples == 1


def test_a_rejection_outlives_a_rollback(tmp_path: Path) -> None:
    """Its end brings the trial back, but no callers to the version that was rejected."""
    operator = operating(1, 2, extra=TRIAL, state_dir=str(tmp_path))
    reject(operator.env)
    operator.ask(pb.RollbackRequest(model="a", version=1))
    assert not operator.model().HasField("canary")
    operator.ask(pb.ResetOverrideRequest(model="a"))
    assert operator.model().canary.phase == pb.CanaryReport.REJECTED


ALL = "model_version_policy { all {} }"
UNNAMED = (
    (
        "%s traffic {{ canary {{ version: %d tee_fraction: 1 "
        "guard {{ max_error_rate: 0 }} }} }}"
    )
    .replace("{{", "{")
    .replace("}}", "}")
)


@pytest.mark.parametrize("policy", [ALL, ""])
def test_a_rejected_version_is_never_the_default(policy: str) -> None:
    """Its trial moves or ends, and ``latest`` passes it over: what is older stays."""
    operator = operating(1, extra=UNNAMED % (policy, 2))
    env = operator.env
    env.add_version("a", 2)
    env.look()
    reject(env)
    for extra in (policy, UNNAMED % (policy, 3), policy):
        env.apply(model("a", "", extra))
        env.look()
        assert env.served("a") == 1
    operator.ask(pb.ResetOverrideRequest(model="a"))
    env.look()
    assert env.served("a") == 1
    env.add_version("a", 3)
    env.look()
    assert env.served("a") == 3


def test_a_trial_by_command_names_what_answers_as_primary() -> None:
    """A running trial goes from 4 to 5 and 6; none of them takes over anything."""
    operator = operating(1, 2, 3, extra=ALL)
    env = operator.env
    for version in (4, 5, 6):
        canary = model_config_pb2.Canary(version=version, tee_fraction=1.0)
        operator.ask(pb.SetCanaryRequest(model="a", canary=canary))
        env.add_version("a", version)
        env.look()
        assert env.served("a") == 3


@pytest.mark.parametrize("moved", [UNNAMED % (ALL, 3), ALL])
def test_a_restarted_server_remembers_what_a_guard_rejected(
    tmp_path: Path, moved: str
) -> None:
    """After a crash, too, the rejected version is no default, whatever the file says."""
    operator = operating(1, 2, extra=UNNAMED % (ALL, 2), state_dir=str(tmp_path))
    reject(operator.env)
    for extra in (moved, moved):
        again = operating(1, 2, extra=extra, state_dir=str(tmp_path))
        assert again.env.served("a") == 1


def test_what_was_rejected_answers_if_somebody_names_it(tmp_path: Path) -> None:
    """By force, or as primary of the config; a rollback alone passes it over."""
    operator = operating(1, 2, 3, extra=UNNAMED % (ALL, 2), state_dir=str(tmp_path))
    reject(operator.env)
    env = operator.env
    assert env.served("a") == 3
    operator.ask(pb.RollbackRequest(model="a"))
    assert env.served("a") == 1
    with pytest.raises(FailedPrecondition, match="rejected"):
        operator.ask(pb.PromoteRequest(model="a", version=2))
    operator.ask(pb.PromoteRequest(model="a", version=2, force=True))
    assert env.served("a") == 2
    env.apply(model("a", "", ALL))
    operator.ask(pb.ResetOverrideRequest(model="a"))
    assert env.served("a") == 3


def test_a_model_of_which_all_was_rejected_says_so() -> None:
    """Nobody gets the version by default, and the refusal says who can change that."""
    split = (
        f"{ALL} traffic {{ canary {{ version: 2 split_fraction: 1 "
        "guard { max_error_rate: 0 } } }"
    )
    operator = operating(2, extra=split)
    operator.env.puppet("a", 2).error = Internal("broken")
    operator.env.request("a")
    operator.env.apply(model("a", "", ALL))
    with pytest.raises(NotFound, match="rejected on trial: version 2; tfs promote"):
        operator.env.served("a")
    assert operator.env.served("a", version=2) == 2
