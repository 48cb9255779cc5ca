"""What a model is estimated to take before it was loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.hosted.memory_estimate import PER_VERSION_BYTES, newest_version_bytes


def test_the_newest_version_s_files_count(tmp_path: Path) -> None:
    """Version 10 is newer than 9, in a store as well; what is no version is not looked at."""
    for name, size in (("9", 900), ("10", 1000), ("notes", 5000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_bytes(b"x" * size)
    for place in (str(tmp_path), f"file://{tmp_path}"):
        assert newest_version_bytes(place) == PER_VERSION_BYTES + 1000


def test_what_cannot_be_seen_from_here_has_to_be_said(tmp_path: Path) -> None:
    """A store's URL, a path of other machines and an empty one ask for --memory."""
    for path in ("s3://bucket/model", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(FailedPrecondition, match="--memory"):
            newest_version_bytes(path)
