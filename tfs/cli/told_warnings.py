"""Prints logged warnings as sentences, for the person who typed a command.

The form of the log, ``event=what_happened key=value ...``, suits programs that search
logs. Only commands print such sentences: a script that uses the library decides about
its own log.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from typing import Final

_EVENT: Final = re.compile(r"event=(\w+) ?")
_FIELD: Final = re.compile(r"(\w+)=(\S+) ?")


@contextlib.contextmanager
def told_warnings(command: str) -> Iterator[None]:
    """Prints our warnings to standard error, after the command's name, in a block."""
    ours = logging.getLogger("tfs")
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Sentence(command))
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)


class _Sentence(logging.Formatter):
    """Formats a log record as a sentence."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def formatMessage(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        return f"{self._command}: {level}: {sentence(record.getMessage())}"


def sentence(message: str) -> str:
    """Returns a line of the log in words: without ``event=`` and the equals signs.

    ``key=value`` is taken apart only at the beginning; the text that follows stays as
    it is.
    """
    event = _EVENT.match(message)
    if event is None:
        return message
    words, rest = [], message[event.end() :]
    while (field := _FIELD.match(rest)) is not None:
        words += [field[1], field[2]]
        rest = rest[field.end() :]
    told = " ".join([*words, rest]).strip()
    what = event[1].replace("_", " ")
    return f"{what}: {told}" if told else what
