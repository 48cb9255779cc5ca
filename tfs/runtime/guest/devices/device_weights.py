"""The weights that a model has on its device, and which of them it shares with others.

Without a lease all of them are the worker's own copies. With a lease, a storage whose
bytes come unchanged from the version's files is opened from the keeper while the model
is loaded. After the load ``settle`` decides what stays shared: **storages that only
parameters use**. Buffers, plain tensors and anything else that a serving model might
write to get copies of their own, in place, so that nobody who refers to such a tensor
notices.

On a CPU, a page that is written to becomes the writer's own. A device cannot do that: a
model that writes to a shared parameter writes to that of every worker. torch counts
writes to a tensor, so this is noticed (``num_written``), and all workers can be given
copies of their own. Writes that torch does not count, through ``parameter.data`` or a
kernel of the model's, are not noticed.

Small storages are not shared: a copy is no larger than what the device's allocator
would waste by rounding up.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.serialization import default_restore_location

from tfs.runtime.guest.devices.weights_lease import Place, WeightsLease
from tfs.runtime.guest.weights.weight_places import FindOffset

MIN_SHARED_BYTES: Final = 64 << 10

T = TypeVar("T", bound=torch.Tensor)


class DeviceWeights:
    """The weights of one model. Confined to the loading thread, except ``num_written``.

    Args:
        device: The device of the model.
        lease: The lease of the version's weights there, owned from now on; None if the
            model should have copies.

    """

    def __init__(self, device: str, lease: WeightsLease | None = None) -> None:
        self._device = device
        self._lease = lease
        self._opened: dict[Place, torch.UntypedStorage] = {}
        self._adopted: set[int] = set()  # storages that belong to parameters unseen
        self._shared: list[StorageWeakRef] = []
        self._watched: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self.shared_bytes = 0
        """Bytes on the device that are shared with other workers; set by ``settle``."""

    @property
    def is_shared(self) -> bool:
        """Whether there is a lease to open storages from."""
        return self._lease is not None and not self._lease.refusal

    @property
    def refusal(self) -> str:
        """Why the keeper's copy is not used; empty if it is, or there is none."""
        return self._lease.refusal if self._lease is not None else ""

    @property
    def is_refusal_final(self) -> bool:
        """Whether the device's memory cannot be shared at all on this host."""
        return self._lease is not None and self._lease.is_final

    # -- while the model is loaded ------------------------------------------------------

    def restorer(self, name: str, find: FindOffset) -> Callable[[Any, str], Any]:
        """Returns a function that torch's loaders take as ``map_location``.

        Args:
            name: The file that is loaded.
            find: Finds where in that file a storage comes from.

        """

        def restore(storage: Any, _location: str) -> Any:
            typed = isinstance(storage, torch.storage.TypedStorage)
            shared = self._open(
                name, find, storage._untyped_storage if typed else storage
            )
            if shared is None:
                return default_restore_location(storage, self._device)  # type: ignore[no-untyped-call]
            if not typed:
                return shared
            return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
                wrap_storage=shared, dtype=storage.dtype, _internal=True
            )

        return restore

    def moved(self, tensor: torch.Tensor, name: str, find: FindOffset) -> torch.Tensor:
        """Returns a tensor over a file's bytes as the same tensor on the device."""
        shared = self._open(name, find, tensor.untyped_storage())
        return tensor.to(self._device) if shared is None else _over(shared, tensor)

    def adopt(
        self, parameters: Iterable[torch.Tensor], name: str, find: FindOffset
    ) -> None:
        """Lets parameters that were copied use the shared storages instead.

        For a loader that makes copies itself, of models whose tensors Python does not
        see.
        """
        for parameter in parameters:
            if (
                not self.is_shared
                or parameter.layout is not torch.strided
                or not parameter.is_contiguous()
                or parameter.nbytes != parameter.untyped_storage().nbytes()
            ):
                continue
            copied = parameter.detach().cpu()
            shared = self._open(name, find, copied.untyped_storage())
            if shared is not None:
                self._adopted.add(shared._cdata)
                parameter.data = _over(shared, copied)
                self._watch(parameter)

    def _open(
        self, name: str, find: FindOffset, storage: torch.UntypedStorage
    ) -> torch.UntypedStorage | None:
        if not self.is_shared or self._lease is None:
            return None
        if storage.device.type != "cpu" or storage.nbytes() < MIN_SHARED_BYTES:
            return None
        offset = find(storage)
        if offset is None:
            return None
        place = (name, offset, storage.nbytes())
        opened = self._opened.get(place)
        if opened is None:
            opened = self._lease.open(place)
            if opened is not None:
                self._opened[place] = opened
        return opened

    # -- when it is loaded ----------------------------------------------------------------

    def settle(self) -> None:
        """Copies what must not be shared, and tells the keeper which places are kept."""
        if self._lease is None:
            return
        gc.collect()  # frees objects to which only unpickling referred
        users = self._users()
        kept: list[Place] = []
        for place, storage in self._opened.items():
            tensors = users.get(storage._cdata, [])
            if storage._cdata not in self._adopted:
                if not tensors:
                    continue
                if not all(isinstance(each, torch.nn.Parameter) for each in tensors):
                    _separate(storage, tensors)
                    continue
            kept.append(place)
            self.shared_bytes += storage.nbytes()
            self._shared.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            for each in tensors:
                self._watch(each)
        self._opened.clear()
        self._lease.keep(kept)
        if not kept:
            self._lease.close()

    def _users(self) -> dict[int, list[torch.Tensor]]:
        """Returns all tensors that use an opened storage, by storage, wherever they are."""
        users: dict[int, list[torch.Tensor]] = {
            storage._cdata: [] for storage in self._opened.values()
        }
        if users:
            with torch._C.DisableTorchFunctionSubclass():
                for each in gc.get_objects():
                    # Not isinstance(), which may run code of the object.
                    if not issubclass(type(each), torch.Tensor):
                        continue
                    try:
                        found = users.get(each.untyped_storage()._cdata)
                    except Exception:  # the tensor is sparse, or has no memory
                        continue
                    if found is not None:
                        found.append(each)
        return users

    def _watch(self, tensor: torch.Tensor) -> None:
        self._watched.append((weakref.ref(tensor), tensor._version))

    # -- while it serves --------------------------------------------------------------------

    def num_written(self) -> int:
        """Returns how many shared tensors this worker has written to. Any thread."""
        num = 0
        for ref, version in self._watched:
            tensor = ref()
            num += tensor is not None and tensor._version != version
        return num

    def close_channel(self) -> None:
        """Closes the lease's channel in a copy of this process; the original keeps it."""
        if self._lease is not None:
            self._lease.close()

    def close(self) -> bool:
        """Ends the lease, if nothing uses what it opened any more.

        To be called when the model is gone and garbage was collected.

        Returns:
            Whether it has ended. If not, it lasts as long as the process.

        """
        self._opened.clear()
        self._watched.clear()
        if not all(each.expired() for each in self._shared):  # type: ignore[no-untyped-call]
            return False
        if self._lease is not None:
            self._lease.close()
        return True


def _over(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the dtype and shape of another, over another storage."""
    empty = torch.empty(0, dtype=like.dtype, device=storage.device)
    return empty.set_(storage, like.storage_offset(), like.size(), like.stride())


def _separate(storage: torch.UntypedStorage, tensors: Iterable[torch.Tensor]) -> None:
    """Moves tensors from a shared storage to a copy of it, all to the same one."""
    own = storage.clone()  # type: ignore[no-untyped-call]
    for each in tensors:
        each.data = _over(own, each)
