"""tfs.server.admin.version_report."""

from __future__ import annotations

import os
import time

import pytest

from batching.batching_options import BatchingOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.servables.fakes import EchoModel
from tests.server.puppet import PuppetServable, floats
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.errors import Code
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.process_memory import private_bytes
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import HistogramSnapshot
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.handlers.limits.request_stats import RequestFigures
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.placement import Backend, Placement
from tfs.runtime.process.process_model import ProcessModel
from tfs.servables.joining.batched import BatchedServable
from tfs.servables.loaded_version import LoadedVersion, PlacedModel
from tfs.server.admin.version_report import fill_loaded, fill_stats, version_report
from tfs.server.system.processes import started_s, tree_resident_bytes

SERVABLE = PuppetServable(ServableId("a", 1))
SOURCE = ModelSource(
    SERVABLE.id, "/models/a/1", "python", {}, SERVABLE.signatures, intra_op_threads=2
)


def no_figures(name: str, version: int) -> dict[str, list[RequestFigures]]:
    del name, version
    return {}


def report_of(servable: Servable, *, with_stats: bool = False) -> pb.VersionReport:
    """Returns what is told of a loaded version."""
    report = pb.VersionReport()
    fill_loaded(report, servable)
    if with_stats:
        fill_stats(report, servable, no_figures)
    return report


@pytest.mark.parametrize(
    ("state", "is_told"), [(ManagerState.AVAILABLE, True), (ManagerState.END, False)]
)
def test_memory_is_told_of_what_is_loaded(state: ManagerState, is_told: bool) -> None:
    """What a version took counts no more once it has given it back."""
    seen = ServableState(ServableId("digits", 1), state, resident_bytes=1 << 20)
    assert version_report(seen).memory.HasField("resident_bytes") is is_told


@pytest.mark.parametrize(
    ("state", "waiting"),
    [(ManagerState.LOADING, "first in line"), (ManagerState.AVAILABLE, "")],
)
def test_what_a_version_waits_for_is_told_apart_from_its_notes(
    state: ManagerState, waiting: str
) -> None:
    """Nobody has to guess which of the notes says why it does not serve."""
    seen = ServableState(ServableId("digits", 1), state, note="first in line")
    report = version_report(seen)
    assert (report.load.waiting, list(report.notes)) == (waiting, ["first in line"])


@pytest.mark.parametrize(
    ("backend", "place"),
    [
        (Backend.FRONT, pb.PlacementReport.FRONT),
        (Backend.INLINE, pb.PlacementReport.INLINE),
        (Backend.PROCESS, pb.PlacementReport.PROCESS),
        (Backend.DLMOPEN, pb.PlacementReport.DLMOPEN),
    ],
)
def test_the_place_is_told_with_its_reason(backend: Backend, place: int) -> None:
    """The place and its reason are those that were decided."""
    servable = LoadedVersion(PlacedModel(EchoModel(SOURCE)))
    servable.placement = Placement(backend, "p99 0.1 ms")
    placement = report_of(servable).placement
    assert (placement.place, placement.why) == (place, "p99 0.1 ms")


def test_a_platform_without_an_interpreter_runs_on_the_loop() -> None:
    """A lookup table has a place, too; a servable of another kind has none."""
    report = report_of(LoadedVersion(SERVABLE))
    assert report.placement.place == pb.PlacementReport.FRONT
    assert not report_of(SERVABLE).HasField("placement")


class DyingModel(ProcessModel):
    """A version with two processes, the second of which has just died."""

    source = SOURCE
    pids = (os.getpid(),)
    num_deaths = 1
    last_death = "was ended by SIGSEGV"
    staged_status = None

    def __init__(self) -> None:
        """Starts nothing."""


def test_the_processes_of_a_version_are_told_with_their_deaths() -> None:
    """Which they are, since when, what they hold, and how the last one died."""
    pid = os.getpid()
    servable = LoadedVersion(PlacedModel(DyingModel()))
    placement = report_of(servable, with_stats=True).placement
    (interpreter,) = placement.interpreters
    assert interpreter.pid == pid
    assert 0 < interpreter.since_s <= time.time() + 1
    assert interpreter.private_bytes > 1 << 20
    assert (placement.num_crashes, placement.last_crash) == (1, "was ended by SIGSEGV")
    assert placement.intra_op_threads == 2


def test_a_version_in_this_process_has_an_interpreter_without_a_pid() -> None:
    """0 stands for the server's own process."""
    report = report_of(LoadedVersion(PlacedModel(EchoModel(SOURCE))), with_stats=True)
    assert [each.pid for each in report.placement.interpreters] == [0]


def test_the_requests_of_a_signature_are_added_up_over_its_methods() -> None:
    """A signature that nobody called has zeros."""

    def figures(name: str, version: int) -> dict[str, list[RequestFigures]]:
        assert (name, version) == ("a", 1)
        latency_s = HistogramSnapshot((1.0,), (2, 1), 3.5)
        each = RequestFigures({Code.OK: 2, Code.INTERNAL: 1}, 1, latency_s)
        return {"serving_default": [each, each]}

    report = pb.VersionReport()
    for name in ("serving_default", "other"):
        report.signatures.add(name=name)
    fill_stats(report, SERVABLE, figures)
    requests = report.signatures[0].requests
    assert (requests.num_requests, requests.num_in_flight) == (6, 2)
    assert dict(requests.num_errors_by_code) == {Code.INTERNAL: 2}
    assert list(requests.latency_s.counts) == [4, 2]
    assert requests.latency_s.total == 7.0
    assert report.signatures[1].HasField("requests")
    assert report.signatures[1].requests.num_requests == 0


def test_when_a_process_started_is_known_while_it_lives() -> None:
    """A process's start is known while it lives, by the boot clock."""
    since_s = started_s(os.getpid())
    assert since_s is not None
    assert abs(time.time() - since_s) < 3600
    assert started_s(2**22 + 1) is None
    assert private_bytes(2**22 + 1) is None


def test_what_was_measured_is_told() -> None:
    """Memory, load and calls of a version, and which code they belong to."""
    servable = LoadedVersion(SERVABLE)
    assert not report_of(servable).HasField("load")
    servable.profile = ModelProfile(
        code_digest="d",
        import_s=0.1,
        load_s=0.5,
        load_peak_bytes=7,
        signatures={
            "serving_default": SignatureProfile(call_s_by_rows={4: 0.25}, peak_bytes=9)
        },
    )
    report = report_of(servable)
    assert report.code_digest == "d"
    assert report.load.import_s == 0.1
    assert report.memory.load_peak_bytes == 7
    assert report.memory.call_peak_bytes == 9
    assert dict(report.signatures[0].call_s_by_rows) == {4: 0.25}


def test_an_unbatched_version_says_why() -> None:
    """Its platform joins nothing, nobody asked for it, or its own parts do it."""
    (signature,) = report_of(SERVABLE).signatures
    assert "its platform" in signature.batching.why
    servable = LoadedVersion(SERVABLE)
    (signature,) = report_of(servable).signatures
    assert not signature.batching.enabled
    assert "--enable_batching" in signature.batching.why
    servable.is_joined_by_parts = True
    (signature,) = report_of(servable).signatures
    assert "parts of it join" in signature.batching.why


def test_the_parameters_in_force_are_told_before_any_request() -> None:
    """Defaults filled in, in the fields that a parameters file has."""
    loop = ServingLoop()
    options = BatchingOptions(
        queue=BatchQueueOptions(max_batch_rows=8, splits=True, timeout_s=0.001),
        batches_unproven=True,
    )
    batched = BatchedServable(SERVABLE, SharedBatchScheduler(), loop, options)
    version = LoadedVersion(SERVABLE)
    version.put_in_front(batched)
    (signature,) = report_of(version, with_stats=True).signatures
    batching = signature.batching
    assert batching.enabled
    assert list(batching.queues) == []
    parameters = batching.parameters
    assert parameters.max_batch_size.value == 80
    assert parameters.max_execution_batch_size.value == 8
    assert parameters.enable_large_batch_splitting.value
    assert parameters.max_enqueued_batches.value == 10
    assert parameters.batch_timeout_micros.value == 1000
    assert not batching.HasField("bypass")


def test_requests_past_the_queues_are_told_beside_the_queues_numbers() -> None:
    """They are absent until there is one, and counted apart from queued ones."""
    options = BatchingOptions(
        queue=BatchQueueOptions(max_batch_rows=2),
        max_lone_rows=4,
        batches_unproven=True,
    )
    servable = PuppetServable(ServableId("a", 1))
    loop = ServingLoop()
    batched = BatchedServable(servable, SharedBatchScheduler(), loop, options)
    inputs = {"x": floats((1, 2), (3, 4), (5, 6))}
    signature = batched.signatures["serving_default"]
    outcomes: list[Outcome] = []
    task = InferenceTask(
        "serving_default", signature, inputs, outcomes.append, num_rows=3
    )
    batched.submit(task)
    loop.step()
    assert len(outcomes) == 1
    version = LoadedVersion(servable)
    version.put_in_front(batched)
    (report,) = report_of(version, with_stats=True).signatures
    assert report.batching.bypass == pb.BypassStats(
        num_requests=1, num_rows=3, num_calls=1
    )


def test_memory_is_read_or_unknown() -> None:
    """A process that is not there counts as nothing."""
    assert tree_resident_bytes(os.getpid()) > 1 << 20
    assert tree_resident_bytes(2**22 + 1) == 0
