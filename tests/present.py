"""What a test takes to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Returns a value; fails the test if there is none."""
    assert value is not None
    return value
