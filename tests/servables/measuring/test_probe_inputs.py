from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.digits import DigitClassifier
from tests.tensors import floats, integers
from tfs.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT64, STRING
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.servables.measuring.probe_subject import FREE_SIZE, ProbeInputs

KINDS = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT64, BOOL, STRING)


def signature(batched: bool = True, **defaults: TensorView) -> Signature:
    inputs = {kind.name: TensorSpec(kind, (-1, 3, -1)) for kind in KINDS}
    outputs = {"y": TensorSpec(FLOAT32, (-1,))}
    return Signature(Method.PREDICT, inputs, outputs, defaults, batched=batched)


def test_made_up_rows_fit_the_signature_and_differ(tmp_path: Path) -> None:
    """Floats are normals, the rest is zero or empty; free sizes get one that works."""
    inputs = ProbeInputs.of(str(tmp_path), signature())
    assert not inputs.is_authors
    assert inputs.num_different == 2
    taken = inputs.take(1, 0, 5)
    assert signature().check_inputs(taken) == 3
    for view in taken.values():
        assert view.shape == (3, 3, FREE_SIZE)
        TensorView.checked(view.dtype, view.shape, _plain(view))
    for kind in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16):
        view = taken[kind.name]
        assert view.rows(0, 1) != view.rows(1, 2)
        assert view.rows(0, 1) == view.rows(2, 3)


def _plain(view: TensorView) -> bytes | tuple[bytes, ...]:
    return view.data if isinstance(view.data, tuple) else bytes(view.data)


def test_made_up_rows_are_the_same_every_time(tmp_path: Path) -> None:
    """A measurement can be repeated."""
    first, second = (ProbeInputs.of(str(tmp_path), signature()) for _ in range(2))
    assert first.whole() == second.whole()


def test_default_is_used_as_it_is(tmp_path: Path) -> None:
    """An input that may be left out keeps its default, whatever the batch."""
    default = TensorView(INT64, (1, 3, 1), bytes(24))
    inputs = ProbeInputs.of(str(tmp_path), signature(int64=default))
    assert inputs.take(0, 1, 2)["int64"] is default


def test_unbatched_signature_is_taken_whole(tmp_path: Path) -> None:
    """Without a batch there are no rows to choose."""
    inputs = ProbeInputs.of(str(tmp_path), signature(batched=False))
    assert inputs.num_different == 0
    assert inputs.whole()["float32"].shape == (FREE_SIZE, 3, FREE_SIZE)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_authors_example_is_used_unless_it_is_damaged(
    tmp_path: Path, is_damaged: bool
) -> None:
    """A damaged example counts as absent: a probe never fails a load."""
    pixels = torch.rand(2, 64)
    path = save(DigitClassifier(), pixels, tmp_path)
    if is_damaged:
        Path(path, "examples.bin").write_bytes(b"short")
    found = read_manifest(path).signatures[DEFAULT_SIGNATURE]
    inputs = ProbeInputs.of(path, found)
    assert inputs.is_authors is not is_damaged
    same = bytes(_plain(inputs.whole()["pixels"])) == pixels.numpy().tobytes()  # type: ignore[arg-type]
    assert same is not is_damaged


def test_what_speaks_of_a_length_follows_the_row_that_is_cut() -> None:
    """Lengths and positions that stay behind would have a model refuse the row."""
    texts = Signature(
        Method.PREDICT,
        {
            "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0),
            "lengths": TensorSpec(INT64, (-1,)),
            "positions": TensorSpec(INT64, (-1, -1)),
            "other": TensorSpec(INT64, (-1,)),
        },
        {"y": TensorSpec(FLOAT32, (-1,))},
    )
    rows = {
        "x": floats((2, 4), *range(8)),
        "lengths": integers((2,), 4, 4),
        "positions": integers((2, 4), 0, 1, 2, 3, 0, 1, 2, 3),
        "other": integers((2,), 9, 3),
    }
    ragged = ProbeInputs(texts, rows, is_authors=True).ragged()
    assert ragged is not None
    alone, joined = ragged
    assert alone == {
        "x": floats((1, 2), 4, 5),
        "lengths": integers((1,), 2),
        "positions": integers((1, 2), 0, 1),
        "other": integers((1,), 3),
    }
    assert joined == {
        "x": floats((2, 4), 0, 1, 2, 3, 4, 5, 0, 0),
        "lengths": integers((2,), 4, 2),
        "positions": integers((2, 4), 0, 1, 2, 3, 0, 1, 0, 0),
        "other": integers((2,), 9, 3),
    }
