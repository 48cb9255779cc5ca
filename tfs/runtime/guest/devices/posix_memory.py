"""Shared memory of the system in the place of a device's: CUDA's IPC without a GPU.

It is for tests of everything between a model and the device, not for serving. Weights
on the CPU are shared by mapping their sealed file, where a model that writes changes
only its own pages. Here, as on a device, it changes them for all.
"""

from __future__ import annotations

import mmap
import os

import torch

from tfs.runtime.guest.devices.device_memory import DeviceMemory, Handle


def make(device: str) -> DeviceMemory:
    """Returns the memory of "cpu"; see :func:`device_memory`."""
    if device != "cpu":
        raise ValueError(f"system memory is no memory of {device}")
    return PosixMemory()


class PosixMemory:
    """Implements :class:`~tfs.runtime.guest.devices.device_memory.DeviceMemory`."""

    def hold(self, source: torch.UntypedStorage) -> PosixStorage:
        """Copies a storage into a memfd."""
        fd = os.memfd_create("tfs:held", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, source.nbytes())
            _map(fd, source.nbytes()).copy_(source)
        except BaseException:
            os.close(fd)
            raise
        return PosixStorage(fd, source.nbytes())

    def open(self, handle: Handle) -> torch.UntypedStorage:
        """Maps the memfd of the process that exported it."""
        pid, number, size_bytes = map(int, handle)
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return _map(fd, size_bytes)
        finally:
            os.close(fd)

    def collect(self) -> None:
        """Does nothing, because memory that nobody holds has gone back already."""


class PosixStorage:
    """Implements :class:`~tfs.runtime.guest.devices.device_memory.HeldStorage` in a memfd."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._fd = fd
        self._size_bytes = size_bytes

    def __del__(self) -> None:
        os.close(self._fd)

    @property
    def size_bytes(self) -> int:
        """The size in bytes."""
        return self._size_bytes

    def export(self) -> Handle:
        """Returns the place where other processes find the memfd while this one has it."""
        return [os.getpid(), self._fd, self._size_bytes]

    def release(self, handle: Handle) -> None:
        """Does nothing: the system counts the processes that map it."""


def _map(fd: int, size_bytes: int) -> torch.UntypedStorage:
    mapping = mmap.mmap(fd, size_bytes)
    return torch.frombuffer(mapping, dtype=torch.uint8).untyped_storage()
