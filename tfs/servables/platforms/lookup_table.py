"""A table from a key to a row of values, read from CSV or JSON.

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

from tfs.core.dtype import DTYPES, FLOAT32, FLOAT64, INT32, INT64, STRING, DType
from tfs.core.errors import DataLoss
from tfs.core.version_directory import read_failure

VALUE: Final = "value"
_MAX_CELL_CHARS: Final = (1 << 31) - 1
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+\s*")
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_FORMATS: Final = {INT32: "<i", INT64: "<q", FLOAT32: "<f", FLOAT64: "<d"}


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
    """Returns where the blanks that begin at a position end."""
    found = _BLANKS.match(text, position)
    return found.end() if found is not None else position


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell)


def _name_and_type(header: str) -> tuple[str, DType | None]:
    name, separator, kind = header.strip().rpartition(":")
    if not separator:
        return kind, None
    if kind not in DTYPES or (DTYPES[kind] not in _FORMATS and kind != STRING.name):
        usable = ", ".join([*(d.name for d in _FORMATS), STRING.name])
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
        pack = struct.Struct(_FORMATS[candidate]).pack
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
