from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfs.runtime.guest.memory_files import SealedFile


@pytest.fixture
def file(tmp_path: Path) -> SealedFile:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 64)  # four pages
    return SealedFile.copy_of(str(path))


def test_nobody_can_change_the_bytes(file: SealedFile) -> None:
    """Neither write nor truncate nor a shared writable mapping is allowed."""
    with pytest.raises(PermissionError):
        os.pwrite(file.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(file.fd, 0)
    with open(file.path, "rb") as again:
        assert again.read() == bytes(range(256)) * 64
    file.close()


def test_a_write_to_one_mapping_stays_in_it(file: SealedFile) -> None:
    """Mappings are private: the other one keeps the bytes of the file."""
    first, second = file.map(), file.map()
    assert bytes(first[:4]) == b"\x00\x01\x02\x03"
    first[0] = 9
    assert second[0] == 0
    file.close()
    assert second[1] == 1
    first.close()
    second.close()


def test_a_file_that_is_missing_leaves_no_descriptor(tmp_path: Path) -> None:
    """A failed copy closes what it opened."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        SealedFile.copy_of(str(tmp_path / "absent"))
    with pytest.raises(OSError, match="argument"):
        SealedFile.copy_of(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_twice_is_harmless(file: SealedFile) -> None:
    """The second close must not close somebody else's descriptor."""
    fd = file.fd
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
