"""Files held in memory once for every interpreter that maps them. Does not use torch.

The bytes are in a memfd that is sealed against writing, shrinking and growing. So
overwriting or truncating the file on disk changes nothing, a new interpreter needs no
disk, and the memory is freed with the last mapping and descriptor. Every mapping is
private: a model that writes to its weights gets copies of the pages that it touched, in
its own interpreter, and no other one notices. Mapping the file itself would save the copy.
It was rejected because truncating a mapped file kills its readers with SIGBUS.

What AOTInductor compiled is a shared library in the archive. torch would unpack it into a
temporary folder, which may be full, missing or mounted without the right to execute, and
where it stays if the process is killed. Here it is unpacked into memory, once for all
interpreters of a version.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import platform
import shutil
import weakref
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.tensor_view import Buffer
from tfs.core.version.version_layout import LAYOUTS, PROGRAM
from tfs.core.version_directory import read_failure
from tfs.runtime.guest.model_source import ModelSource

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


MACHINE_CODE: Final = "model.so"
"""The unpacked library's name among the files of a version."""

_FOLDER: Final = "/data/aotinductor/model/"
_FLAG_OF: Final = {"avx512": "avx512f", "neon": "asimd", "sve": "sve"}
_numbers: Final = itertools.count()


def is_compiled(path: str) -> bool:
    """Whether an archive holds machine code."""
    with zipfile.ZipFile(path) as archive:
        return any("data/aotinductor/" in name for name in archive.namelist())


def unpacked(files: Mapping[str, SealedFile]) -> dict[str, SealedFile]:
    """Returns the library of a version's archive, under its name; nothing if it has none.

    Blocks.

    Raises:
        OSError: There is no memory for it.

    """
    file = files.get(PROGRAM)
    if file is None:
        return {}
    try:
        with zipfile.ZipFile(file.path) as archive:
            names = [
                name
                for name in archive.namelist()
                if _FOLDER in name and name.endswith(".so")
            ]
            if len(names) != 1:
                return {}
            fd = new_memfd(MACHINE_CODE)
            try:
                with (
                    archive.open(names[0]) as packed,
                    open(fd, "wb", closefd=False) as target,
                ):
                    shutil.copyfileobj(packed, target, 1 << 20)
                return {MACHINE_CODE: SealedFile.seal(fd)}
            except BaseException:
                os.close(fd)
                raise
    except zipfile.BadZipFile:
        return {}  # loading it says so


def library_path(file: SealedFile) -> str:
    """Returns a path to load a library from, which no other load has had.

    glibc takes a library for one that is loaded already if their paths are alike, and the
    numbers of descriptors are used again.
    """
    folder, fd = os.path.split(file.path)
    digits = f"{next(_numbers):b}"
    return f"{folder}/{digits.replace('0', './').replace('1', '/')}{fd}"


def check_processor(path: str, who: str, cpu_info: str = "/proc/cpuinfo") -> None:
    """Checks that this processor has what an archive's code was compiled for.

    Raises:
        FailedPrecondition: It has not; running the code would end the process.

    """
    with zipfile.ZipFile(path) as archive:
        texts = [
            archive.read(name)
            for name in archive.namelist()
            if _FOLDER in name and name.endswith(".wrapper_metadata.json")
        ]
    wanted = json.loads(texts[0]) if texts else {}
    machine, sets = wanted.get("AOTI_MACHINE"), str(wanted.get("AOTI_CPU_ISA") or "")
    try:
        flags = set(Path(cpu_info).read_text().lower().split())
    except OSError:
        flags = set()
    names = sets.lower().split()
    lacking = [
        each for each in names if flags and _FLAG_OF.get(each, each) not in flags
    ]
    if machine not in (None, platform.machine()) or lacking:
        raise FailedPrecondition(
            f"{who} was compiled for another processor ({machine} with {sets}), which "
            "this one is not; compile it on a processor of this kind, or save it with "
            'platform="torch_export"'
        )


class VersionFiles:
    """A version's payload in memory, shared by all interpreters. Thread-safe."""

    def __init__(self, files: Mapping[str, SealedFile]) -> None:
        self.files = dict(files)

    @classmethod
    def stage(cls, source: ModelSource) -> VersionFiles:
        """Reads the payload from the version directory into memory. Blocks.

        Raises:
            ServingError: A file is missing or cannot be read; nothing is left.

        """
        staged = cls({})
        try:
            for name, path in payload_paths(source).items():
                staged.files[name] = SealedFile.copy_of(path)
            staged.files.update(unpacked(staged.files))
        except OSError as error:
            staged.close()
            raise unreadable(source, error) from error
        return staged

    @classmethod
    def adopt(cls, fds: Mapping[str, int]) -> VersionFiles:
        """Takes over the descriptors of files that are in memory already, by name."""
        return cls({name: SealedFile.adopt(fd) for name, fd in fds.items()})

    def __getitem__(self, name: str) -> SealedFile:
        return self.files[name]

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors, in the order of ``files``."""
        return tuple(file.fd for file in self.files.values())

    def duplicate(self) -> VersionFiles:
        """Returns the same bytes with descriptors of their own."""
        return VersionFiles(
            {name: file.duplicate() for name, file in self.files.items()}
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload in memory."""
        return sum(file.size_bytes for file in self.files.values())

    def close(self) -> None:
        """Gives up the descriptors; mappings stay. Idempotent."""
        for file in self.files.values():
            file.close()


def payload_paths(source: ModelSource) -> dict[str, str]:
    """Returns the paths of the payload files the version has, by name.

    Raises:
        FailedPrecondition: It has none of those its platform needs.

    """
    layout = LAYOUTS[source.platform]
    names = (*layout.files, *layout.weights)
    paths = {name: os.path.join(source.path, name) for name in names}
    there = {name: path for name, path in paths.items() if os.path.exists(path)}
    if not there:
        raise FailedPrecondition(
            f"{source.id.slashed}: a {source.platform} version needs "
            f"{' or '.join(names)}"
        )
    return there


def unreadable(source: ModelSource, error: OSError) -> ServingError:
    """Returns the error for a payload that cannot be read into memory."""
    return read_failure(error, f"{source.id.slashed}: cannot read its payload")
