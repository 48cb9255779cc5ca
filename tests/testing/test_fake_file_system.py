"""The fake file system behaves as the real one, where sources look."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sources.storage.file_system import FileSystem, LocalFileSystem
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem


class Fake:
    """Edits of the fake."""

    def __init__(self, _: Path) -> None:
        self.files = FakeFileSystem(FakeClock())
        self.root = "/root"
        self.files.make_folder(self.root)
        self.system: FileSystem = self.files
        self.write = self.files.write
        self.remove = self.files.remove
        self.rename = self.files.rename


class Real:
    """The same edits of a real directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = str(tmp_path)
        self.system: FileSystem = LocalFileSystem()

    def write(self, path: str, data: bytes = b"") -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    def remove(self, path: str) -> None:
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink()

    def rename(self, old: str, new: str) -> None:
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        Path(old).rename(new)


Make = Callable[[Path], Fake | Real]


@pytest.mark.parametrize("make", [Fake, Real])
def test_both_show_the_same_after_the_same_edits(make: Make, tmp_path: Path) -> None:
    """Listings, file checks and contents agree step by step."""
    disk = make(tmp_path)
    system, root = disk.system, disk.root
    assert list(system.list_directories(root)) == []
    disk.write(f"{root}/1/model.pt", b"a")
    disk.write(f"{root}/1/assets/x", b"b")
    disk.write(f"{root}/file")
    assert list(system.list_directories(root)) == ["1"]
    assert system.contents(f"{root}/1").names == {"model.pt", "assets"}
    assert system.is_file(f"{root}/1/model.pt")
    assert not system.is_file(f"{root}/1")
    prints = [system.contents(f"{root}/1").fingerprint]
    assert system.contents(f"{root}/1").fingerprint == prints[0]
    disk.write(f"{root}/1/assets/x", b"longer")
    prints.append(system.contents(f"{root}/1").fingerprint)
    disk.remove(f"{root}/1/assets/x")
    prints.append(system.contents(f"{root}/1").fingerprint)
    assert len(set(prints)) == 3
    disk.rename(f"{root}/1", f"{root}/2")
    assert list(system.list_directories(root)) == ["2"]
    assert not system.is_file(f"{root}/1/model.pt")
    disk.remove(f"{root}/2")
    assert list(system.list_directories(root)) == []


@pytest.mark.parametrize("make", [Fake, Real])
def test_both_fail_alike(make: Make, tmp_path: Path) -> None:
    """What is absent and what is no directory are told apart."""
    disk = make(tmp_path)
    disk.write(f"{disk.root}/file")
    for look in (disk.system.list_directories, disk.system.contents):
        with pytest.raises(FileNotFoundError):
            look(f"{disk.root}/absent")
        with pytest.raises(NotADirectoryError):
            look(f"{disk.root}/file")
    assert not disk.system.is_file(f"{disk.root}/absent/x")


def test_the_fake_fails_where_it_is_told_to() -> None:
    """The n-th call fails once; a broken path fails until it is mended."""
    files = FakeFileSystem(FakeClock())
    files.write("/a/1/x")
    files.fail_call(2)
    files.list_directories("/a")
    with pytest.raises(OSError, match="Input/output"):
        files.list_directories("/a")
    files.list_directories("/a")
    files.break_path("/a/1", PermissionError(13, "Permission denied"))
    files.list_directories("/a")
    with pytest.raises(PermissionError):
        files.contents("/a/1")
    files.break_path("/a/1", None)
    files.contents("/a/1")
