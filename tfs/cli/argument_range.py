"""Numbers of command lines that messages have room for; others are a wrong command line."""

from __future__ import annotations

import argparse
from typing import Final

MAX_VERSION: Final = (1 << 63) - 1
MAX_COUNT: Final = (1 << 32) - 1


def version_number(text: str) -> int:
    """Reads a version, for argparse.

    Raises:
        ArgumentTypeError: It is none; says what is.

    """
    return _whole(text, 0, MAX_VERSION, "a version")


def count(text: str) -> int:
    """Reads how many there are to be of something, for argparse.

    Raises:
        ArgumentTypeError: It is no such number; says what is.

    """
    return _whole(text, 1, MAX_COUNT, "a count")


def _whole(text: str, least: int, most: int, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(
            f"{what} is a whole number from {least} to {most}: {text!r}"
        )
    return value
