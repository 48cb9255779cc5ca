"""tfs.server.admin_describe."""

from __future__ import annotations

import pytest

from tests.server.puppet import PuppetServable
from tfs.core.model_profile import ModelProfile, SignatureProfile
from tfs.core.servable_id import ServableId
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
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


def test_memory_is_read_or_unknown() -> None:
    """A process that is not there counts as nothing."""
    import os

    assert tree_resident_bytes(os.getpid()) > 1 << 20
    assert tree_resident_bytes(2**22 + 1) == 0
