"""Machine code of a version, in memory."""

from __future__ import annotations

import json
import os
import platform
import zipfile
from pathlib import Path

import pytest

from tests.runtime.packaged import signature
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.memory_files import (
    MACHINE_CODE,
    SealedFile,
    VersionFiles,
    check_processor,
    library_path,
    unpacked,
)
from tfs.runtime.guest.model_source import ModelSource

FOLDER = "model/data/aotinductor/model/"


def archive(folder: Path, **metadata: str) -> str:
    path = folder / "model.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{FOLDER}a.wrapper.so", b"code")
        file.writestr(f"{FOLDER}a.wrapper_metadata.json", json.dumps(metadata))
    return str(path)


def test_code_is_unpacked_into_memory_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left of a process that is killed, and no temporary folder is needed."""
    monkeypatch.setenv("TMPDIR", "/no/such/folder")
    file = SealedFile.copy_of(archive(tmp_path))
    found = unpacked({"model.pt2": file})
    assert Path(found[MACHINE_CODE].path).read_bytes() == b"code"
    first, second = (library_path(found[MACHINE_CODE]) for _ in range(2))
    assert first != second
    assert Path(first).read_bytes() == Path(second).read_bytes() == b"code"
    for each in (file, *found.values()):
        each.close()


def test_what_has_no_code_is_left_alone(tmp_path: Path) -> None:
    """Other versions have no such file, and a damaged archive is told by its load."""
    (tmp_path / "model.pt2").write_bytes(b"damaged")
    file = SealedFile.copy_of(str(tmp_path / "model.pt2"))
    assert unpacked({"model.pt2": file}) == unpacked({"model.pt": file}) == {}
    file.close()


@pytest.mark.parametrize(
    ("sets", "machine", "fits"),
    [
        ("AVX2", platform.machine(), True),
        ("AVX512 AVX512_VNNI", platform.machine(), False),
        ("AVX2", "another", False),
        ("", platform.machine(), True),
    ],
)
def test_code_for_another_processor_is_refused(
    tmp_path: Path, sets: str, machine: str, fits: bool
) -> None:
    """Running it would end the process by an illegal instruction."""
    path = archive(tmp_path, AOTI_MACHINE=machine, AOTI_CPU_ISA=sets)
    (tmp_path / "cpuinfo").write_text("flags\t: fpu avx2 fma\n")
    if fits:
        check_processor(path, "m/1", str(tmp_path / "cpuinfo"))
        return
    with pytest.raises(FailedPrecondition, match=r"m/1 was compiled for another"):
        check_processor(path, "m/1", str(tmp_path / "cpuinfo"))


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
