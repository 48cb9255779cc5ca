"""tfs.server.admin_describe."""

from __future__ import annotations

import pytest

from batching.batching_options import BatchingOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.server.puppet import PuppetServable
from tfs.core.batch_queue_options import BatchQueueOptions
from tfs.core.model_profile import ModelProfile, SignatureProfile
from tfs.core.servable_id import ServableId
from tfs.core.serving_loop import ServingLoop
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.servables.batched import BatchedServable
from tfs.servables.placed_servable import PlacedServable
from tfs.server.admin_describe import (
    describe_batching,
    describe_placement,
    describe_profile,
)
from tfs.server.resident_memory import tree_resident_bytes

SERVABLE = PuppetServable(ServableId("a", 1))


@pytest.mark.parametrize(
    ("note", "place", "why"),
    [
        ("runs in front: p99 0.1 ms", pb.PlacementReport.FRONT, "p99 0.1 ms"),
        ("runs in process: isolation", pb.PlacementReport.PROCESS, "isolation"),
    ],
)
def test_the_place_is_told_with_its_reason(note: str, place: int, why: str) -> None:
    """As the loader noted it."""
    report = pb.VersionReport(notes=[note])
    describe_placement(report, SERVABLE, False)
    assert (report.placement.place, report.placement.why) == (place, why)


def test_other_notes_say_nothing_of_the_place() -> None:
    """A version that never said where it runs has no placement."""
    report = pb.VersionReport(notes=["left the serving loop"])
    describe_placement(report, SERVABLE, False)
    assert not report.HasField("placement")


def test_what_was_measured_is_told() -> None:
    """Memory, load and calls of a version, and which code they belong to."""
    servable = PlacedServable(SERVABLE)
    report = pb.VersionReport()
    report.signatures.add(name="serving_default")
    describe_profile(report, servable, False)
    assert not report.HasField("load")
    servable.profile = ModelProfile(
        code_digest="d",
        import_s=0.1,
        load_s=0.5,
        load_peak_bytes=7,
        signatures={
            "serving_default": SignatureProfile(call_s_by_rows={4: 0.25}, peak_bytes=9)
        },
    )
    describe_profile(report, servable, False)
    assert report.code_digest == "d"
    assert report.load.import_s == 0.1
    assert report.memory.load_peak_bytes == 7
    assert report.memory.call_peak_bytes == 9
    assert dict(report.signatures[0].call_s_by_rows) == {4: 0.25}


def test_an_unbatched_version_says_so() -> None:
    """For every signature."""
    report = pb.VersionReport()
    report.signatures.add(name="serving_default")
    describe_batching(report, SERVABLE, False)
    assert not report.signatures[0].batching.enabled
    assert report.signatures[0].batching.why


def test_the_parameters_in_force_are_told_before_any_request() -> None:
    """Defaults filled in, in the fields that a parameters file has."""
    loop = ServingLoop()
    options = BatchingOptions(
        queue=BatchQueueOptions(max_batch_rows=8, splits=True, timeout_s=0.001),
        batches_unproven=True,
    )
    batched = BatchedServable(SERVABLE, SharedBatchScheduler(), loop, options)
    report = pb.VersionReport()
    report.signatures.add(name="serving_default")
    describe_batching(report, batched, True)
    batching = report.signatures[0].batching
    assert batching.enabled
    assert list(batching.queues) == []
    parameters = batching.parameters
    assert parameters.max_batch_size.value == 80
    assert parameters.max_execution_batch_size.value == 8
    assert parameters.enable_large_batch_splitting.value
    assert parameters.max_enqueued_batches.value == 10
    assert parameters.batch_timeout_micros.value == 1000


def test_memory_is_read_or_unknown() -> None:
    """A process that is not there counts as nothing."""
    import os

    assert tree_resident_bytes(os.getpid()) > 1 << 20
    assert tree_resident_bytes(2**22 + 1) == 0
