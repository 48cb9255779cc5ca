"""How commands print: tables, times and sizes for people, JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message

_LONGEST_CELL = 72


def as_json(message: Message) -> str:
    """Returns protobuf's JSON form, with the field names of the .proto files.

    It contains zeros, False and empty lists, so that a script always finds the same
    keys. Message fields that are not set are left out.
    """
    from google.protobuf import json_format

    return json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns left-aligned columns, two blanks apart.

    The first column, which is a name, and the last one are never cut. Control
    characters, which texts of models may contain, are not passed on to the terminal.
    """
    cells = [list(heads)]
    for row in rows:
        first, *texts = (_printable(str(each)) for each in row)
        cells.append([first, *map(_cut, texts[:-1]), *texts[-1:]])
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def _printable(text: str) -> str:
    line = " ".join(text.split())
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else "?" for each in line)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."


def ago(since_s: float, now_s: float | None = None) -> str:
    """Returns how long ago a time was: "12 s", "3 h"; "-" if unknown."""
    if not since_s:
        return "-"
    seconds = max(0.0, (time.time() if now_s is None else now_s) - since_s)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def mebibytes(size_bytes: int) -> str:
    """Returns a size for people."""
    return f"{size_bytes / 2**20:.1f} MiB"


def notes_lines(notes: Iterable[str]) -> list[str]:
    """Returns notes for people."""
    return [f"note: {note}" for note in notes]


def emit(lines: Iterable[str]) -> None:
    """Prints lines."""
    for line in lines:
        print(line)
