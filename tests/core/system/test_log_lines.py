"""The form of log lines."""

from __future__ import annotations

import logging

import pytest

from tfs.core.errors import Internal
from tfs.core.system.log_lines import LineFormatter


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
