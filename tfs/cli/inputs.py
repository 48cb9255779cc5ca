"""``--input NAME=FILE.npy``, ``NAME=FILE.json`` or ``NAME=JSON`` as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tfs.core.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HELP: Final = (
    "an input: NAME=FILE.npy, NAME=FILE.json, or NAME=JSON such as x=[[1,2],[3,4]]"
)


def read_inputs(
    words: Sequence[str], dtypes: Mapping[str, str]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the inputs by name.

    Args:
        words: What was said with ``--input``.
        dtypes: The signature's dtypes by input, where they are known: JSON has only
            one kind of number. Arrays from .npy files keep their own.

    Raises:
        InvalidArgument: Naming the input and what is wrong with it.

    """
    inputs: dict[str, npt.NDArray[Any]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"--input {word}: write {HELP}")
        if name in inputs:
            raise InvalidArgument(f"--input {name} is there twice")
        inputs[name] = _read(name, value, dtypes.get(name))
    return inputs


def jsonable(array: npt.NDArray[np.generic]) -> Any:
    """Returns nested lists for ``json.dumps``: bytes as text, else as hex."""

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
    """Returns what a JSON text says.

    Raises:
        InvalidArgument: It is no JSON; says where.

    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{where}: no JSON: {error}") from error


def _read(name: str, value: str, dtype: str | None) -> npt.NDArray[Any]:
    import numpy as np

    where = f"--input {name}"
    try:
        if value.endswith(".npy"):
            array: npt.NDArray[Any] = np.load(value, allow_pickle=False)
            return array
        if value.endswith(".json"):
            value = Path(value).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{where}: {error}") from error
    nested = read_json(value, where)
    try:
        array = np.asarray(nested)
        if dtype == "bfloat16" or (dtype or "").startswith("float8"):
            raise InvalidArgument(
                f"{where}: the model wants {dtype}, which numpy does not have; send it "
                "with tfs.client and arrays of the package ml_dtypes"
            )
        if dtype not in (None, "string"):
            array = array.astype(np.dtype(dtype), casting="unsafe")
        elif array.dtype == np.float64:
            array = array.astype(np.float32)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{where}: {error}") from error
    return array
