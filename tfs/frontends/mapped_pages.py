"""Memory in pages of its own, requested from the system in portions.

Pages take no memory before they are written to, and grow without copies. They go back
to the system when nothing refers to them any more. But pages that the system provides
one by one, as they are written to, cost more: filling 10 MB takes 5.1 ms, and 4.1 if
they are requested in portions (AMD EPYC, Linux 6.18; on another machine 4.5 and 1.6).

Rejected: huge pages. They take 0.6 ms, but the system may search for one for
milliseconds, and provides 2 MB for the first byte that is written.
"""

from __future__ import annotations

import errno
import mmap
from typing import Final

PORTION_BYTES: Final = 262_144
"""How many bytes the system is asked for at a time, at most."""

_LARGEST_AHEAD: Final = 4  # at most this fraction (1/4) of what was provided before
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; our Python has no name for it


def map_pages(size_bytes: int) -> mmap.mmap:
    """Returns memory that grows as it is written, and is freed with its last view."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class PageSupply:
    """Asks for pages before they are written to. Thread-safe.

    Attributes:
        is_possible: Whether the system can do this; once it has refused, it is not
            asked again.

    """

    def __init__(self) -> None:
        self.is_possible = True

    def provide(self, pages: mmap.mmap, start: int, stop: int) -> int:
        """Asks for the pages that are to be written to now, and for a few more.

        The additional pages are a portion at most, and no more than a quarter of what
        is before them. There are none before a portion is full: crowds of clients send
        no more than that of a message.

        Args:
            pages: From :func:`map_pages`.
            start: Offset up to which pages were provided, or written to.
            stop: Offset up to which pages are to be written to.

        Returns:
            The offset up to which the caller may write before it asks again.

        """
        size_bytes = len(pages)
        ahead_bytes = 0
        if stop >= PORTION_BYTES:
            ahead_bytes = min(PORTION_BYTES, stop // _LARGEST_AHEAD)
        end = min(stop + ahead_bytes, size_bytes)
        end = min(end + -end % mmap.PAGESIZE, size_bytes)
        start -= start % mmap.PAGESIZE
        if self.is_possible:
            try:
                pages.madvise(_MADV_POPULATE_WRITE, start, end - start)
            except OSError as error:
                # Without this the pages come one by one.
                self.is_possible = error.errno != errno.EINVAL
        return end


page_supply: Final = PageSupply()
"""Shared by all connections."""
