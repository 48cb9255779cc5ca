"""Versions are probed before servers are told of them: where, and what that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hosted.fleets import MIB, check, server, state_in
from tfs.core.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    ResourceExhausted,
    ServingError,
)
from tfs.hosted import edits
from tfs.hosted.controller import Controller
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import HostedModel, read_config
from tfs.hosted.probes import PER_VERSION_BYTES, newest_version_bytes
from tfs.hosted.reports import JobSighting
from tfs.proto.tfs.v1 import admin_service_pb2
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock

Reply = admin_service_pb2.ProbeResponse
SOUND = Reply(outcome=Reply.OK, load_peak_bytes=8 * MIB, work_peak_bytes=30 * MIB)
CRASHED = Reply(outcome=Reply.CRASHED, reason="its interpreter was ended by SIGSEGV")


class Fleet:
    """A controller over servers whose answers a test gives."""

    def __init__(self, folder: Path) -> None:
        self.state = state_in(folder)
        self.asked: list[str] = []
        self.answers: dict[str, Reply | ServingError] = {}
        clock = FakeClock()
        self.controller = Controller(
            self.state,
            EditReader(check, lambda _: 10 * MIB),
            clock,
            ask_for_probe=self._probe,
        )
        sizes = {"a": 100, "b": 300, "c": 200}
        for address, size in sizes.items():
            self.state.change(edits.put_job(server(address, size * MIB)))
        self.state.note({}, {each: JobSighting((each,)) for each in sizes})
        self.base_path = folder / "m"
        (self.base_path / "1").mkdir(parents=True)
        self.num_requests = 0

    def _probe(
        self, address: str, request: admin_service_pb2.ProbeRequest, timeout_s: float
    ) -> Reply:
        self.asked.append(address)
        answer = self.answers.get(address, SOUND)
        if isinstance(answer, ServingError):
            raise answer
        return answer

    def ask(self, request: Any, request_id: str = "") -> list[pb.Op]:
        self.num_requests += 1
        request.edit.request_id = request_id or f"r{self.num_requests}"
        answers: list[pb.Op] = []
        self.controller.change(request, None, answers.append)
        return answers

    def add_model(self, **hints: int) -> None:
        path = str(self.base_path)
        self.ask(pb.AddModelRequest(model="m", base_path=path, hints=pb.Hints(**hints)))
        self.asked.clear()

    def add_version(self, version: int, request_id: str = "") -> list[pb.Op]:
        (self.base_path / str(version)).mkdir(exist_ok=True)
        request = pb.AddVersionRequest(model="m", version=version)
        return self.ask(request, request_id)

    @property
    def model(self) -> HostedModel:
        return self.state.read().fleet.models["m"]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_the_server_with_the_most_room_tries_it(fleet: Fleet) -> None:
    """What it took counts in the place of file sizes, for both versions of a change."""
    fleet.add_model()
    assert fleet.model.memory_bytes == 60 * MIB
    fleet.answers["b"] = Reply(outcome=Reply.OK, work_peak_bytes=50 * MIB)
    fleet.add_version(2)
    assert fleet.asked == ["b"]
    assert fleet.model.memory_bytes == 100 * MIB


def test_a_hint_overrides_what_was_measured(fleet: Fleet) -> None:
    """What its owner says a model takes stays, whatever a probe shows."""
    fleet.add_model(memory_bytes=20 * MIB)
    fleet.add_version(2)
    assert fleet.model.memory_bytes == 20 * MIB
    assert fleet.asked == ["b"]


def test_a_version_without_room_for_it_beside_the_old_one_is_refused(
    fleet: Fleet,
) -> None:
    """Nothing is changed by a version that the fleet cannot hold."""
    fleet.add_model()
    fleet.answers["b"] = Reply(outcome=Reply.OK, work_peak_bytes=200 * MIB)
    with pytest.raises(ResourceExhausted):
        fleet.add_version(2)
    assert fleet.model.memory_bytes == 60 * MIB


def test_a_crash_quarantines_a_version_everywhere(fleet: Fleet) -> None:
    """The answer comes at once and says how it crashed; so does its history."""
    fleet.add_model()
    fleet.answers["b"] = CRASHED
    (op,) = fleet.add_version(2)
    assert "quarantined: its interpreter was ended by SIGSEGV" in op.waits_for
    assert list(read_config(fleet.model.config).excluded_versions) == [2]
    asked = pb.GetModelRequest(model="m", num_changes=1)
    found = fleet.controller.model(asked)
    assert "SIGSEGV" in found.quarantined[2]
    assert "SIGSEGV" in found.changes[0].why
    pinned = pb.SetPolicyRequest(model="m", pinned=pb.Pinned(version=2))
    with pytest.raises(FailedPrecondition, match="quarantined"):
        fleet.ask(pinned)
    fleet.ask(pb.UpdateModelRequest(model="m", config="model_platform: 'python'"))
    assert list(read_config(fleet.model.config).excluded_versions) == [2]


def test_a_quarantined_version_is_tried_again_by_a_new_request(fleet: Fleet) -> None:
    """A repetition gets the answer from before, and tries nothing."""
    fleet.add_model()
    fleet.answers["b"] = CRASHED
    fleet.add_version(2, "once")
    del fleet.answers["b"]
    fleet.asked.clear()
    (op,) = fleet.add_version(2, "once")
    assert "quarantined" in op.waits_for
    assert fleet.asked == []
    fleet.add_version(2)
    assert fleet.asked == ["b"]
    assert not fleet.model.quarantined
    assert not read_config(fleet.model.config).excluded_versions


def test_a_server_that_ends_is_no_answer_and_two_that_end_are(fleet: Fleet) -> None:
    """Another server is asked; a version that ends both is quarantined."""
    fleet.add_model()
    fleet.answers["b"] = Aborted("connection lost")
    fleet.add_version(2)
    assert fleet.asked == ["b", "c"]
    assert not fleet.model.quarantined
    fleet.answers["c"] = Aborted("connection lost")
    fleet.add_version(3)
    assert "b and c ended" in fleet.model.quarantined["3"]


@pytest.mark.parametrize(
    "answer",
    [
        FailedPrecondition("this server measures nothing"),
        DeadlineExceeded("late"),
        Reply(outcome=Reply.REFUSED, reason="no such vocabulary"),
    ],
)
def test_a_version_that_nobody_could_try_is_served_untried(
    fleet: Fleet, answer: Reply | ServingError
) -> None:
    """Its servers load it apart as well, so nothing waits for a probe."""
    fleet.add_model()
    fleet.answers = dict.fromkeys("abc", answer)
    fleet.add_version(2)
    assert not fleet.model.quarantined
    assert fleet.model.memory_bytes == 60 * MIB


def test_a_version_that_a_server_could_not_load_is_not_waited_for(fleet: Fleet) -> None:
    """Servers try it as well, but nobody knows whether that helps: the caller hears why."""
    fleet.add_model()
    fleet.answers["b"] = Reply(outcome=Reply.REFUSED, reason="it has no signatures")
    (op,) = fleet.add_version(2)
    assert op.waits_for
    assert list(op.notes) == ["b could not load it: it has no signatures"]
    path = str(fleet.base_path)
    (op,) = fleet.ask(pb.AddModelRequest(model="n", base_path=path))
    assert list(op.notes) == ["b could not load it: it has no signatures"]


def test_a_model_whose_newest_version_crashes_is_not_added(fleet: Fleet) -> None:
    """There is no version before it that could go on serving."""
    fleet.answers["b"] = CRASHED
    with pytest.raises(FailedPrecondition, match="SIGSEGV"):
        fleet.add_model()
    assert not fleet.state.read().fleet.models


def _hinted(request: pb.AddModelRequest) -> None:
    request.hints.memory_bytes = 20 * MIB


def _on_demand(request: pb.AddModelRequest) -> None:
    request.config = "residency: ON_DEMAND"


@pytest.mark.parametrize("change", [_hinted, _on_demand])
def test_models_that_say_what_they_take_or_share_it_are_added_untried(
    fleet: Fleet, change: Callable[[pb.AddModelRequest], None]
) -> None:
    """Thousands may be registered, and nothing is to be learned of them."""
    request = pb.AddModelRequest(model="m", base_path=str(fleet.base_path))
    change(request)
    fleet.ask(request)
    assert fleet.asked == []


def test_a_dry_run_tries_nothing(fleet: Fleet) -> None:
    """Who only asks costs the servers nothing."""
    fleet.add_model()
    asked = pb.SimulateRequest(add_version=pb.AddVersionRequest(model="m", version=1))
    assert not fleet.controller.simulate(asked).refusal
    assert fleet.asked == []


def test_the_newest_version_s_files_count(tmp_path: Path) -> None:
    """Version 10 is newer than 9, in a store as well; what is no version is not looked at."""
    for name, size in (("9", 900), ("10", 1000), ("notes", 5000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_bytes(b"x" * size)
    for place in (str(tmp_path), f"file://{tmp_path}"):
        assert newest_version_bytes(place) == PER_VERSION_BYTES + 1000


def test_what_cannot_be_seen_from_here_has_to_be_said(tmp_path: Path) -> None:
    """A store's URL, a path of other machines and an empty one ask for --memory."""
    for path in ("s3://bucket/model", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(FailedPrecondition, match="--memory"):
            newest_version_bytes(path)
