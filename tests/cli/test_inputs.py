"""tfs.cli.inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfs.cli.inputs import jsonable, read_inputs
from tfs.core.errors import InvalidArgument


def test_an_npy_file_keeps_its_dtype(tmp_path: Path) -> None:
    """An array in a file is sent as it is, whatever the signature says."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.int16))
    found = read_inputs([f"x={path}"], {"x": "float32"})["x"]
    assert found.dtype == np.int16
    assert found.tolist() == [0, 1, 2, 3]


def test_json_takes_the_signatures_dtype(tmp_path: Path) -> None:
    """JSON has one kind of number; the signature says which is meant."""
    path = tmp_path / "x.json"
    path.write_text("[[1, 2]]")
    found = read_inputs([f"x={path}", "n=[1, 2]"], {"x": "float32", "n": "uint8"})
    assert found["x"].dtype == np.float32
    assert found["n"].dtype == np.uint8


def test_json_without_a_signature_takes_the_usual_dtype() -> None:
    """Floats are float32 and integers int64, as in the client."""
    found = read_inputs(["a=1.5", "b=2", 'c=["x"]'], {})
    assert found["a"].dtype == np.float32
    assert found["b"].dtype == np.int64
    assert found["c"].tolist() == ["x"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["x"], "--input x: write"),
        (["x=1", "x=2"], "there twice"),
        (["x=none.npy"], "--input x: .*No such file"),
        (["x=[1,"], "--input x: no JSON"),
        (["x=[[1],[1,2]]"], "--input x: "),
        (['x=["a"]'], "--input x: "),
    ],
)
def test_a_bad_input_is_named(words: list[str], problem: str) -> None:
    """The message says which input, and what is wrong with it."""
    with pytest.raises(InvalidArgument, match=problem):
        read_inputs(words, {"x": "float32"})


def test_outputs_become_json() -> None:
    """Text is text, other bytes are hex, complex numbers are pairs."""
    strings = np.array([b"yes", b"\xff"], dtype=object)
    assert jsonable(strings) == ["yes", {"hex": "ff"}]
    assert jsonable(np.array([1 + 2j])) == [[1.0, 2.0]]
