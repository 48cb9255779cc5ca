"""A version's payload in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runtime.packaged import signature
from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource


def source_in(folder: Path) -> ModelSource:
    """Returns a version of the files there."""
    return ModelSource(
        ServableId("a", 1), str(folder), "python", {}, {"serving_default": signature()}
    )


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_file_is_copied_and_sealed(tmp_path: Path) -> None:
    """Nobody changes what interpreters share; closing gives everything up."""
    (tmp_path / "servable.py").write_bytes(b"code")
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    before = num_open()
    files = VersionFiles.stage(source_in(tmp_path))
    assert Path(files["servable.py"].path).read_bytes() == b"code"
    assert Path(files["weights.safetensors"].path).read_bytes() == b"weights"
    with pytest.raises(PermissionError):
        os.pwrite(files["servable.py"].fd, b"edoc", 0)
    files.close()
    assert num_open() == before


def test_a_payload_that_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    """The caller is told by an error of ours, and what was copied before is closed."""
    (tmp_path / "servable.py").write_bytes(b"code")
    (tmp_path / "weights.safetensors").mkdir()
    before = num_open()
    with pytest.raises(ServingError, match="a/1"):
        VersionFiles.stage(source_in(tmp_path))
    assert num_open() == before
