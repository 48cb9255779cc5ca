"""tfs.cli.calling.inputs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tfs.cli.calling.inputs import jsonable, read_inputs
from tfs.client.arrays import Typed
from tfs.core.errors import InvalidArgument


def _dtypes(inputs: Mapping[str, object]) -> dict[str, str]:
    return {name: str(np.asarray(each).dtype) for name, each in inputs.items()}


def test_an_npy_file_keeps_its_dtype(tmp_path: Path) -> None:
    """A dtype that somebody chose is sent as it is, whatever the signature says."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.int16))
    found = read_inputs([f"x={path}"], {"x": "float32"})["x"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int16
    assert found.tolist() == [0, 1, 2, 3]


def test_an_npy_file_of_numpys_own_choice_takes_the_signatures_dtype(
    tmp_path: Path,
) -> None:
    """Floats are float64 to numpy, and to hardly any model; strings stay strings."""
    floats, ints, texts = (tmp_path / f"{name}.npy" for name in "xns")
    np.save(floats, np.array([0.1]))
    np.save(ints, np.array([1, 200]))
    np.save(texts, np.array(["a"]))
    words = [f"x={floats}", f"n={ints}", f"s={texts}"]
    found = read_inputs(words, {"x": "float32", "n": "uint8", "s": "string"})
    assert _dtypes(found) == {"x": "float32", "n": "uint8", "s": "object"}
    with pytest.raises(InvalidArgument, match="--input x: a value does not fit uint8"):
        read_inputs(words[:1], {"x": "uint8"})


def test_an_npy_file_of_bytes_that_may_have_lost_zeros_is_refused(
    tmp_path: Path,
) -> None:
    """Such a file does not say whether shorter ones end in zeros."""
    np.save(tmp_path / "x.npy", np.array([b"ab\0"]))
    with pytest.raises(InvalidArgument, match=r"--input x: numpy's S3 .* pass a list"):
        read_inputs([f"x={tmp_path / 'x.npy'}"], {"x": "string"})


def test_json_takes_the_signatures_dtype(tmp_path: Path) -> None:
    """JSON has one kind of number; the signature says which is meant."""
    path = tmp_path / "x.json"
    path.write_text("[[1, 2]]")
    found = read_inputs([f"x={path}", "n=[1, 2]"], {"x": "float32", "n": "uint8"})
    assert _dtypes(found) == {"x": "float32", "n": "uint8"}


def test_json_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads JSON from standard input, which another program may write."""
    monkeypatch.setattr("sys.stdin", io.StringIO("[[1, 2]]"))
    assert _dtypes(read_inputs(["x=-"], {"x": "float32"})) == {"x": "float32"}


def _huge_header() -> bytes:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}" % (1 << 50)
    return b"\x93NUMPY\x01\x00\x76\x00" + text.ljust(117) + b"\n"


@pytest.mark.parametrize(
    "contents",
    [b"", b"PK\x03\x04", b"\x93NUMPY", b"text", _huge_header()],
    ids=["empty", "no archive", "cut off", "text", "huge"],
)
def test_files_that_are_no_arrays_are_refused(tmp_path: Path, contents: bytes) -> None:
    """Whatever numpy raises, one line names the input."""
    path = tmp_path / "x.npy"
    path.write_bytes(contents)
    with pytest.raises(InvalidArgument, match="--input x: "):
        read_inputs([f"x={path}"], {})


@pytest.mark.parametrize("is_array", [True, False])
def test_a_file_of_objects_is_not_told_a_way_that_there_is_not(
    tmp_path: Path, is_array: bool
) -> None:
    """numpy names an argument of its own, also for a file that is none of its own."""
    path = tmp_path / "x.npy"
    path.write_bytes(b"text")
    if is_array:
        np.save(path, np.array([1, None], dtype=object), allow_pickle=True)
    with pytest.raises(
        InvalidArgument, match="holds Python objects, or is no"
    ) as caught:
        read_inputs([f"x={path}"], {})
    assert "allow_pickle" not in caught.value.message


def test_an_archive_of_arrays_is_told_from_an_array(tmp_path: Path) -> None:
    """Which of its arrays is meant, nobody said."""
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    path = (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(InvalidArgument, match="archive of arrays"):
        read_inputs([f"x={path}"], {})


def test_lists_within_too_many_lists_are_refused() -> None:
    """They are no crash of the command."""
    with pytest.raises(InvalidArgument, match="--input x: lists within too many lists"):
        read_inputs(["x=" + "[" * 100_000 + "]" * 100_000], {})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_types_that_numpy_lacks_are_sent_all_the_same(
    tmp_path: Path, dtype: str
) -> None:
    """They are sent from JSON, from arrays of floats and from ml_dtypes' arrays."""
    path, raw = tmp_path / "x.npy", tmp_path / "raw.npy"
    np.save(path, np.array([1.5], dtype=np.float32))
    code = {"bfloat16": b"\xc0\x3f", "float8_e4m3fn": b"\x3c"}[dtype]
    np.save(raw, np.frombuffer(code, dtype=f"V{len(code)}"))
    for word in ("[1.5]", str(path), str(raw)):
        found = read_inputs([f"x={word}"], {"x": dtype})["x"]
        assert isinstance(found, Typed)
        assert found.dtype == dtype
        assert np.asarray(found.values).tolist() == [1.5]


def test_json_without_a_signature_takes_the_usual_dtype() -> None:
    """Floats are float32 and integers int64, as in the client."""
    found = read_inputs(["a=1.5", "b=2", 'c=["x"]'], {})
    assert _dtypes(found) == {"a": "float32", "b": "int64", "c": "object"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["x"], "--input x: write"),
        (["x=1", "x=2"], "there twice"),
        (["x=none.npy"], "--input x: none.npy: No such file"),
        (["x=[1,"], "--input x: no JSON.*; write NAME=FILE.npy"),
        (["x=1,2"], "--input x: no JSON.*, NAME=JSON such as"),
        (["x=[[1],[1,2]]"], "--input x: its lists differ in length"),
        (['x=["a"]'], "--input x: 'a' is no number"),
        (["x=[1, null]"], "--input x: None is no number"),
        (['x={"a": 1}'], "--input x: of objects, only"),
        ([f"x={__file__}"], "--input x: .*neither a .npy nor a .json file"),
        (["n=[300]"], "--input n: a value does not fit uint8"),
        (["n=[1.5]"], "--input n: a value does not fit uint8"),
    ],
)
def test_a_bad_input_is_named(words: list[str], problem: str) -> None:
    """The message says which input, and what is wrong with it."""
    with pytest.raises(InvalidArgument, match=problem):
        read_inputs(words, {"x": "float32", "n": "uint8"})


def test_a_file_is_sent_as_its_bytes(tmp_path: Path) -> None:
    """An image goes to an input of strings as it is, as the only row."""
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"\xff\xd8\0")
    assert read_inputs([f"image=@{path}"], {"image": "string"}) == {
        "image": [b"\xff\xd8\0"]
    }
    with pytest.raises(InvalidArgument, match="the model takes float32"):
        read_inputs([f"image=@{path}"], {"image": "float32"})
    with pytest.raises(InvalidArgument, match=f"--input image: {path}x: No such file"):
        read_inputs([f"image=@{path}x"], {})
    with pytest.raises(InvalidArgument, match=f"@{path} sends its bytes"):
        read_inputs([f"image={path}"], {})


def test_base64_stands_for_bytes_in_json() -> None:
    """As in TensorFlow Serving's REST API; other objects are no values."""
    found = read_inputs(['x=[{"b64": "/wA="}, "a"]'], {"x": "string"})["x"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [b"\xff\0", "a"]
    for wrong in ('{"b64": "?"}', '{"b64": 1}', '{"a": 1}', '{"b64": "", "c": 1}'):
        with pytest.raises(InvalidArgument, match=r"--input x: .*b64"):
            read_inputs([f"x=[{wrong}]"], {})


def test_an_object_holds_all_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, in a file or from standard input, beside others."""
    text = '{"x": [[1, 2]], "text": ["a=b"]}'
    path = tmp_path / "request.json"
    path.write_text(text)
    dtypes = {"x": "float32", "text": "string"}
    for word in (text, str(path), "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        found = read_inputs([word, "n=[1]"], dtypes)
        assert _dtypes(found) == {"x": "float32", "text": "object", "n": "int64"}
    with pytest.raises(InvalidArgument, match="--input x is there twice"):
        read_inputs([text, "x=1"], dtypes)
    with pytest.raises(InvalidArgument, match=r"--input text: .* no strings"):
        read_inputs(['{"text": [1]}'], dtypes)
    path.write_text("[1]")
    with pytest.raises(InvalidArgument, match="expected an object"):
        read_inputs([str(path)], {})


def test_outputs_become_json() -> None:
    """Text is text, other bytes are hex, complex numbers are pairs."""
    strings = np.array([b"yes", b"\xff"], dtype=object)
    assert jsonable(strings) == ["yes", {"hex": "ff"}]
    assert jsonable(np.array([1 + 2j])) == [[1.0, 2.0]]
