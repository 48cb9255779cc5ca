"""Lines on stdout and stderr in all programs of TFS: how they are written, and their form.

The reader may be slow, stop reading, or be gone. A pipe that nobody reads, or a terminal
after Ctrl-S, takes nothing once it is full. Whoever waited for it would stop with it: the
serving loop, and the main thread, which has to hear SIGTERM. A thread of its own for
writing would lose the last lines of a crash.

Each line of a log has its time and its level, also those from processes that run models. What
follows is ``event=what_happened key=value ...``, and a value with blanks is in quotes, so
that a line can be taken apart. The values are quoted here and not where they are logged:
most are messages of errors, which may have blanks or not.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import select
import sys
from collections.abc import Callable
from typing import Final, TextIO

PATIENCE_S: Final = 1.0
"""How long a line waits for a reader that took the one before it."""

# A pipe that has room at all takes so much without blocking (PIPE_BUF).
_CHUNK_BYTES: Final = 4096


def is_writable(fd: int, patience_s: float) -> bool:
    """Waits until a file takes more, or fails; returns whether that came in time."""
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    return bool(waiting.poll(patience_s * 1000))


class LineOutput:
    """Writes whole lines to a stream; never raises, and never blocks for long.

    A line that cannot be written is lost. Those after it do not wait, until one can be
    written again; then it is said how many were lost. Thread-safe, because whatever
    two threads make of the count does no harm.

    Args:
        stream: Where to write, past its buffers: what they could not get rid of would
            change the exit code when Python ends. None, if the parent closed it, takes
            nothing.
        wait: Waits for room.

    """

    def __init__(
        self, stream: TextIO | None, wait: Callable[[int, float], bool] = is_writable
    ) -> None:
        self._stream = stream
        self._wait = wait
        self._num_lost = 0

    def write(self, line: str) -> None:
        """Writes a line, to which the line feed is added."""
        if self._stream is None:
            return
        patience_s = 0.0 if self._num_lost else PATIENCE_S
        text = f"{line}\n"
        if self._num_lost:
            text = f"tfs: {self._num_lost} lines before this one were lost\n{text}"
        try:
            fd = self._stream.fileno()
        except (OSError, ValueError):  # closed, or a double that is no file
            fd = -1
        try:
            if fd >= 0:
                self._write(fd, text.encode(errors="surrogateescape"), patience_s)
            else:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):
            self._num_lost += 1
        else:
            self._num_lost = 0

    def _write(self, fd: int, data: bytes, patience_s: float) -> None:
        while data:
            if not self._wait(fd, patience_s):
                raise TimeoutError
            data = data[os.write(fd, data[:_CHUNK_BYTES]) :]


LOG_FORMAT: Final = "%(asctime)s %(levelname).1s %(name)s %(message)s"

# A place for an argument, and whether it is all of a key's value.
_PLACE: Final = re.compile(r"(?P<key>(?<==))?%(?:%|[-+ #0]*\d*(?:\.\d+)?(?P<kind>\w))")
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NOT_ONE_WORD: Final = re.compile(r"[\s'\"]")


class LineFormatter(logging.Formatter):
    """Formats records for people and programs that search logs. Thread-safe."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, with quotes around values that are not one word."""
        message, args = record.msg, record.args
        if (
            isinstance(message, str)
            and message.startswith("event=")
            and isinstance(args, tuple)
        ):
            record = copy.copy(record)  # which other handlers get too
            record.args = _quoted(message, args)
        return super().format(record)


def _quoted(message: str, args: tuple[object, ...]) -> tuple[object, ...]:
    places = [each for each in _PLACE.finditer(message) if each["kind"]]
    if len(places) != len(args):
        return args  # whoever formats them raises
    return tuple(
        _one_word(arg) if place["kind"] == "s" and place["key"] is not None else arg
        for place, arg in zip(places, args, strict=True)
    )


def _one_word(value: object) -> object:
    text = str(value)
    return repr(text) if not text or _NOT_ONE_WORD.search(text) else value


class _LineHandler(logging.Handler):
    def __init__(self, output: LineOutput) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
        else:
            self._output.write(line)


def log_to_stderr(level: str) -> None:
    """Has all loggers of a program write such lines to stderr, from that level on."""
    handler = _LineHandler(LineOutput(sys.stderr))
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def fits_a_line(text: str) -> bool:
    """Whether a text has neither line feeds nor other control characters.

    A name that does not fit would break the lines of logs, tables and pages in two, or
    write others.
    """
    return not _BREAKS.search(text)


def write_own_lines() -> None:
    """Writes the log of ``tfs`` to stderr, and leaves all other loggers to the model.

    The root logger is left alone: a model that sets up logging finds it as it would in
    a program of its own. Once per process.
    """
    ours = logging.getLogger("tfs")
    handler = _LineHandler(LineOutput(sys.stderr))
    handler.setFormatter(LineFormatter())
    ours.addHandler(handler)
    ours.propagate = False
