"""What changed between two looks at models."""

from __future__ import annotations

from tfs.server.admin.server_reports import ModelHistory
from tfs.testing.fake_clock import FakeClock


def test_only_what_changed_since_a_look_is_named() -> None:
    """Whoever asks for the changes since an older look is told all that came after it."""
    history = ModelHistory(FakeClock())
    names, first = history.changes({"a": 1, "b": 1}, 0)
    assert (first.since, sorted(names)) == (0, ["a", "b"])
    names, second = history.changes({"a": 2, "c": 1}, first.revision)
    assert second.since == first.revision
    assert (sorted(names), list(second.gone)) == (["a", "c"], ["b"])
    names, third = history.changes({"a": 2, "c": 1}, second.revision)
    assert (names, list(third.gone)) == ([], [])
    names, again = history.changes({"a": 2, "c": 1}, first.revision)
    assert (sorted(names), list(again.gone)) == (["a", "c"], ["b"])


def test_the_revision_of_another_process_names_everything() -> None:
    """A server that started again knows nothing of what the one before was asked."""
    clock = FakeClock()
    _, before = ModelHistory(clock).changes({"a": 1}, 0)
    clock.advance(1.0)
    names, now = ModelHistory(clock).changes({"a": 1}, before.revision)
    assert (now.since, names) == (0, ["a"])


def test_many_models_come_in_parts() -> None:
    """What changes meanwhile comes again, and what goes is told."""
    history = ModelHistory(FakeClock())
    looks = {f"{each}": 1 for each in range(2500)}
    told, part = history.changes(looks, 1)
    del looks["2400"]
    looks["3"] = 2
    while part.revision < part.newest:
        names, part = history.changes(looks, part.revision)
        told += names
        assert len(names) + len(part.gone) <= 1000
    assert part.gone == ["2400"]
    assert (len(told), told.count("3")) == (2500, 2)
    names, whole = history.changes(looks, 0)
    assert (len(names), whole.revision) == (2499, whole.newest)
