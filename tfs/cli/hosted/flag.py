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
    """Adds "--name VALUE", or "--name", which is true or false.

    Its help tells a default that is not empty, if ``what`` does not.
    """
    name, _, metavar = usage.partition(" ")
    if not metavar:
        parser.add_argument(name, action="store_true", help=what)
        return
    if default and "(default" not in what:
        what += f" (default {default})"
    parser.add_argument(
        name, type=read, default=default, metavar=metavar, help=what or None
    )
