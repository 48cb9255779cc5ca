"""Reads sizes of memory as people write them."""

from __future__ import annotations

import argparse
import re
from typing import Final

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
