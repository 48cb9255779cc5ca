"""tfs.server.labels."""

from __future__ import annotations

import pytest

from tfs.server.labels import effective_labels


@pytest.mark.parametrize(
    ("wanted", "before", "available", "expected"),
    [
        ({"stable": 1}, {}, {1}, {"stable": 1}),
        ({"stable": 1}, {}, set(), {"stable": 1}),
        ({"stable": 2}, {"stable": 1}, {1}, {"stable": 1}),
        ({"stable": 2}, {"stable": 1}, {1, 2}, {"stable": 2}),
        ({"stable": 2}, {"stable": 1}, set(), {"stable": 2}),
        ({}, {"stable": 1}, {1}, {}),
        ({"canary": 2}, {"stable": 1}, {1, 2}, {"canary": 2}),
    ],
)
def test_a_label_moves_when_its_version_can_answer(
    wanted: dict[str, int],
    before: dict[str, int],
    available: set[int],
    expected: dict[str, int],
) -> None:
    """A label keeps its old meaning until the new version is available."""
    assert effective_labels(wanted, before, available) == expected
