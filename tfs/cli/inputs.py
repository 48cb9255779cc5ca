"""``--input NAME=FILE.npy``, ``NAME=FILE.json`` or ``NAME=JSON`` as arrays."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tfs.core.errors import InvalidArgument
from tfs.core.strict_json import read_strict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_FORMS: Final = (
    "NAME=FILE.npy, NAME=FILE.json, NAME=JSON such as 'x=[[1,2],[3,4]]' or "
    "'text=[\"a b\"]', or NAME=- for JSON from standard input"
)
HELP: Final = f"an input: {_FORMS}"


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
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"--input {word}: write {HELP}")
        if name in inputs:
            raise InvalidArgument(f"--input {name} is there twice")
        inputs[name] = _read(name, value, dtypes.get(name))
    return inputs


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
    try:
        if value.endswith(".npy"):
            return _read_array(value, dtype, name)
        if value.endswith(".json"):
            text = Path(value).read_text(encoding="utf-8-sig")
            return _read_json(text, dtype, name, where)
        if value == "-":
            text = sys.stdin.read()
            return _read_json(text, dtype, name, where)
        if not value.lstrip().startswith(("[", "{", '"')) and Path(value).is_file():
            raise ValueError(f"{value} is neither a .npy nor a .json file")
        return _read_json(value, dtype, name, where)
    except InvalidArgument as error:
        what = error.message.removeprefix(f"input {name!r}: ")
        what = what.removeprefix(f"{where}: ")
        if isinstance(error.__cause__, json.JSONDecodeError):
            what += f"; write {_FORMS}"
        raise InvalidArgument(f"{where}: {what}") from error
    except OSError as error:
        raise InvalidArgument(f"{where}: {value}: {error.strerror or error}") from error
    except (ValueError, MemoryError) as error:
        raise InvalidArgument(f"{where}: {error}") from error


def _read_json(text: str, dtype: str | None, name: str, where: str) -> object:
    nested = read_json(text, where)
    from tfs.client.arrays import Typed, as_array, converted
    from tfs.client.narrow_floats import NARROW_FLOATS

    if dtype in NARROW_FLOATS:
        return Typed(converted(nested, "float32", name), dtype)
    if dtype is not None:
        return converted(nested, dtype, name)
    return as_array(nested, name)


def _read_array(path: str, dtype: str | None, name: str) -> object:
    import numpy as np

    from tfs.client.arrays import Typed, as_array, converted
    from tfs.client.narrow_floats import NARROW_FLOATS, decode

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
