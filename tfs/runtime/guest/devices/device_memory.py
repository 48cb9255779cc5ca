"""Memory of a device that one process fills and other processes of the host map.

    keeper   held = memory.hold(storage)         # copied to the device, once
             handle = held.export()              # once for each process that will open it
    worker   storage = memory.open(handle)       # the same bytes, no copy
    keeper   held.release(handle)                # that process has no use for it any more
             held = None; memory.collect()       # back to the device

This protocol has one implementation for each kind of device: CUDA's memory, and shared
memory of the system, with which everything that needs no GPU is tested.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol, TypeAlias

import torch

Handle: TypeAlias = "list[str | int | bool]"
"""Names held memory to other processes: values that JSON can hold, some hundred bytes.
"""

KINDS: Final = ("cuda", "posix")
"""Kinds of device memory; each has a module of this package, KIND_memory."""


class HeldStorage(Protocol):
    """A storage's bytes on the device. Confined to one thread of the keeper."""

    @property
    def size_bytes(self) -> int:
        """The size in bytes."""
        ...

    def export(self) -> Handle:
        """Returns a handle for one process, to be opened once.

        Raises:
            Exception: This device's memory cannot be shared here.

        """
        ...

    def release(self, handle: Handle) -> None:
        """Takes note that the process that was given ``handle`` does not use it any more.

        It may have said so itself, may have died, or may never have opened it.
        """
        ...


class DeviceMemory(Protocol):
    """The memory of one device. The keeper's and the worker's half.

    Implementors promise:

    1. making one touches no device; the first call of another method may take as long as
       making a context;
    2. ``open`` shares memory: other processes see what one of them writes. While the keeper
       lives, the memory is not reused before the storage is gone;
    3. anything that cannot be done raises and is named; the process stays usable.
    """

    def hold(self, source: torch.UntypedStorage) -> HeldStorage:
        """Copies a storage of the CPU to the device. Blocks until it is there."""
        ...

    def open(self, handle: Handle) -> torch.UntypedStorage:
        """Returns the storage that another process exported."""
        ...

    def collect(self) -> None:
        """Gives memory that nobody holds any more back to the device."""
        ...


def device_memory(kind: str, device: str) -> DeviceMemory:
    """Returns a device's memory.

    Args:
        kind: One of :data:`KINDS`.
        device: The device, as torch names it.

    """
    module = importlib.import_module(f"tfs.runtime.guest.devices.{kind}_memory")
    memory: DeviceMemory = module.make(device)
    return memory
