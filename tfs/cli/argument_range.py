"""Reads numbers and sizes of command lines, and refuses those that messages have no room for."""

from __future__ import annotations

import argparse
import re
from typing import Final, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What commands add themselves to."""

MAX_VERSION: Final = (1 << 63) - 1
MAX_COUNT: Final = (1 << 32) - 1


def version_number(text: str) -> int:
    """Reads a version, for argparse.

    Raises:
        ArgumentTypeError: It is not a version; says what is.

    """
    return _whole(text, 0, MAX_VERSION, "a version")


def count(text: str) -> int:
    """Reads a number of things, for argparse.

    Raises:
        ArgumentTypeError: It is not such a number; says what is.

    """
    return _whole(text, 1, MAX_COUNT, "a count")


def seconds(text: str) -> float:
    """Reads a duration, for argparse; it may be infinite.

    Raises:
        ArgumentTypeError: It is not a duration; says what is.

    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # also refuses NaN
        raise argparse.ArgumentTypeError(
            f"a duration is a number of seconds, at least 0: {text!r}"
        )
    return value


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


def replicas(text: str) -> tuple[int, int]:
    """Reads "N", or "N-M" for at least N and at most M.

    Raises:
        argparse.ArgumentTypeError: It is something else.

    """
    least, dash, most = text.partition("-")
    return count(least), count(most if dash else least)


def servers(text: str) -> tuple[int, int]:
    """Reads what :func:`replicas` does, and "0-M".

    Raises:
        argparse.ArgumentTypeError: It is something else.

    """
    least, _, most = text.partition("-")
    return (0, count(most)) if least == "0" and most else replicas(text)


_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Reads "500M" or "8G" (powers of 1,024), for argparse.

    Raises:
        ArgumentTypeError: It is no size.

    """
    found = re.fullmatch(r"([0-9]+)([KMGT]?)(?:i?B)?", text.strip())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(
            f"a size is a number with K, M, G or T: {text}"
        )
    return int(found[1]) * _UNITS[found[2]]
