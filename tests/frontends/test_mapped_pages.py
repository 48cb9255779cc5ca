"""Pages are there before they are written to, and no more than that."""

from __future__ import annotations

import ctypes
import errno
import mmap
from pathlib import Path

import pytest

from tests.frontends.express.wire import prefixed
from tfs.frontends.http2.messages import MessageAssembler
from tfs.frontends.mapped_pages import (
    PORTION_BYTES,
    PageSupply,
    map_pages,
    page_supply,
)

MB = 1 << 20
_PRESENT = 0x80  # in the last byte of a page's entry


def resident_bytes(pages: mmap.mmap) -> int:
    """Returns what the system has provided of the pages."""
    first = ctypes.c_char.from_buffer(pages)
    number = ctypes.addressof(first) // mmap.PAGESIZE
    del first
    num_pages = -(-len(pages) // mmap.PAGESIZE)
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(8 * number)
        entries = pagemap.read(8 * num_pages)
    return sum(map(_PRESENT.__and__, entries[7::8])) // _PRESENT * mmap.PAGESIZE


def test_pages_are_there_before_they_are_written_to() -> None:
    """The pages asked for are there at once, and at most one portion of others."""
    pages = map_pages(8 * MB)
    assert resident_bytes(pages) == 0
    end = page_supply.provide(pages, 0, 5 * MB)
    assert end == 5 * MB + PORTION_BYTES
    if not page_supply.is_possible:
        pytest.skip("this system provides pages one by one only")
    assert resident_bytes(pages) == end
    assert page_supply.provide(pages, end, 8 * MB - 1) == 8 * MB
    assert resident_bytes(pages) == 8 * MB


def test_a_message_takes_the_pages_that_arrived_of_it() -> None:
    """An unfinished message takes little more than has arrived, whatever it claims."""
    assembler = MessageAssembler(64 * MB)
    data = memoryview(prefixed(bytes(60 * MB)))
    assert not list(assembler.feed(data[:16_384]))
    assembler.give_memory()
    for arrived in range(16_384, 5 * MB, 16_384):
        assert not list(assembler.feed(data[arrived : arrived + 16_384]))
        assert assembler._body is not None
        assert isinstance(assembler._body.obj, mmap.mmap)
        resident = resident_bytes(assembler._body.obj)
        assert resident <= arrived + 16_384 + PORTION_BYTES + mmap.PAGESIZE


def test_a_system_that_refuses_is_not_asked_again() -> None:
    """A kernel that does not know the request is asked once, and pages still come."""

    class Refusing(mmap.mmap):
        num_asked = 0

        def madvise(self, *args: int) -> None:
            self.num_asked += 1
            raise OSError(errno.EINVAL, "no such advice")

    supply = PageSupply()
    pages = Refusing(-1, MB)
    end = supply.provide(pages, 0, 4096)
    assert supply.provide(pages, end, MB) == MB
    assert pages.num_asked == 1
    assert not supply.is_possible
