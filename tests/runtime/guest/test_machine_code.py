"""Machine code of a version, in memory."""

from __future__ import annotations

import json
import platform
import zipfile
from pathlib import Path

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.runtime.guest.memory_files import (
    MACHINE_CODE,
    SealedFile,
    check_processor,
    library_path,
    unpacked,
)

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
