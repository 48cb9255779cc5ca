"""Platform ``hashmap``: lookup tables, ``table.csv`` or ``table.json``. No torch.

It answers on the serving loop itself, because a lookup takes less time than handing it
over. (TensorFlow Serving: servables/hashmap, the paper's example of a second platform.)

A table goes from a key to a row of values.

CSV: the first line names the columns, the first column is the key. A name may carry a
type, as in ``price:float32``. Without one, a column is int64, float32 or string,
whichever fits all its values. Whole numbers beyond int64 are strings, because float32
would change them. JSON: an object from key to an object of values (equal keys in all),
or to one value, called "value".
"""

from __future__ import annotations

import csv
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core.dtype import BOOL, DTYPES, FLOAT32, FLOAT64, INT32, INT64, STRING, DType
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import InferenceTask, OneByOne, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.version_layout import LAYOUTS
from tfs.core.version_directory import (
    is_committed,
    read_failure,
    read_manifest,
    verify_files,
)
from tfs.servables.platform import LoadContext
from tfs.servables.version_files import VersionDescription, describe

VALUE: Final = "value"
_MAX_CELL_CHARS: Final = (1 << 31) - 1
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_NUMBERS: Final = (INT32, INT64, FLOAT32, FLOAT64)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Immutable.

    Attributes:
        name: Name of the output that the column becomes.
        dtype: Element type of the column.
        cells: Row by row: the string, or the number's little-endian bytes.
        missing: The cell for a key that is not in the table.

    """

    name: str
    dtype: DType
    cells: tuple[bytes, ...]
    missing: bytes


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A read-only table. Immutable.

    Attributes:
        key: The key column's name.
        rows: Row index by key, as UTF-8 bytes.
        columns: The others, in the file's order.

    """

    key: str
    rows: Mapping[bytes, int]
    columns: tuple[Column, ...]


def read_table(path: str) -> LookupTable:
    """Reads ``table.csv`` or ``table.json``.

    Raises:
        DataLoss: It is damaged; the message names the line or key and what is
            wrong.
        ServingError: It cannot be read.

    """
    name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return (
                _from_json(file.read()) if name.endswith(".json") else _from_csv(file)
            )
    except FileNotFoundError as error:
        raise DataLoss(f"no {name} in the version") from error
    except OSError as error:
        raise read_failure(error, f"cannot read {name}") from error
    except RecursionError as error:
        raise DataLoss(f"bad {name}: it is nested too deep") from error
    except (csv.Error, ValueError) as error:
        raise DataLoss(f"bad {name}: {error}") from error


def _from_csv(lines: Iterable[str]) -> LookupTable:
    # Python's default limit of 128 KiB per cell protects from strangers' files; this is
    # a model's file.
    csv.field_size_limit(_MAX_CELL_CHARS)
    reader = csv.reader(lines)
    header = next(reader, None)
    if not header or len(header) < 2:
        raise ValueError("the first line must name a key column and a value column")
    names, declared = zip(*map(_name_and_type, header), strict=True)
    if declared[0] not in (None, STRING):
        raise ValueError("the key column is always a string")
    rows: dict[bytes, int] = {}
    values: list[list[str]] = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(
                f"line {reader.line_num} has {len(row)} values, the first {len(header)}"
            )
        _add_key(rows, row[0], f"line {reader.line_num}")
        values.append(row[1:])
    columns = [
        _column(name, kind, [row[index] for row in values])
        for index, (name, kind) in enumerate(zip(names[1:], declared[1:], strict=True))
    ]
    return _table(names[0], rows, columns)


def _from_json(text: str) -> LookupTable:
    rows: dict[bytes, int] = {}
    keys, records = [], []
    for key, value in _items(text):
        _add_key(rows, key, f"key {key!r}")
        keys.append(key)
        records.append(value if isinstance(value, dict) else {VALUE: value})
    if not records:
        raise ValueError("the table must be an object from key to values")
    names = list(records[0])
    for key, record in zip(keys, records, strict=True):
        if record.keys() != set(names):
            raise ValueError(
                f"key {key!r} has {sorted(record)}, others {sorted(names)}"
            )
        for name, cell in record.items():
            if isinstance(cell, bool) or not isinstance(cell, int | float | str):
                raise ValueError(f"key {key!r}: {name} must be a number or a string")
    columns = []
    for name in names:
        cells = [record[name] for record in records]
        is_text = any(isinstance(cell, str) for cell in cells)
        kind = STRING if is_text else None
        columns.append(_column(name, kind, [_text(cell) for cell in cells]))
    return _table("key", rows, columns)


def _items(text: str) -> Iterator[tuple[str, object]]:
    """Yields keys and values of a JSON object, one after the other.

    If it were parsed at once, a table of a hundred megabytes would hold up every other
    thread for seconds.
    """
    decoder = json.JSONDecoder()
    position = _next(text, 0)
    if text[position : position + 1] != "{":
        raise ValueError("the table must be an object from key to values")
    position = _next(text, position + 1)
    while text[position : position + 1] != "}":
        key, position = decoder.raw_decode(text, position)
        position = _next(text, position)
        if not isinstance(key, str) or text[position : position + 1] != ":":
            raise ValueError(f"a key and a colon are missing at character {position}")
        value, position = decoder.raw_decode(text, _next(text, position + 1))
        yield key, value
        position = _next(text, position)
        if text[position : position + 1] == ",":
            position = _next(text, position + 1)
            if text[position : position + 1] != '"':
                raise ValueError(f"a key is missing at character {position}")
        elif text[position : position + 1] != "}":
            raise ValueError(f"a comma is missing at character {position}")
    if _next(text, position + 1) != len(text):
        raise ValueError(f"there is more behind the object, at character {position}")


def _next(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found is not None else position


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell)


def _name_and_type(header: str) -> tuple[str, DType | None]:
    name, separator, kind = header.strip().rpartition(":")
    if not separator:
        return kind, None
    if kind not in DTYPES or (DTYPES[kind] not in _NUMBERS and kind != STRING.name):
        usable = ", ".join([*(d.name for d in _NUMBERS), STRING.name])
        raise ValueError(f"column {header!r}: the type must be one of {usable}")
    return name, DTYPES[kind]


def _add_key(rows: dict[bytes, int], key: str, where: str) -> None:
    data = key.encode()
    if data in rows:
        raise ValueError(f"{where}: the key {key!r} is there already")
    rows[data] = len(rows)


def _column(name: str, dtype: DType | None, cells: Sequence[str]) -> Column:
    are_whole = False
    for candidate in (INT64, FLOAT32, STRING) if dtype is None else (dtype,):
        if are_whole and candidate is FLOAT32:
            continue
        if candidate is STRING:
            return Column(name, STRING, tuple(cell.encode() for cell in cells), b"")
        pack = struct.Struct(f"<{candidate.code}").pack
        parse: Callable[[str], float] = int if candidate in (INT32, INT64) else float
        try:
            # Python reads "1_2" as a number, but nobody else does.
            if any("_" in cell for cell in cells):
                raise ValueError("a number has no underscore")
            packed = tuple(pack(parse(cell)) for cell in cells)
        except (ValueError, struct.error, OverflowError) as error:
            if dtype is not None:
                raise ValueError(f"column {name!r} is no {dtype}: {error}") from error
            are_whole = all(map(_WHOLE.fullmatch, cells))
            continue
        missing = pack(0) if parse is int else pack(float("nan"))
        return Column(name, candidate, packed, missing)
    raise AssertionError("a string column takes everything")


def _table(key: str, rows: dict[bytes, int], columns: list[Column]) -> LookupTable:
    if not rows:
        raise ValueError("the table has no rows")
    names = [column.name for column in columns]
    if len(set(names)) != len(names) or not all(names) or FOUND in names:
        raise ValueError(
            f"columns need different names, other than {FOUND!r}: {', '.join(names)}"
        )
    return LookupTable(key, rows, tuple(columns))


FOUND: Final = "found"
"""The output that tells which keys were in the table."""


FILES: Final = LAYOUTS["hashmap"].files
_BYTES_PER_FILE_BYTE: Final = 12
"""With CPython 3.11, a table of short cells takes 8 to 11 times as much as its file."""


class Hashmap:
    """See :class:`tfs.servables.platform.OwnPlatform`. Immutable."""

    name: Final = "hashmap"

    def recognizes(self, path: str) -> bool:
        return any(os.path.isfile(os.path.join(path, name)) for name in FILES)

    def runs_code(self, path: str) -> bool:
        return False

    def loader(self, path: str, context: LoadContext) -> Loader[Servable]:
        return HashmapLoader(path)

    def describe(self, path: str) -> VersionDescription:
        """Returns the manifest's description, or else that of the table."""
        return describe(path, self.name, self._own)

    def _own(self, path: str) -> VersionDescription:
        return VersionDescription(table_signatures(read_table(_table_file(path))))


class HashmapLoader:
    """Reads a table. Confined to one caller at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._servable: HashmapServable | None = None

    def estimate_resources(self) -> ResourceAllocation:
        try:
            size_bytes = os.path.getsize(self._file())
        except OSError as error:
            raise NotFound(f"cannot read the table: {error.strerror}") from error
        return ResourceAllocation.ram(_BYTES_PER_FILE_BYTE * size_bytes, size_bytes)

    def load(self, servable_id: ServableId) -> None:
        table_signature: Signature | None = None
        if is_committed(self._path):
            manifest = read_manifest(self._path)
            verify_files(self._path, manifest)
            table_signature = manifest.signatures.get(DEFAULT_SIGNATURE)
        table = read_table(self._file())
        servable = HashmapServable(servable_id, table)
        own = servable.signatures[DEFAULT_SIGNATURE]
        if table_signature is not None and (
            table_signature.inputs != own.inputs
            or table_signature.outputs != own.outputs
        ):
            raise InvalidArgument(
                f"the manifest's signature does not fit the table, which takes "
                f"{_shown(own.inputs)} and gives {_shown(own.outputs)}"
            )
        self._servable = servable

    def unload(self) -> None:
        self._servable = None

    @property
    def servable(self) -> Servable:
        """The loaded table."""
        if self._servable is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._servable

    def _file(self) -> str:
        return _table_file(self._path)


class HashmapServable(OneByOne):
    """Looks keys up. Thread-safe; answers before ``submit`` returns.

    Takes the key column (string [batch]); gives every other column [batch], and
    ``found`` (bool [batch]). For a key that is not in the table these are an empty
    string, 0 or NaN, and false.
    """

    def __init__(self, servable_id: ServableId, table: LookupTable) -> None:
        self.id = servable_id
        self._table = table
        self._signatures = table_signatures(table)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key; there is one."""
        return self._signatures

    def submit(self, task: InferenceTask) -> None:
        """Answers at once."""
        outcome: Outcome | None = task.cancel.error
        if outcome is None:
            try:
                outcome = self._look_up(task.inputs[self._table.key])
            except ServingError as error:
                outcome = error
            except Exception as error:
                outcome = InvalidArgument(f"{self.id.slashed}: {error!r}")
        task.on_done(outcome)

    def _look_up(self, keys: TensorView) -> Mapping[str, TensorView]:
        if not isinstance(keys.data, tuple):
            raise InvalidArgument(f"input {self._table.key!r} expected to be string")
        indexes = [self._table.rows.get(key, -1) for key in keys.data]
        shape = (len(indexes),)
        outputs = {}
        for column in self._table.columns:
            cells = [column.cells[i] if i >= 0 else column.missing for i in indexes]
            data = tuple(cells) if column.dtype is STRING else b"".join(cells)
            outputs[column.name] = TensorView(column.dtype, shape, data)
        found = bytes(index >= 0 for index in indexes)
        outputs[FOUND] = TensorView(BOOL, shape, found)
        return outputs


def table_signatures(table: LookupTable) -> dict[str, Signature]:
    """Returns the one signature of a table, by its key."""
    outputs = {c.name: TensorSpec(c.dtype, (-1,)) for c in table.columns}
    return {
        DEFAULT_SIGNATURE: Signature(
            Method.PREDICT,
            {table.key: TensorSpec(STRING, (-1,))},
            {**outputs, FOUND: TensorSpec(BOOL, (-1,))},
        )
    }


def _table_file(path: str) -> str:
    for name in FILES:
        file = os.path.join(path, name)
        if os.path.isfile(file):
            return file
    raise InvalidArgument(f"no {' or '.join(FILES)} in the version")


def _shown(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in specs.items())
