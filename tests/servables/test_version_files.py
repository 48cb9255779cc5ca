from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from tests.models.digits import DigitClassifier
from tfs.core.errors import DataLoss, FailedPrecondition, NotFound
from tfs.export import save
from tfs.servables.version_files import ArchiveKind, inspect_archive

WEIGHTS_BYTES = sum(tensor.nbytes for tensor in DigitClassifier().state_dict().values())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = save(DigitClassifier(), torch.rand(2, 64), tmp_path / "base")
    return Path(path) / "model.pt"


def test_package_is_recognised_and_its_tensors_are_counted(package: Path) -> None:
    """Tensor bytes are the weights', whatever else the file holds."""
    contents = inspect_archive(str(package))
    assert contents.kind is ArchiveKind.PACKAGE
    assert contents.tensor_bytes == WEIGHTS_BYTES
    assert contents.compressed_tensor_bytes == 0
    assert contents.size_bytes > WEIGHTS_BYTES


def test_compressed_package_counts_its_tensors_uncompressed(
    package: Path, tmp_path: Path
) -> None:
    """A smaller file after a round through another zip program needs more memory."""
    packed = tmp_path / "packed.pt"
    with (
        zipfile.ZipFile(package) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    contents = inspect_archive(str(packed))
    assert contents.compressed_tensor_bytes == WEIGHTS_BYTES


def test_checkpoint_is_told_from_a_package(tmp_path: Path) -> None:
    """A state dict is the most likely mistake, so it is known by name."""
    torch.save(DigitClassifier().state_dict(), tmp_path / "model.pt")
    contents = inspect_archive(str(tmp_path / "model.pt"))
    assert contents.kind is ArchiveKind.CHECKPOINT
    assert contents.tensor_bytes == WEIGHTS_BYTES


def test_exported_program_is_recognised(tmp_path: Path) -> None:
    """A .pt2 file shows what it is without being loaded."""
    program = torch.export.export(DigitClassifier().eval(), (torch.rand(2, 64),))
    torch.export.save(program, tmp_path / "model.pt2")
    contents = inspect_archive(str(tmp_path / "model.pt2"))
    assert contents.kind is ArchiveKind.EXPORTED
    assert WEIGHTS_BYTES <= contents.tensor_bytes < 2 * WEIGHTS_BYTES


@pytest.mark.parametrize("cut", [0, 100, -30])
def test_cut_archive_says_so(package: Path, cut: int) -> None:
    """A copy that broke off is explained, not passed on as a zip error."""
    package.write_bytes(package.read_bytes()[:cut])
    with pytest.raises(DataLoss, match="not a readable archive"):
        inspect_archive(str(package))


def test_archive_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    """Writing it again would not help; a folder stands for missing rights here."""
    (tmp_path / "model.pt").mkdir()
    with pytest.raises(FailedPrecondition, match=r"cannot read .*model\.pt: Is a dir"):
        inspect_archive(str(tmp_path / "model.pt"))


def test_absent_archive_is_not_found(tmp_path: Path) -> None:
    """A version whose payload is gone is another fault than a damaged one."""
    with pytest.raises(NotFound, match=r"model\.pt"):
        inspect_archive(str(tmp_path / "model.pt"))


def test_a_graph_that_was_cut_short_is_no_checkpoint(tmp_path: Path) -> None:
    """The weights in a graph's file are an archive of torch.save, which then ends it."""
    inner = tmp_path / "weights.pt"
    torch.save({"w": torch.ones(3)}, inner)
    whole = tmp_path / "model.pt2"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/weights/model.pt", inner.read_bytes())
    data = whole.read_bytes()
    whole.write_bytes(data[: data.rindex(inner.read_bytes()[-22:]) + 22])
    with pytest.raises(DataLoss, match="cut short"):
        inspect_archive(str(whole))
