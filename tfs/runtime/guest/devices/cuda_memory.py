"""Memory of a CUDA device, shared by torch's CUDA IPC.

It works as in ``torch.multiprocessing`` (torch/multiprocessing/reductions.py and
torch/csrc/StorageSharing.cpp). An export names the allocation by its IPC handle, the
place in it, an event after which the bytes are there, and a counter of its own in
shared memory. The importer decrements the counter when it drops the storage. If the
exporter drops a storage whose counter is not yet zero, its memory stays, "in limbo".

An importer that is killed never decrements its counter, and that is the usual end of a
worker. So the keeper does it when the worker is gone (``release``). Decrementing twice
does no harm, since torch only asks whether the counter is above zero and never uses it
again.
"""

from __future__ import annotations

import torch

from tfs.runtime.guest.devices.device_memory import DeviceMemory, Handle


def make(device: str) -> DeviceMemory:
    """Returns the memory of "cuda" or "cuda:i"; see :func:`device_memory`."""
    return CudaMemory(torch.device(device))


class CudaMemory:
    """Implements :class:`~tfs.runtime.guest.devices.device_memory.DeviceMemory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def hold(self, source: torch.UntypedStorage) -> CudaStorage:
        """Copies a storage to the device. Blocks until it is there."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return CudaStorage(source.to(device=self._device))

    def open(self, handle: Handle) -> torch.UntypedStorage:
        """Returns the storage that another process exported. Open each handle only once."""
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
        """Returns memory that nobody holds any more to the device."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


class CudaStorage:
    """Implements :class:`~tfs.runtime.guest.devices.device_memory.HeldStorage`."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        # Each export wraps the storage's memory once more, and takes an event and a
        # counter, which are kept until the storage is gone. Workers may come and go for
        # months, so handles that were released are given out again; then there are only
        # as many as there were workers at once. That is safe: the worker that had the
        # handle is gone, and nobody reads the counter while the storage is held.
        self._released: list[Handle] = []

    @property
    def size_bytes(self) -> int:
        """The size in bytes."""
        return self._storage.nbytes()

    def export(self) -> Handle:
        """Returns a handle with a counter and an event, which nobody else has."""
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
        """Decrements the counter of ``handle``, which may then be given out again."""
        torch.UntypedStorage._release_ipc_counter_cuda(
            bytes.fromhex(str(handle[4])), handle[5]
        )
        self._released.append(handle)
