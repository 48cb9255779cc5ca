"""``--input NAME=VALUE``, or all inputs as one JSON object, as arrays."""

from __future__ import annotations

import base64
import binascii
import json
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tfs.core.errors import InvalidArgument
from tfs.core.version.manifest import read_strict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_FORMS: Final = (
    "NAME=FILE.npy, NAME=FILE.json, NAME=JSON such as 'x=[[1,2],[3,4]]' or "
    "'text=[\"a b\"]', NAME=@FILE for a file's bytes, or NAME=- for JSON from standard "
    "input"
)
_WHOLE: Final = (
    "; or all inputs at once, without NAME=: a JSON object, a .json file or -. In JSON, "
    '{"b64": "..."} stands for bytes'
)
HELP: Final = f"an input: {_FORMS}{_WHOLE}"


def read_inputs(words: Sequence[str], dtypes: Mapping[str, str]) -> dict[str, object]:
    """Returns the inputs by name, as the client takes them.

    Args:
        words: The values of ``--input``.
        dtypes: The signature's dtypes by input, as far as they are known. They are
            needed because JSON has only one kind of number, of which numpy makes
            float64 and int64; only floats are rounded. Arrays of another dtype from
            .npy files keep it, unless the model wants a type that numpy lacks.

    Raises:
        InvalidArgument: Names the input and what is wrong with it.

    """
    inputs: dict[str, object] = {}
    for word in words:
        for name, found in _named(word, dtypes).items():
            if name in inputs:
                raise InvalidArgument(f"--input {name} is there twice")
            inputs[name] = found
    return inputs


def _named(word: str, dtypes: Mapping[str, str]) -> dict[str, object]:
    """Returns the inputs of one ``--input``: one with a name, or a whole object."""
    is_object = word.lstrip().startswith("{")
    if is_object or word == "-" or (word.endswith(".json") and "=" not in word):
        text = word if is_object else _text(word, f"--input {word}")
        where = "--input" if is_object else f"--input {word}"
        whole = read_json(text, where)
        if not isinstance(whole, dict):
            raise InvalidArgument(f"{where}: expected an object, of all inputs by name")
        return {
            name: _told(name, partial(_arrays, value, dtypes.get(name), name))
            for name, value in whole.items()
        }
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise InvalidArgument(f"--input {word}: write {HELP}")
    return {name: _told(name, partial(_read, name, value, dtypes.get(name)))}


def _told(name: str, read: Callable[[], object]) -> object:
    """Returns what is read; an error names the input and how to write it."""
    where = f"--input {name}"
    try:
        return read()
    except InvalidArgument as error:
        what = error.message.removeprefix(f"input {name!r}: ")
        what = what.removeprefix(f"{where}: ")
        if isinstance(error.__cause__, json.JSONDecodeError):
            what += f"; write {_FORMS}"
        raise InvalidArgument(f"{where}: {what}") from error
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        raise InvalidArgument(f"{where}: {file}{error.strerror or error}") from error
    except (ValueError, MemoryError) as error:
        raise InvalidArgument(f"{where}: {error}") from error


def _text(value: str, where: str) -> str:
    """Returns what a file or, for ``-``, standard input holds."""
    if value == "-":
        return sys.stdin.read()
    try:
        return Path(value).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgument(f"{where}: {value}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{where}: {value}: {error}") from error


def jsonable(array: npt.NDArray[np.generic]) -> Any:
    """Returns nested lists for ``json.dumps``; bytes as text if they are UTF-8, else as hex."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"hex": value.hex()}
        if isinstance(value, complex):
            return [value.real, value.imag]
        return value

    return plain(array.tolist())


def read_json(text: str, where: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        InvalidArgument: It is not JSON, or has a key twice; says where it is wrong.

    """
    try:
        return read_strict(text)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{where}: no JSON: {error}") from error
    except ValueError as error:  # a key that is there twice
        raise InvalidArgument(f"{where}: {error}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{where}: lists within too many lists") from error


def _read(name: str, value: str, dtype: str | None) -> object:
    where = f"--input {name}"
    if value.startswith("@"):
        return _file_bytes(value[1:], dtype)
    if value.endswith(".npy"):
        return _read_array(value, dtype, name)
    if value == "-" or value.endswith(".json"):
        return _arrays(read_json(_text(value, where), where), dtype, name)
    if not value.lstrip().startswith(("[", "{", '"')) and Path(value).is_file():
        raise ValueError(
            f"{value} is neither a .npy nor a .json file; @{value} sends its bytes"
        )
    return _arrays(read_json(value, where), dtype, name)


def _file_bytes(path: str, dtype: str | None) -> list[bytes]:
    """Returns a file's bytes, as the only row."""
    if dtype not in (None, "string"):
        raise ValueError(f"@{path} is sent as bytes, and the model takes {dtype}")
    return [Path(path).read_bytes()]


def _arrays(value: Any, dtype: str | None, name: str) -> object:
    """Returns nested lists of JSON as the client takes them."""
    from tfs.client.arrays import NARROW_FLOATS, Typed, as_array, converted

    nested = _with_bytes(value)
    if dtype in NARROW_FLOATS:
        return Typed(converted(nested, "float32", name), dtype)
    if dtype is not None:
        return converted(nested, dtype, name)
    return as_array(nested, name)


def _with_bytes(value: Any) -> Any:
    """Returns a value of JSON with bytes in place of ``{"b64": ...}``."""
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if not isinstance(value, dict):
        return value
    text = value.get("b64")
    if value.keys() != {"b64"} or not isinstance(text, str):
        raise ValueError('of objects, only {"b64": "..."} stands for a value')
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"b64: {error}") from error


def _read_array(path: str, dtype: str | None, name: str) -> object:
    import numpy as np

    from tfs.client.arrays import NARROW_FLOATS, Typed, as_array, converted, decode

    try:
        with open(path, "rb") as file:  # numpy would leave a damaged file open
            loaded = np.load(file, allow_pickle=False)
    except (EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: {error}") from error
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        # Also what numpy says of a file that is none of its own.
        raise ValueError(
            f"{path} holds Python objects, or is no .npy file; numpy.save an array of "
            "numbers or text"
        ) from error
    if not isinstance(loaded, np.ndarray):
        raise ValueError(f"{path} is an archive of arrays (.npz), not one array")
    array: npt.NDArray[Any] = loaded
    if dtype not in NARROW_FLOATS:
        if dtype in (None, "string") or array.dtype not in (np.float64, np.int64):
            return as_array(array, name)
        return converted(array, dtype, name)
    if array.dtype.kind == "V":  # numpy's kind for the dtypes of ml_dtypes
        array = decode(array.view("<u2" if dtype == "bfloat16" else "u1"), dtype)
    return Typed(array, dtype)
