"""The target that remembers."""

from __future__ import annotations

from tfs.testing.fake_loader import FakeLoader, loaders
from tfs.testing.recording_target import RecordingTarget


def test_calls_are_remembered_in_order() -> None:
    """Every set, until it is taken; the last one of each name."""
    target: RecordingTarget[FakeLoader] = RecordingTarget()
    take = target.aspired_versions_callback()
    first, second = loaders("a", 1), loaders("a", 1, 2)
    take(first)
    take(second)
    assert target.calls == [first, second]
    assert target.versions("a") == [1, 2]
    assert target.versions("b") is None
    assert target.wait_for(lambda calls: len(calls) == 2)
    assert target.take() == [first, second]
    assert target.calls == []
