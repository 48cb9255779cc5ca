"""What changed between two looks at models."""

from __future__ import annotations

from tfs.server.admin.model_history import ModelHistory
from tfs.testing.fake_clock import FakeClock


def test_only_what_changed_since_a_look_is_named() -> None:
    """Whoever asks for the changes since an older look is told all that came after it."""
    history = ModelHistory(FakeClock())
    first = history.changes({"a": 1, "b": 1}, 0)
    assert (first.since, sorted(first.names)) == (0, ["a", "b"])
    second = history.changes({"a": 2, "c": 1}, first.revision)
    assert second.since == first.revision
    assert (sorted(second.names), second.gone) == (["a", "c"], ["b"])
    third = history.changes({"a": 2, "c": 1}, second.revision)
    assert (third.names, third.gone) == ([], [])
    again = history.changes({"a": 2, "c": 1}, first.revision)
    assert (sorted(again.names), again.gone) == (["a", "c"], ["b"])


def test_the_revision_of_another_process_names_everything() -> None:
    """A server that started again knows nothing of what the one before was asked."""
    clock = FakeClock()
    before = ModelHistory(clock).changes({"a": 1}, 0)
    clock.advance(1.0)
    now = ModelHistory(clock).changes({"a": 1}, before.revision)
    assert (now.since, now.names) == (0, ["a"])
