"""Tests of files that are replaced whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tfs.core.system.replaced_file import replace_file


@pytest.mark.parametrize("is_durable", [False, True])
def test_file_is_made_and_replaced(tmp_path: Path, is_durable: bool) -> None:
    """The file holds the last text, and nothing else is left in its folder."""
    path = tmp_path / "notes.json"
    for text in ("first, and longer", "größer"):
        replace_file(str(path), text, is_durable=is_durable)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failure_changes_nothing(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the old text stays, and no half-written sibling takes room."""
    path = tmp_path / "notes.json"
    replace_file(str(path), "old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space"):
        replace_file(str(path), "new", is_durable=True)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_that_syncs_no_folders_takes_files_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only folders cannot be synced, the new text is in place, and nothing is raised."""
    fsync = os.fsync

    def sync_files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    path = tmp_path / "notes.json"
    replace_file(str(path), "new", is_durable=True)
    assert path.read_text(encoding="utf-8") == "new"


def test_old_file_is_kept_where_it_is_wanted(tmp_path: Path) -> None:
    """A file that could not be read can still be looked at after it was replaced."""
    path, kept = tmp_path / "notes.json", tmp_path / "notes.json.unreadable"
    replace_file(str(path), "old")
    replace_file(str(path), "new", old_path=str(kept))
    assert path.read_text(encoding="utf-8") == "new"
    assert kept.read_text(encoding="utf-8") == "old"
