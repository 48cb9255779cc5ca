"""The form of log lines."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from tests.full_pipe import fill
from tfs.core.errors import Internal
from tfs.core.system.log_lines import PATIENCE_S, LineFormatter, LineOutput


def line(message: str, *args: object) -> str:
    record = logging.LogRecord("tfs.x", logging.WARNING, "", 0, message, args, None)
    return LineFormatter().format(record).partition(" tfs.x ")[2]


@pytest.mark.parametrize(
    ("message", "args", "expected"),
    [
        ("event=a servable=%s num=%d", ("m/1", 3), "event=a servable=m/1 num=3"),
        (
            "event=a error=%s num=%d",
            (Internal("it broke"), 3),
            "event=a error='INTERNAL: it broke' num=3",
        ),
        (
            "event=a why=%s",
            ("first\nsecond line",),
            r"event=a why='first\nsecond line'",
        ),
        ("event=a why=%s", ("it's so",), 'event=a why="it\'s so"'),
        ("event=a why=%s", ("",), "event=a why=''"),
        ("event=a why=%r", ("two words",), "event=a why='two words'"),
        ("event=a_%s share=%.1f%%", ("b", 5.0), "event=a_b share=5.0%"),
        ("event=a still_in:\n%s", ("  a\n  b",), "event=a still_in:\n  a\n  b"),
        ("event=a num=%5d why=%s", (7, "x y"), "event=a num=    7 why='x y'"),
        ("event=a", (), "event=a"),
        ("the words of a library: %s", ("x y",), "the words of a library: x y"),
    ],
)
def test_a_value_is_one_word_of_the_line(
    message: str, args: tuple[object, ...], expected: str
) -> None:
    """Who searches the log takes a line apart at its blanks; no value brings a line."""
    assert line(message, *args) == expected


def test_a_record_stays_as_it_was() -> None:
    """Other handlers of the same record format it in their own way."""
    record = logging.LogRecord("x", 20, "", 0, "event=a why=%s", ("x y",), None)
    LineFormatter().format(record)
    assert record.getMessage() == "event=a why=x y"


def test_arguments_that_do_not_fit_are_the_librarys_fault_to_tell() -> None:
    """logging reports them where it calls the formatter; nothing is hidden."""
    with pytest.raises(TypeError):
        line("event=a why=%s %s", "x y")


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A reader, and what writes to it."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(reader, "rb", buffering=0) as read, open(writer, "w") as written:
        yield read.fileno(), written


def test_a_line_is_written_as_it_is(pipe: tuple[int, TextIO]) -> None:
    """A path may have any bytes, and a stack be longer than a pipe takes at once."""
    reader, written = pipe
    LineOutput(written).write("/models/\udcff " + "y" * 10_000)
    assert os.read(reader, 1 << 16) == b"/models/\xff " + b"y" * 10_000 + b"\n"


def test_only_the_first_line_waits_for_a_reader_that_stopped(
    pipe: tuple[int, TextIO],
) -> None:
    """Else each line of a server with many models would; how many were lost is said."""
    reader, written = pipe
    fill(written.fileno())
    waited: list[float] = []
    has_room = False

    def wait(fd: int, patience_s: float) -> bool:
        waited.append(patience_s)
        return has_room

    output = LineOutput(written, wait)
    for line in ("a", "b", "c"):
        output.write(line)
    assert waited == [PATIENCE_S, 0, 0]
    os.read(reader, 1 << 20)
    has_room = True
    output.write("d")
    output.write("e")
    assert os.read(reader, 99) == b"tfs: 3 lines before this one were lost\nd\ne\n"


def test_a_full_disk_raises_nothing_and_leaves_nothing_behind() -> None:
    """What Python found in a buffer at its end would change the exit code."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        LineOutput(full).write("tfs: stopped")


def test_a_reader_that_has_gone_raises_nothing() -> None:
    """The program at the other end of a pipe may end before the server."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as written:
        LineOutput(written).write("tfs: stopped")


def test_no_stream_and_a_closed_one_raise_nothing() -> None:
    """Python has none if the parent has closed it."""
    LineOutput(None).write("tfs: stopped")
    closed = io.StringIO()
    closed.close()
    LineOutput(closed).write("tfs: stopped")
