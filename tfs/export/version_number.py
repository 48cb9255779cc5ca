"""Which number the next version under a base path gets."""

from __future__ import annotations

import os


def next_version(base_path: str) -> int:
    """Returns one more than the highest numbered entry of ``base_path``, at least 1."""
    try:
        names = os.listdir(base_path)
    except FileNotFoundError:
        return 1
    return max((int(n) for n in names if n.isascii() and n.isdigit()), default=0) + 1
