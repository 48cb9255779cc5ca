"""How commands print: tables, times and sizes for people, JSON for scripts.

In a terminal, tables are drawn by ``rich`` and fit its width. Elsewhere each row is one
line, whole and without colours, for programs that read it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Returns left-aligned columns, two blanks apart; as wide as a terminal in one.

    The first column, which is a name, and the last one are never cut. Control
    characters, which texts of models may contain, are not passed on to the terminal.
    """
    cells = [[_printable(str(each)) for each in row] for row in rows]
    if sys.stdout.isatty():
        return _drawn(heads, cells)
    cells = [
        list(heads),
        *([row[0], *map(_cut, row[1:-1]), *row[1:][-1:]] for row in cells),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def _drawn(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table as a terminal shows it: long cells go on in the next line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, head in enumerate(heads):
        drawn.add_column(head, overflow="fold", no_wrap=index == 0)
    for row in rows:
        drawn.add_row(*map(Text, row))  # as text: brackets of a message are no markup
    console = Console()
    with console.capture() as capture:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how far a command is on a terminal's stderr; yields what says so.

    Args:
        what: What is done.
        total: When it is done, in the same units; None if that is not known.

    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)


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


def notes_lines(notes: Iterable[str]) -> list[str]:
    """Returns notes for people."""
    return [f"note: {note}" for note in notes]


def emit(lines: Iterable[str]) -> None:
    """Prints lines."""
    for line in lines:
        print(line)
