"""tfs.server.traffic."""

from __future__ import annotations

import pytest

from tfs.server.traffic import (
    effective_labels,
    effective_primary,
    routing_key,
    share_of,
)


def test_keys_spread_evenly_and_apart_by_model() -> None:
    """A tenth of the callers is a tenth, and not the same tenth for every model."""
    keys = [f"caller-{index}".encode() for index in range(20_000)]
    first = {key for key in keys if share_of("first", key) < 0.1}
    second = {key for key in keys if share_of("second", key) < 0.1}
    assert 1_800 < len(first) < 2_200
    assert len(first & second) < 400


def test_a_key_has_the_same_share_everywhere() -> None:
    """Replicas agree: the hash is not Python's own, which differs by process."""
    assert share_of("digits", b"alice") == pytest.approx(0.1525, abs=1e-4)


@pytest.mark.parametrize(
    ("metadata", "client_id", "expected"),
    [
        ([], None, None),
        ([], b"", None),
        ([], b"id", b"id"),
        ([("tfs-routing-key", "key")], b"id", b"key"),
        ([("tfs-routing-key", "")], b"id", b"id"),
        ([("other", "key")], None, None),
    ],
)
def test_metadata_come_before_the_client_id(
    metadata: list[tuple[str, str | bytes]],
    client_id: bytes | None,
    expected: bytes | None,
) -> None:
    """A proxy that knows the caller overrules what the request says."""
    assert routing_key(metadata, client_id) == expected


@pytest.mark.parametrize(
    ("wanted", "before", "available", "canary", "expected"),
    [
        # By default: the latest that is not the canary.
        (None, None, {1, 2}, None, 2),
        (None, None, {1, 2}, 2, 1),
        (None, None, set(), None, None),
        (None, 1, {1, 2, 3}, 3, 2),
        # The canary alone takes over nothing ...
        (None, None, {2}, 2, None),
        (1, None, {2}, 2, None),
        # ... but goes on answering until the version in its place can.
        (None, 2, {2}, 2, 2),
        (1, 2, {2}, 2, 2),
        (None, 2, {1, 2}, 2, 1),
        # An explicit one, when it is there; until then what was before.
        (1, None, {1, 2}, None, 1),
        (3, 1, {1, 2}, None, 1),
        (3, 1, {1, 2, 3}, None, 3),
        (3, 2, {1, 2}, 2, 2),
        # Nothing stands in for it: not the version that somebody went back from.
        (3, None, {1, 2}, None, None),
        (3, 1, {2}, None, None),
    ],
)
def test_the_primary_moves_when_it_can_answer(
    wanted: int | None,
    before: int | None,
    available: set[int],
    canary: int | None,
    expected: int | None,
) -> None:
    """A move takes effect after the load, and a canary is nobody's stand-in."""
    assert effective_primary(wanted, before, available, canary) == expected


@pytest.mark.parametrize(
    ("wanted", "before", "available", "rejected", "expected"),
    [
        (None, None, {1, 2}, {2}, 1),
        (None, 2, {2}, {2}, None),
        (3, 2, {1, 2}, {2}, None),
        (2, None, {1, 2}, {2}, 2),
    ],
)
def test_a_rejected_version_answers_only_if_it_is_named(
    wanted: int | None,
    before: int | None,
    available: set[int],
    rejected: set[int],
    expected: int | None,
) -> None:
    """Neither the newest nor what answered last may be one that a guard rejected."""
    primary = effective_primary(wanted, before, available, None, rejected)
    assert primary == expected


@pytest.mark.parametrize(
    ("wanted", "available", "canary", "rejected", "faulty", "expected"),
    [
        (None, {1, 2}, None, (), {2}, 1),
        (None, {1, 2, 3}, None, (), {2}, 3),
        (None, {1, 2, 3}, None, {2}, {3}, 1),
        (None, {1, 2, 3}, 2, (), {3}, 1),
        (None, {1, 2}, None, (), {1, 2}, 2),
        (None, {2}, None, (), {2}, 2),
        (2, {1, 2}, None, (), {2}, 1),
        (2, {1, 2, 3}, None, (), {2}, 1),
        (2, {2, 3}, None, (), {2}, 2),
        (3, {1, 2, 3}, 2, (), {3}, 1),
        (3, {1, 2, 3}, None, {2}, {3}, 1),
        (2, {1, 2}, None, {2}, (), 2),
    ],
)
def test_an_older_version_that_is_well_answers_in_a_faulty_ones_place(
    wanted: int | None,
    available: set[int],
    canary: int | None,
    rejected: set[int],
    faulty: set[int],
    expected: int,
) -> None:
    """Never a newer one than was named, nor the canary, nor one that was rejected."""
    primary = effective_primary(wanted, None, available, canary, rejected, faulty)
    assert primary == expected


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
