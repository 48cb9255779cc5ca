"""A file's bytes, held in memory once for every interpreter that maps them.

The bytes are in a memfd that is sealed against writing, shrinking and growing. So
overwriting or truncating the file on disk changes nothing, a new interpreter needs no
disk, and the memory is freed with the last mapping and descriptor. Every mapping is
private: a model that writes to its weights gets copies of the pages that it touched, in
its own interpreter, and no other one notices.

Mapping the file itself would save the copy. It was rejected because truncating a mapped
file kills its readers with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

from tfs.core.tensor_view import Buffer

ADD_SEALS = 1033  # fcntl.FADD_SEALS; absent from the module before Python 3.13
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # SEAL, SHRINK, GROW, WRITE
_COPY_BYTES = 8 << 20
_CALL_BYTES = 1 << 30


class SealedFile:
    """Bytes in a sealed memfd. Thread-safe; owns its descriptor."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes

    @classmethod
    def copy_of(cls, path: str) -> SealedFile:
        """Copies a file into memory; blocks while it is read.

        Raises:
            OSError: It cannot be read, or memory ran out; nothing is left.

        """
        source_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fd = new_memfd(os.path.basename(path))
            try:
                copy(source_fd, fd)
                return cls.seal(fd)
            except BaseException:
                os.close(fd)
                raise
        finally:
            os.close(source_fd)

    @classmethod
    def seal(cls, fd: int) -> SealedFile:
        """Seals a memfd that was filled, and takes it over.

        Raises:
            OSError: Somebody still maps it for writing.

        """
        fcntl.fcntl(fd, ADD_SEALS, _SEALS)
        return cls.adopt(fd)

    @classmethod
    def adopt(cls, fd: int) -> SealedFile:
        """Takes over the descriptor of a memfd that whoever filled it has sealed."""
        return cls(fd, os.fstat(fd).st_size)

    @property
    def path(self) -> str:
        """A path under which this process can open the bytes until ``close``."""
        return f"/proc/self/fd/{self.fd}"

    def map(self, on_map: Callable[[int], None] | None = None) -> mmap.mmap:
        """Maps the bytes privately, writable; they are unmapped with the last view.

        The mapping outlives ``close``.

        Args:
            on_map: Told how many bytes are about to be mapped, and, negative, that they
                no longer are.

        Raises:
            OSError: There is no room for them.

        """
        size_bytes = self.size_bytes
        if on_map is not None:
            on_map(size_bytes)
        try:
            mapping = mmap.mmap(
                self.fd,
                size_bytes,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except BaseException:
            if on_map is not None:
                on_map(-size_bytes)
            raise
        if on_map is not None:
            weakref.finalize(mapping, on_map, -size_bytes)
        return mapping

    def duplicate(self) -> SealedFile:
        """Returns the same bytes with a descriptor of its own."""
        return SealedFile(os.dup(self.fd), self.size_bytes)

    def close(self) -> None:
        """Gives up the descriptor; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def new_memfd(name: str) -> int:
    """Returns an empty memfd that can be sealed; ``name`` shows in /proc."""
    return os.memfd_create(f"tfs:{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def write_at(fd: int, data: Buffer, offset: int) -> None:
    """Writes all of a buffer into a file, of which one system call takes 2 GB at most."""
    rest = memoryview(data).cast("B")
    while rest:
        written = os.pwrite(fd, rest[:_CALL_BYTES], offset)
        offset += written
        rest = rest[written:]


def read_at(fd: int, size_bytes: int, offset: int) -> bytes:
    """Returns so many bytes of a file; fewer if it ends before."""
    parts = []
    while size_bytes and (part := os.pread(fd, size_bytes, offset)):
        parts.append(part)
        offset += len(part)
        size_bytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def copy(source_fd: int, target_fd: int) -> None:
    """Appends a file's bytes to a memfd, inside the kernel."""
    while os.sendfile(target_fd, source_fd, None, _COPY_BYTES):
        pass
