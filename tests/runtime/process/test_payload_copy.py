"""A payload copied into memory, and what is left open of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.runtime.packaged import signature
from tfs.core.errors import Internal, ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.guest import sealed_file
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.process.payload_copy import SMALL_BYTES, copy_payload

WEIGHTS = b"weights." * (SMALL_BYTES // 8)


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    """A version of two files, more than what is copied without asking."""
    (tmp_path / "servable.py").write_bytes(b"code")
    (tmp_path / "weights.safetensors").write_bytes(WEIGHTS)
    return ModelSource(
        ServableId("a", 1),
        str(tmp_path),
        "python",
        {},
        {"serving_default": signature()},
    )


def still_open(seen: dict[int, str]) -> set[str]:
    """Returns those of the files, by descriptor, that are open under it."""
    found = set[str]()
    for fd, link in seen.items():
        with contextlib.suppress(FileNotFoundError):
            found |= {link} & {link_of(fd)}
    return found


def link_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def test_each_file_is_copied_from_one_descriptor_to_another(
    source: ModelSource,
) -> None:
    """They come in pairs; the copies are sealed, the originals closed."""
    seen: dict[int, str] = {}

    def copy(fds: tuple[int, ...]) -> None:
        seen.update({fd: link_of(fd) for fd in fds})
        for source_fd, target_fd in zip(fds[::2], fds[1::2], strict=True):
            sealed_file.copy(source_fd, target_fd)

    files = copy_payload(source, copy)
    assert {
        name: Path(file.path).read_bytes() for name, file in files.files.items()
    } == {
        "servable.py": b"code",
        "weights.safetensors": WEIGHTS,
    }
    assert len(seen) == 4
    assert all("memfd" in link for link in still_open(seen))
    files.close()
    assert still_open(seen) == set()


def test_what_is_small_is_copied_without_asking(source: ModelSource) -> None:
    """A round trip to a worker takes longer; the copies are sealed all the same."""
    Path(source.path, "weights.safetensors").write_bytes(b"weights")

    def copy(fds: tuple[int, ...]) -> None:
        raise AssertionError("asked")

    files = copy_payload(source, copy)
    assert Path(files["servable.py"].path).read_bytes() == b"code"
    assert Path(files["weights.safetensors"].path).read_bytes() == b"weights"
    with pytest.raises(PermissionError):
        os.pwrite(files["servable.py"].fd, b"edoc", 0)
    files.close()


@pytest.mark.parametrize(
    "error", [Internal("it died"), OSError(28, "No space left on device")]
)
def test_a_copy_that_fails_leaves_nothing_open(
    source: ModelSource, error: Exception
) -> None:
    """The caller is told by an error of ours, whatever kind it was."""
    seen: dict[int, str] = {}

    def copy(fds: tuple[int, ...]) -> None:
        seen.update({fd: link_of(fd) for fd in fds})
        raise error

    with pytest.raises(ServingError):
        copy_payload(source, copy)
    assert len(seen) == 4
    assert still_open(seen) == set()
