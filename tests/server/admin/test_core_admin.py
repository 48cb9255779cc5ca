"""tfs.server.admin.core_admin: AdminService over a core without threads."""

from __future__ import annotations

import functools
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from managers.loading.load_admission import ResourceTracker
from managers.versions.version import LoadStatus
from tests.server.admin.admin_operator import Operator, operating
from tests.server.environment import Environment, config, model
from tfs.cli.operating.model_table import server_lines
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from tfs.core.resources import ResourceAllocation
from tfs.core.stats import Stats
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.admin import core_admin
from tfs.server.admin.config_report import effective_text
from tfs.server.admin.report_words import problems_of
from tfs.server.admin.server_reports import ProcessFacts, ServerReports
from tfs.server.admin.version_report import fill_load
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import Message, parse_config_text

ALL = "model_version_policy { all {} }"
_RESERVED = ResourceAllocation.ram(10, 20)


def process_facts() -> ProcessFacts:
    return ProcessFacts(1.0, "0.1", "2.0", tuple, lambda: False, Stats())


def test_statistics_of_a_version_are_added_only_when_asked_for() -> None:
    """They are most of a large reply."""
    env = operating(1).env
    reports = ServerReports(env.core, env.clock, process_facts())
    for include_stats in (False, True):
        (model,) = reports.models((), include_stats).models
        (signature,) = model.versions[0].signatures
        assert signature.HasField("requests") is include_stats


def test_models_are_listed_with_states_and_reasons() -> None:
    """Every version, newest first, with why, where and what it answers."""
    operator = operating(1, 2, extra=f'{ALL} version_labels {{ key: "x" value: 3 }}')
    report = operator.model()
    assert (report.name, report.base_path, report.primary) == ("a", "/models/a", 2)
    assert [each.version for each in report.versions] == [2, 1]
    newest = report.versions[0]
    assert newest.state == 30
    assert "all and pinned 3 of /models/a" in newest.reason
    assert newest.path == "/models/a/2"
    assert [each.name for each in newest.signatures] == ["serving_default"]
    (label,) = report.labels
    assert not label.HasField("version")
    assert label.pending_version == 3
    assert not report.HasField("error")
    assert "# label x: nothing yet (3 not loaded)" in operator.show().effective_text


def test_a_version_that_failed_says_why() -> None:
    """GetModelStatus has no room for it; this has."""
    env = Environment()
    env.broken.add(env.add_version("a", 1))
    env.start(config(model("a")))
    report = Operator(env).model()
    assert report.versions[0].error.code == 15
    assert "damaged" in report.versions[0].error.message
    assert not report.HasField("primary")


def test_a_load_that_is_tried_again_says_when_and_why() -> None:
    """LOADING alone would leave an operator waiting in the dark."""
    report = pb.VersionReport(version=1)
    status = LoadStatus(2, 107.5, Unavailable("slow store"), reserved=_RESERVED)
    fill_load(report, status, now_s=100.0, wall_s=5000.0)
    assert report.load.num_retries == 2
    assert report.load.next_attempt_s == 5007.5
    assert report.memory.reserved_bytes == 30
    assert list(report.notes) == [
        "attempt 2 failed: UNAVAILABLE: slow store; the next one is in 7.5 s"
    ]


def test_a_loaded_version_says_how_long_that_took() -> None:
    """A loaded version of any platform says how long its load took."""
    report = operating(1).model().versions[0]
    assert report.load.HasField("duration_s")
    assert not report.load.HasField("next_attempt_s")


def test_a_refused_configuration_is_noted_until_one_is_accepted() -> None:
    """Status alone shows that the file and what runs are not the same."""
    operator = operating(1)
    operator.env.core.config.apply(
        lambda: parse_config_text("model_config_list {", "/models.config"),
        Origin.CONFIG_FILE,
        "edit",
        lambda _: None,
        path="/models.config",
    )
    notes = operator.ask(pb.ListModelsRequest()).notes
    assert any("(/models.config)" in note and "1:19" in note for note in notes)
    assert "1:19" in operator.show().last_refusal.error.message
    text = config(model("a", "", ALL))
    operator.ask(pb.ApplyConfigRequest(text=text))
    notes = operator.ask(pb.ListModelsRequest()).notes
    assert not any("refused" in note for note in notes)
    assert not operator.show().HasField("last_refusal")


def test_a_config_file_that_cannot_be_read_is_noted_while_it_cannot() -> None:
    """Whoever edits it in vain looks at the status next."""
    operator = operating(1)
    operator.env.core.config.file_problem = "it is gone"
    assert any("it is gone" in note for note in operator.show().notes)
    operator.env.core.config.file_problem = ""
    assert not any("config file" in note for note in operator.show().notes)


def test_what_is_wrong_with_the_server_is_noted() -> None:
    """A request log that is lost, say."""
    env = operating(1).env
    facts = replace(process_facts(), problems=lambda: ["the disk is full"])
    assert (
        "the disk is full" in ServerReports(env.core, env.clock, facts).config().notes
    )


def test_a_directory_of_models_that_is_gone_is_noted() -> None:
    """What was loaded serves on, and whoever looks learns why nothing new comes."""
    operator = operating(1)
    env = operator.env
    env.core.watch_repository("/models")
    env.look()
    assert not any("/models" in note for note in operator.show().notes)
    env.files.remove("/models")
    env.look()
    assert any("/models" in note for note in operator.show().notes)
    assert env.served("a") == 1


def test_the_text_of_a_configuration_is_read_off_the_serving_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a second for some thousand models, which no request may wait for."""
    readers: list[str] = []

    def read(text: str, where: str) -> Message:
        readers.append(threading.current_thread().name)
        return parse_config_text(text, where)

    monkeypatch.setattr(core_admin, "parse_config_text", read)
    env = Environment(has_threads=True)
    env.add_version("a", 1)
    env.start(config(model("a")))
    request = pb.ApplyConfigRequest(text=config(model("a")))
    assert Operator(env).ask(request).applied
    assert [name.rpartition("-")[0] for name in readers] == ["config"]
    assert env.close()


def test_a_base_path_that_is_missing_is_the_models_error() -> None:
    """There is no version to blame."""
    operator = operating()
    assert "does not exist" in operator.model().error.message


def test_a_model_that_is_not_configured_is_not_found() -> None:
    """A typo is no empty list."""
    operator = operating(1)
    with pytest.raises(NotFound, match="typo"):
        operator.ask(pb.ListModelsRequest(models=["typo"]))


def test_the_server_says_what_it_counts_when_asked() -> None:
    """Counters and gauges by name and labels, histograms whole; nothing unasked."""
    operator = operating(1)
    operator.stats.counter("things", kind="b").add(2)
    operator.stats.gauge("things", lambda: 7, kind="a")
    operator.stats.histogram("took_s", (1.0, 2.0)).observe(1.5)
    reply = operator.ask(pb.ListModelsRequest())
    assert not reply.server.stats
    request = pb.ListModelsRequest(include_stats=True)
    first, second, third = operator.ask(request).server.stats
    assert (first.name, dict(first.labels), first.value) == ("things", {"kind": "a"}, 7)
    assert (dict(second.labels), second.value) == ({"kind": "b"}, 2)
    assert list(third.histogram.counts) == [0, 1, 0]


def test_the_server_reports_itself() -> None:
    """A status without a model tells state, versions and memory of the server."""
    reply = operating(1).ask(pb.ListModelsRequest())
    assert reply.server.state == pb.ServerReport.SERVING
    assert reply.server.tfs_version == "0.1"
    assert reply.server.resident_bytes > 0
    assert any("--state_dir" in note for note in reply.notes)


def test_a_server_of_which_no_model_can_answer_does_not_say_that_it_serves() -> None:
    """Its state is what health says."""
    env = Environment()
    env.broken.add(env.add_version("a", 1))
    env.start(config(model("a")))
    server = Operator(env).ask(pb.ListModelsRequest()).server
    assert server.state == pb.ServerReport.NOT_SERVING
    assert not env.core.readiness.is_ready()
    assert server_lines(server, 1)[0].startswith("NOT_SERVING, 1 model(s)")


def test_the_server_says_what_models_may_use_together() -> None:
    """The limit, and how much of it is reserved; neither where there is no limit."""
    tracker = ResourceTracker.ram(1 << 30)
    tracker.reserve(ResourceAllocation.ram(5 << 20))
    env = operating(1).env
    (limited, free) = (
        Operator(env, memory).ask(pb.ListModelsRequest()).server
        for memory in (tracker, None)
    )
    assert limited.memory_limit_bytes == 1 << 30
    assert limited.memory_reserved_bytes == 5 << 20
    assert "models may use 1024.0 MiB, of which 5.0 MiB are reserved" in server_lines(
        limited, 0
    )
    assert not free.HasField("memory_limit_bytes")


def test_an_applied_config_is_told_model_by_model() -> None:
    """Changed fields, available versions, and that it will not survive."""
    operator = operating(1)
    operator.env.add_version("b", 1)
    text = config(model("a", "", "transition: RESOURCE_PRESERVING"), model("b"))
    reply = operator.ask(pb.ApplyConfigRequest(text=text))
    assert reply.applied
    assert reply.status.code == 0
    a, b = reply.models
    assert (a.model, a.change, list(a.changed_fields)) == (
        "a",
        pb.ModelOutcome.CHANGED,
        ["transition"],
    )
    assert (b.change, list(b.available_versions)) == (pb.ModelOutcome.ADDED, [1])
    assert any("survives a restart" in note for note in reply.notes)
    assert operator.show().base.origin == pb.APPLY_CONFIG


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.ApplyConfigRequest(text="model_config_list {"), 3),
        (pb.ApplyConfigRequest(), 3),
        (pb.ApplyConfigRequest(text="model_config_list { config { name: 'b' } }"), 3),
    ],
)
def test_a_refused_config_is_an_answer(
    request_: pb.ApplyConfigRequest, code: int
) -> None:
    """The call succeeds; its status says why nothing changed."""
    operator = operating(1)
    reply = operator.ask(request_)
    assert not reply.applied
    assert reply.status.code == code
    assert operator.env.served("a") == 1


@pytest.mark.parametrize(("name", "told"), [("new.config", "new.config"), ("", "text")])
def test_a_syntax_error_names_the_file_that_it_is_in(name: str, told: str) -> None:
    """Whoever sent a file reads which one is wrong."""
    request = pb.ApplyConfigRequest(text="model_config_list {", text_name=name)
    reply = operating(1).ask(request)
    assert reply.status.message.startswith(f"Invalid protobuf file: '{told}': ")


def test_showing_and_loading_changes_nothing() -> None:
    """The text is a config file, with the state as comments."""
    operator = operating(
        1,
        2,
        extra=f'{ALL} traffic {{ primary: 1 }} version_labels {{ key: "x" value: 1 }}',
    )
    shown = operator.show()
    assert "# version 2: AVAILABLE" in shown.effective_text
    assert "# label x: 1" in shown.effective_text
    assert parse_config_text(shown.effective_text, "shown") == shown.effective
    before = operator.env.log.events
    reply = operator.ask(pb.ApplyConfigRequest(text=shown.effective_text))
    assert [each.change for each in reply.models] == [pb.ModelOutcome.UNCHANGED]
    assert operator.show().effective == shown.effective
    assert operator.env.log.events == before


def test_a_version_that_stands_back_for_another_says_when_it_is_tried_again() -> None:
    """The status says when the version is tried again, and what is unloaded for it."""
    report = pb.VersionReport(version=1)
    report.state = 50  # type: ignore[assignment]
    status = LoadStatus(1, 160.0, Unavailable("busy"))
    fill_load(report, status, now_s=100.0, wall_s=5000.0)
    assert report.load.next_attempt_s == 5060.0
    assert list(report.notes) == [
        "attempt 1 failed; for the next one, in 60 s, what serves meanwhile is unloaded"
    ]


def test_a_server_is_behind_until_it_took_in_a_configuration() -> None:
    """Until then, what is wrong with its models may be over with the change."""
    operator = operating()
    env = operator.env
    env.broken.add(env.add_version("a", 1))
    env.look()
    judged = model("a", "", "validation { limits { max_mean_abs_diff: 0.5 } }")
    for changed in (judged, model("a", "/elsewhere")):
        env.apply(changed, settles=False)
        assert operator.ask(pb.ListModelsRequest(), settles=False).behind
        env.settle()
        assert not operator.ask(pb.ListModelsRequest()).behind


def test_a_version_that_failed_is_no_problem_once_nobody_asks_for_it() -> None:
    """Its files were removed, or the policy changed: its end stays among the versions."""
    operator = operating(1)
    env = operator.env
    path = env.add_version("a", 2)
    env.broken.add(path)
    env.look()
    assert problems_of(operator.model()) == [f"version 2 FAILED: {path} is damaged"]
    env.files.remove(path)
    env.look()
    assert problems_of(operator.model()) == []
    assert [each.version for each in operator.model().versions] == [2, 1]


@pytest.mark.parametrize(
    ("request_", "kind", "words"),
    [
        (pb.RetryLoadRequest(model="a"), FailedPrecondition, "no version of a that is"),
        (pb.RetryLoadRequest(model="a", version=2), FailedPrecondition, "it is AVAIL"),
        (
            pb.RetryLoadRequest(model="a", version=1),
            FailedPrecondition,
            "not asked for",
        ),
        (pb.RetryLoadRequest(model="a", version=7), NotFound, "version 7 of a is not"),
        (pb.RetryLoadRequest(model="b"), NotFound, "b"),
    ],
)
def test_what_has_not_failed_is_not_tried_again(
    request_: pb.RetryLoadRequest, kind: type[ServingError], words: str
) -> None:
    """Who means another version hears how this one stands."""
    operator = operating(1)
    operator.env.add_version("a", 2)
    operator.env.look()
    with pytest.raises(kind, match=words):
        operator.ask(request_)


def test_what_memory_is_reserved_is_shown_and_no_part_of_the_config() -> None:
    """The listing shows the limit and who reserved what of it, as comments only."""
    tracker = ResourceTracker.ram(64 << 20)
    tracker.reserve(ResourceAllocation.ram(5 << 20))
    env = operating(1).env
    running = env.core.config.running
    assert running is not None
    report = pb.ModelReport(name="a")
    memory = report.versions.add(version=1, state=30).memory
    memory.resident_bytes, memory.reserved_bytes = 3 << 20, 5 << 20
    text = effective_text(running, [report], tracker)
    assert "# Models may use 64.0 MiB, of which 5.0 MiB are reserved." in text
    assert ", 3.0 MiB, 5.0 MiB reserved" in text
    assert parse_config_text(text, "shown") == running.effective.message
    assert "Models may use" in Operator(env, tracker).show().effective_text


def canary_request(**fields: Any) -> pb.SetCanaryRequest:
    """Returns a request to try version 2 of a."""
    return pb.SetCanaryRequest(
        model="a", canary=model_config_pb2.Canary(version=2, **fields)
    )


def test_a_trial_starts_runs_and_ends() -> None:
    """One override; ending it gives the traffic back."""
    operator = operating(1, extra="")
    reply = operator.ask(canary_request(tee_fraction=1.0))
    assert reply.outcome.changed
    assert reply.outcome.override.made_by == "canary"
    assert not reply.outcome.override.persisted
    assert reply.outcome.model.canary.phase == pb.CanaryReport.WAITING
    operator.env.add_version("a", 2)
    operator.env.look()
    assert operator.env.request("a") == 1
    report = operator.model().canary
    assert report.phase == pb.CanaryReport.RUNNING
    assert (report.primary, report.num_teed_requests) == (1, 1)
    assert report.total.mean_abs_diff == 1.5
    operator.ask(pb.SetCanaryRequest(model="a"))
    assert not operator.model().HasField("canary")


def test_a_model_whose_primary_is_not_there_says_what_callers_get() -> None:
    """Available versions alone would look like a model that answers."""
    extra = f"{ALL} traffic {{ primary: 7 }}"
    (note,) = operating(1, 2, extra=extra).model().notes
    assert note.startswith("version 7 is the primary, and is not available")


def test_a_canary_that_does_not_load_says_why() -> None:
    """Whoever waits for a trial learns that it will not begin."""
    env = Environment()
    env.add_version("a", 1)
    env.broken.add(env.add_version("a", 2))
    env.start(config(model("a", "", "traffic { primary: 1 canary { version: 2 } }")))
    report = Operator(env).model().canary
    assert report.phase == pb.CanaryReport.WAITING
    assert report.reason == "version 2 is not available: /models/a/2 is damaged"


def test_a_rejected_canary_shows_its_numbers() -> None:
    """A rejected canary shows its numbers, and begins anew when it is set again."""
    operator = operating(1, 2, extra=ALL)
    guard = model_config_pb2.Guard(max_mean_abs_diff=0.5)
    request = canary_request(tee_fraction=1.0, guard=guard)
    operator.ask(request)
    operator.env.request("a")
    report = operator.model().canary
    assert report.phase == pb.CanaryReport.REJECTED
    assert "mean_abs_diff 1.5 > 0.5" in report.reason
    (shown,) = report.guards
    assert (shown.name, shown.value, shown.exceeded) == ("max_mean_abs_diff", 1.5, True)
    with pytest.raises(FailedPrecondition, match="rejected"):
        operator.ask(pb.PromoteRequest(model="a"))
    operator.ask(request)
    assert operator.model().canary.phase == pb.CanaryReport.RUNNING


def test_a_bad_trial_changes_nothing() -> None:
    """What is wrong with it is told."""
    operator = operating(1, 2, extra=f"{ALL} traffic {{ primary: 2 }}")
    with pytest.raises(InvalidArgument, match="is the primary"):
        operator.ask(canary_request())
    other = model_config_pb2.Canary(version=1, tee_fraction=2.0)
    with pytest.raises(InvalidArgument, match="tee_fraction"):
        operator.ask(pb.SetCanaryRequest(model="a", canary=other))
    assert operator.show().overrides == []


def test_a_rollback_from_what_answers_for_a_failed_version_says_so() -> None:
    """Who means to leave the failed one behind goes one further back than that."""
    operator = operating(1, 2)
    env = operator.env
    env.broken.add(env.add_version("a", 3))
    env.look()
    assert env.served("a") == 2
    reply = operator.ask(pb.RollbackRequest(model="a"))
    assert reply.version == 1
    assert (
        "version 3 had failed, and version 2 answered in its place; tfs rollback a 2 stays "
        "with that one" in reply.outcome.notes
    )
    again = operator.ask(pb.RollbackRequest(model="a", version=2))
    assert not any("had failed" in note for note in again.outcome.notes)


def test_a_rollback_to_a_version_that_is_damaged_says_so() -> None:
    """What answered goes on answering."""
    operator = operating(1, 2)
    operator.env.broken.add("/models/a/1")
    reply = operator.ask(pb.RollbackRequest(model="a", version=1))
    assert any("damaged" in note for note in reply.outcome.notes)
    assert operator.env.served("a") == 2


def test_only_a_rollback_is_ended_as_one() -> None:
    """A promotion is not undone by mistake."""
    operator = operating(1, 2, extra=ALL)
    with pytest.raises(FailedPrecondition, match="no override"):
        operator.ask(pb.RollbackRequest(model="a", end=True))
    operator.ask(pb.PromoteRequest(model="a", version=1))
    with pytest.raises(FailedPrecondition, match="made by promote"):
        operator.ask(pb.RollbackRequest(model="a", end=True))
    operator.ask(pb.ResetOverrideRequest(model="a"))
    assert operator.env.served("a") == 2


@pytest.mark.parametrize(
    "request_",
    [
        canary_request(),
        pb.PromoteRequest(model="a", version=1),
        pb.RollbackRequest(model="a"),
        pb.ApplyConfigRequest(text="model_config_list {}"),
    ],
    ids=["canary", "promote", "rollback", "apply"],
)
def test_a_dry_run_changes_nothing(request_: Any, tmp_path: Path) -> None:
    """It only says whether it could be done."""
    operator = operating(1, 2, extra=ALL, state_dir=str(tmp_path))
    before = operator.show()
    request_.validate_only = True
    operator.ask(request_)
    after = operator.show()
    assert after.effective == before.effective
    assert after.overrides == before.overrides
    assert list(tmp_path.iterdir()) == []


def test_a_server_starts_without_damaged_overrides(tmp_path: Path) -> None:
    """It serves what its config file says, and says what it left out."""
    (tmp_path / "overrides.pbtxt").write_text("damaged {")
    operator = operating(1, 2, state_dir=str(tmp_path))
    assert operator.env.served("a") == 2
    assert any("cannot be used" in note for note in operator.show().notes)


def test_an_override_that_cannot_be_kept_is_not_made(tmp_path: Path) -> None:
    """A rollback that a restart would undo is refused."""
    state_dir = tmp_path / "file"
    state_dir.write_text("not a directory")
    operator = operating(1, 2, extra=ALL, state_dir=str(state_dir))
    assert list(operator.show().notes) == [
        f"nothing can be kept in {state_dir}: File exists"
    ]
    with pytest.raises(FailedPrecondition, match="nothing was changed"):
        operator.ask(pb.RollbackRequest(model="a"))
    assert operator.env.served("a") == 2


def test_a_full_disk_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file can still be made there; what is to be kept could not be written."""
    full = functools.partial(open, "/dev/full", "wb", buffering=0)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full())
    operator = operating(1, state_dir=str(tmp_path))
    assert list(operator.show().notes) == [
        f"nothing can be kept in {tmp_path}: No space left on device"
    ]


def test_an_override_of_a_model_that_left_is_shown_inactive() -> None:
    """It is there when the model comes back."""
    operator = operating(1, 2, extra=ALL)
    operator.ask(pb.PromoteRequest(model="a", version=1))
    operator.ask(pb.ApplyConfigRequest(text="model_config_list {}"))
    (override,) = operator.show().overrides
    assert not override.active
    assert "no model a" in override.why_inactive
    operator.ask(pb.ApplyConfigRequest(text=config(model("a", "", ALL))))
    assert operator.env.served("a") == 1


def test_a_comment_cannot_become_configuration() -> None:
    """A reason with line ends stays within its comment."""
    env = Environment()
    path = env.add_version("a", 1)
    env.broken.add(path)
    env.start(config(model("a")))
    running = env.core.config.running
    assert running is not None
    report = pb.ModelReport(name="a")
    report.error.message = "one\nconfig { name: 'evil' }\r\n\x0bmore"
    text = effective_text(running, [report])
    assert parse_config_text(text, "shown") == running.effective.message
