"""Lines whose reader is slow, stops reading, or is gone."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from tests.full_pipe import fill
from tfs.core.system.log_lines import PATIENCE_S, LineOutput


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
