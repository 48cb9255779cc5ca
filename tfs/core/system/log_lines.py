"""The form of log lines in all programs of TFS.

Each line has its time and its level, also those from processes that run models. What
follows is ``event=what_happened key=value ...``, and a value with blanks is in quotes, so
that a line can be taken apart. The values are quoted here and not where they are logged:
most are messages of errors, which may have blanks or not.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
from typing import Final

from tfs.core.system.line_output import LineOutput

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
