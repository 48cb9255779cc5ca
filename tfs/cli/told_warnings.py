"""What is logged of a command's work as a warning, told as sentences to who typed it.

The log's own form, ``event=what_happened key=value ...``, is for whoever searches logs.
A script that exports by itself decides about its log as it likes.
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
    """Prints warnings of ours to standard error, behind the name of the command."""
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
    """Writes a record as a sentence."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def formatMessage(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        return f"{self._command}: {level}: {sentence(record.getMessage())}"


def sentence(message: str) -> str:
    """Returns what a line of the log says, without its form.

    Only the fields that it begins with are fields: what follows is text already.
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
