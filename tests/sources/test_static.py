"""The source that never changes its mind."""

from __future__ import annotations

import pytest

from sources.chain import StaticSource, static_storage_path_source
from sources.servable_to_monitor import StoragePath
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData, connect
from tfs.testing.recording_target import RecordingTarget


def test_a_static_path_is_aspired_once() -> None:
    """Connecting makes the one call there will ever be.

    static_storage_path_source_test: Basic.
    """
    target: RecordingTarget[StoragePath] = RecordingTarget()
    connect(static_storage_path_source("s", 2, "/models/s/2"), target)
    (call,) = target.calls
    expected = ServableData(ServableId("s", 2), StoragePath("/models/s/2"))
    assert (call.name, call.versions) == ("s", (expected,))


def test_every_set_is_told_in_order() -> None:
    """Several names are told one after the other."""
    target: RecordingTarget[str] = RecordingTarget()
    source: StaticSource[str] = StaticSource(
        [AspiredVersions("a", ()), AspiredVersions("b", ())]
    )
    connect(source, target)
    assert [call.name for call in target.calls] == ["a", "b"]


def test_a_second_target_is_refused() -> None:
    """A source has one target."""
    source: StaticSource[str] = StaticSource([])
    connect(source, RecordingTarget[str]())
    with pytest.raises(RuntimeError, match="set already"):
        connect(source, RecordingTarget[str]())
