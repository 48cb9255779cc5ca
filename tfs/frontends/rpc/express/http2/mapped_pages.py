"""Memory in pages of its own, requested from the system in portions.

Pages take no memory before they are written to, and grow without copies. They go back
to the system when nothing refers to them any more. But if the system provides pages one
by one, as they are written to, that costs three times as much: 4.5 ms for 10 MB, not
1.6.

Rejected: huge pages, which take a third of that time. But the system may search for one
for milliseconds, and provides 2 MB for the first byte that is written.
"""

from __future__ import annotations

import errno
import mmap
from typing import Final

PORTION_BYTES: Final = 262_144
"""Bytes that are worth a system call."""

_LARGEST_AHEAD: Final = 4  # of what there is, a share
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; our Python has no name for it


def map_pages(size_bytes: int) -> mmap.mmap:
    """Returns memory that takes as much as was written to, and goes with its views."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class PageSupply:
    """Asks for pages before they are written to. Thread-safe.

    Attributes:
        is_possible: Whether the system knows how; it is not asked again once it
            refused.

    """

    def __init__(self) -> None:
        self.is_possible = True

    def provide(self, pages: mmap.mmap, start: int, stop: int) -> int:
        """Asks for what is to be written to now, and a little more.

        That is a portion at most, and no more than a quarter of what is before it.

        Args:
            pages: From :func:`map_pages`.
            start: What is before that was provided, or written to.
            stop: What is before that is to be written to.

        Returns:
            What to write to before asking again.

        """
        size_bytes = len(pages)
        ahead_bytes = min(PORTION_BYTES, stop // _LARGEST_AHEAD)
        end = min(stop + ahead_bytes, size_bytes)
        end = min(end + -end % mmap.PAGESIZE, size_bytes)
        start -= start % mmap.PAGESIZE
        if self.is_possible:
            try:
                pages.madvise(_MADV_POPULATE_WRITE, start, end - start)
            except OSError as error:
                # Without it they come one by one.
                self.is_possible = error.errno != errno.EINVAL
        return end


page_supply: Final = PageSupply()
"""The system's."""
