"""Records of what copies were made of: kept across restarts, and never in the way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sources.copy_records import CopyRecord, CopyRecords

FIRST = CopyRecord("s3://b/m/1", "looked so", "key-1")
SECOND = CopyRecord("s3://b/m/2", "looked so", "key-2")


def reread(folder: Path, *keys: str) -> CopyRecords:
    """Returns the records as the next process finds them, with copies of these keys."""
    records = CopyRecords(folder)
    records.read(lambda key: key in keys)
    return records


def test_records_survive_a_restart(tmp_path: Path) -> None:
    """Those whose copy is gone do not, nor does a file that is no record."""
    records = reread(tmp_path)
    for record in (FIRST, SECOND):
        records.add(record)
    (tmp_path / "half.json").write_text("{")
    again = reread(tmp_path, "key-2")
    assert again.find(FIRST.url) is None
    assert again.find(SECOND.url) == SECOND
    assert len(list(tmp_path.iterdir())) == 1


def test_a_newer_record_of_a_url_replaces_the_older(tmp_path: Path) -> None:
    """A URL has one copy at most that looks as the store last did."""
    records = reread(tmp_path)
    records.add(FIRST)
    newer = CopyRecord(FIRST.url, "looks otherwise", "key-9")
    records.add(newer)
    assert records.below("s3://b/") == [newer]
    assert reread(tmp_path, "key-1", "key-9").find(FIRST.url) == newer


def test_a_copy_that_is_removed_is_forgotten_under_every_url(tmp_path: Path) -> None:
    """Two URLs with the same content share one copy."""
    records = reread(tmp_path)
    for url in ("s3://b/m/1", "gs://b/m/1"):
        records.add(CopyRecord(url, "x", "shared"))
    records.add(SECOND)
    records.forget("shared")
    assert [*records.below("s3://"), *records.below("gs://")] == [SECOND]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_record_that_cannot_be_written_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy serves all the same, as long as this process lives."""
    records = CopyRecords(tmp_path / "gone")
    with caplog.at_level(logging.WARNING):
        records.add(FIRST)
    assert "copy_not_remembered" in caplog.text
    assert records.find(FIRST.url) == FIRST
