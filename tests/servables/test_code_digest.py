from __future__ import annotations

import shutil
from pathlib import Path

import torch

from tests.models.adds_one import AddsOne
from tests.models.digits import DigitClassifier
from tfs.export import Packaging, reseal, save, save_python
from tfs.servables.version_files import code_digest

EXAMPLE = torch.rand(2, 64)
SORTING = Path(__file__).parent / "sorting_servable.py"


def test_versions_with_other_weights_share_a_digest(tmp_path: Path) -> None:
    """A model trained further is measured once."""
    first = save(DigitClassifier(), EXAMPLE, tmp_path)
    second = save(DigitClassifier(), torch.rand(2, 64), tmp_path)
    assert code_digest(first) == code_digest(second)


def test_other_sizes_code_signature_host_or_device_change_the_digest(
    tmp_path: Path,
) -> None:
    """Whatever can change how long a call takes counts as other code."""
    path = save(DigitClassifier(), EXAMPLE, tmp_path / "a")
    digests = {
        code_digest(path),
        code_digest(path, host="another machine"),
        code_digest(path, device="cuda:0"),
        code_digest(save(DigitClassifier(11), EXAMPLE, tmp_path / "b")),
        code_digest(save(AddsOne(), EXAMPLE, tmp_path / "c")),
        code_digest(save(DigitClassifier(), EXAMPLE, tmp_path / "d", batched=False)),
        code_digest(
            save(
                DigitClassifier(),
                EXAMPLE,
                tmp_path / "e",
                packaging=Packaging(batching_parameters=""),
            )
        ),
    }
    assert len(digests) == 7


def test_weights_of_a_python_version_do_not_count_its_assets_do(
    tmp_path: Path,
) -> None:
    """safetensors hold tensors only; what lies in assets/ may be anything."""
    scales = [{"scale": torch.tensor(value)} for value in (1.0, 2.0)]
    first, second = (save_python(SORTING, tmp_path, weights=w) for w in scales)
    assert code_digest(first) == code_digest(second)
    edited = tmp_path / "edited"
    shutil.copytree(second, edited)
    (edited / "assets").mkdir()
    (edited / "assets" / "words.txt").write_text("a b c")
    assert code_digest(reseal(edited, tmp_path)) != code_digest(second)


def test_directory_without_manifest_has_a_digest(tmp_path: Path) -> None:
    """What was dropped by hand is read where no digests are promised."""
    (tmp_path / "table.csv").write_text("k,v\na,1\n")
    before = code_digest(str(tmp_path))
    (tmp_path / "table.csv").write_text("k,v\na,2\n")
    assert code_digest(str(tmp_path)) != before
