"""A flag of a command of a fleet, as one row: its name and value, what it is for, its default."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def flag(
    parser: argparse._ActionsContainer,
    usage: str,
    what: str,
    default: object = "",
    read: Callable[[str], object] = str,
) -> None:
    """Adds "--name VALUE"; its help tells a default that is not empty, if ``what`` does not."""
    name, metavar = usage.split(" ", 1)
    if default and "(default" not in what:
        what += f" (default {default})"
    parser.add_argument(
        name, type=read, default=default, metavar=metavar, help=what or None
    )
