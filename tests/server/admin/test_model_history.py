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


def test_many_models_come_in_parts() -> None:
    """What changes meanwhile comes again, and what goes is told."""
    history = ModelHistory(FakeClock())
    looks = {f"{each}": 1 for each in range(2500)}
    part = history.changes(looks, 1)
    told = [*part.names]
    del looks["2400"]
    looks["3"] = 2
    while part.revision < part.newest:
        part = history.changes(looks, part.revision)
        told += part.names
        assert len(part.names) + len(part.gone) <= 1000
    assert part.gone == ["2400"]
    assert (len(told), told.count("3")) == (2500, 2)
    whole = history.changes(looks, 0)
    assert (len(whole.names), whole.revision) == (2499, whole.newest)
