"""Memory of a CUDA device, shared by torch's CUDA IPC.

As ``torch.multiprocessing`` does it (torch/multiprocessing/reductions.py and
torch/csrc/StorageSharing.cpp): an export names the allocation by its IPC handle, the
place in it, an event after which the bytes are there, and a counter of its own in
shared memory, which the importer takes down when it drops the storage. An exporter that
drops a storage whose counter is up keeps its memory, "in limbo".

An importer that is killed leaves its counter up for good. That is the usual end of a
worker, so the keeper takes it down itself when the worker is gone (``release``); taken
down twice is the same as once, since torch asks whether it is above zero and never uses
a counter again.
"""

from __future__ import annotations

import torch

from tfs.runtime.guest.devices.device_memory import DeviceMemory, Handle


def make(device: str) -> DeviceMemory:
    """Returns the memory of "cuda" or "cuda:i"; see :func:`device_memory`."""
    return CudaMemory(torch.device(device))


class CudaMemory:
    """One device's. See :class:`~tfs.runtime.guest.devices.device_memory.DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def hold(self, source: torch.UntypedStorage) -> CudaStorage:
        """Copies a storage to the device. Blocks until it is there."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return CudaStorage(source.to(device=self._device))

    def open(self, handle: Handle) -> torch.UntypedStorage:
        """Returns the storage that another process exported; opened once per handle."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        device, memory, size_bytes, offset, counter, place, event, waits = handle
        return torch.UntypedStorage._new_shared_cuda(
            device,
            bytes.fromhex(str(memory)),
            size_bytes,
            offset,
            bytes.fromhex(str(counter)),
            place,
            bytes.fromhex(str(event)),
            waits,
        )

    def collect(self) -> None:
        """Gives memory that nobody holds any more back to the device."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


class CudaStorage:
    """Held on the device. See :class:`~tfs.runtime.guest.devices.device_memory.HeldStorage`."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        # Each export wraps the storage's memory once more, takes an event and a counter,
        # and keeps them until the storage is gone. So that workers which come and go for
        # months need no more than are there at once, names are given out again: who had
        # one before is gone, and nobody asks a counter while the storage is held.
        self._released: list[Handle] = []

    @property
    def size_bytes(self) -> int:
        """How many."""
        return self._storage.nbytes()

    def export(self) -> Handle:
        """Returns a handle that nobody else has, with a counter and an event."""
        if self._released:
            return self._released.pop()
        shared = self._storage._share_cuda_()  # type: ignore[no-untyped-call]
        device, memory, size_bytes, offset, counter, place, event, waits = shared
        return [
            device,
            memory.hex(),
            size_bytes,
            offset,
            counter.hex(),
            place,
            event.hex(),
            waits,
        ]

    def release(self, handle: Handle) -> None:
        """Takes the counter of ``handle`` down; it may be given out again."""
        torch.UntypedStorage._release_ipc_counter_cuda(
            bytes.fromhex(str(handle[4])), handle[5]
        )
        self._released.append(handle)
