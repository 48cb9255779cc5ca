"""One flag of ``tfs serve``: its name, how its value is read, and what it may be.

:mod:`tfs.server.options` declares each with the field that it sets.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from tfs.core.errors import InvalidArgument

T = TypeVar("T")

WHOLE_NUMBER: Final = "expected a whole number"
NUMBER: Final = "expected a number"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with a meaning. Immutable.

    Attributes:
        name: Without dashes.
        field: The option that it sets.
        read: Turns the text into the option's value; ValueError refuses it.
        help: One line for people.
        least: Least value of a number.
        most: Largest value of a number.
        is_above_0: Whether a number must be positive.
        is_absolute: Whether a path must be absolute, where there is one.

    """

    name: str
    field: str
    read: Callable[[str], object]
    help: str
    least: float | None = None
    most: float = math.inf
    is_above_0: bool = False
    is_absolute: bool = False

    def check(self, value: object) -> None:
        """Checks a value of the option.

        Raises:
            InvalidArgument: It is out of range; names the flag.

        """
        allowed = ""
        if self.is_absolute and value and not str(value).startswith("/"):
            allowed = "absolute"
        elif self.is_above_0 and not cast("float", value) > 0:  # not a number, too
            allowed = "positive"
        elif self.least is not None and not (
            self.least <= cast("float", value) <= self.most
        ):
            allowed = (
                f"at least {self.least}"
                if self.most == math.inf
                else f"in {self.least}..{self.most}"
            )
        if allowed:
            raise InvalidArgument(f"--{self.name} must be {allowed}: {value}")


def flag(
    default: T,
    help: str,  # noqa: A002  # as argparse calls it
    *,
    name: str = "",
    read: Callable[[str], object] | None = None,
    least: float | None = None,
    most: float = math.inf,
    is_above_0: bool = False,
    is_absolute: bool = False,
) -> T:
    """Declares an option of a dataclass together with its flag.

    Args:
        default: The option's default.
        help: One line for people.
        name: The flag's name; "" is the field's.
        read: Reads its value; None reads the type of ``default``.
        least: See :class:`Flag`.
        most: See :class:`Flag`.
        is_above_0: See :class:`Flag`.
        is_absolute: See :class:`Flag`.

    """
    kind: Callable[[str], object] = (
        read_bool if isinstance(default, bool) else type(default)
    )
    made = Flag(name, "", read or kind, help, least, most, is_above_0, is_absolute)
    declared: T = field(default=default, metadata={"flag": made})
    return declared


def read_bool(text: str) -> bool:
    """Reads a boolean as TensorFlow Serving's flags do; ValueError refuses it."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError(f"expected true or false, got {text!r}")


def read_number(text: str) -> float:
    """Reads a number; ValueError refuses anything else."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(NUMBER) from None


def read_at_least_0(text: str) -> int:
    """Reads a whole number; a negative one counts as 0, as it does upstream."""
    try:
        return max(0, int(text))
    except ValueError:
        raise ValueError(WHOLE_NUMBER) from None


def read_micros(text: str) -> float:
    """Reads microseconds as seconds."""
    return read_at_least_0(text) / 1e6


def read_milliseconds(text: str) -> float:
    """Reads milliseconds as seconds."""
    return read_at_least_0(text) / 1e3


def read_poll_wait(text: str) -> float:
    """Reads how often a config file is looked at.

    To TensorFlow Serving 0 and less mean "do not poll". An edit of the file would then have
    no effect without anybody being told, so the default period stays.
    """
    period_s = read_number(text)
    return 1.0 if period_s <= 0 else period_s


def read_poll_period(text: str) -> float:
    """Reads how often base paths are listed; less than 0 counts as 0."""
    period_s = read_number(text)
    return 0.0 if period_s < 0 else period_s


def read_socket_path(text: str) -> str:
    """Reads the path of a socket, relative to the working directory."""
    return os.path.abspath(text) if text else ""


def problem_of(read: Callable[[str], object], error: ValueError) -> str:
    """Returns what is wrong with a value that ``read`` refused, and what would be good."""
    if read is int:
        return WHOLE_NUMBER
    if read is float:
        return NUMBER
    if isinstance(read, enum.EnumType):
        choices: list[enum.Enum] = list(read)
        return f"expected one of {', '.join(str(each.value) for each in choices)}"
    return str(error)
