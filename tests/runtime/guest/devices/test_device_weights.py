"""What a model shares of its weights on a device, and how long."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable

import pytest
import torch

from tfs.runtime.guest.devices.cuda_memory import CudaMemory, CudaStorage
from tfs.runtime.guest.devices.device_weights import MIN_SHARED_BYTES, DeviceWeights
from tfs.runtime.guest.devices.weights_lease import Place, WeightsLease
from tfs.runtime.guest.weights.weight_places import by_address

NUM = MIN_SHARED_BYTES // 4
FILE = "weights.safetensors"


class OwnLease(WeightsLease):
    """A lease whose keeper is this process."""

    def __init__(self) -> None:
        self.refusal = ""
        self.is_final = False
        self.num_opened = 0
        self.kept: list[Place] | None = None
        self.is_closed = False

    def open(self, place: Place) -> torch.UntypedStorage | None:
        self.num_opened += 1
        return torch.full((place[2] // 4,), 7.0).untyped_storage()

    def keep(self, places: Iterable[Place]) -> None:
        self.kept = list(places)

    def close(self) -> None:
        self.is_closed = True


class Loading:
    """Weights that are being loaded from a file of several tensors."""

    def __init__(self) -> None:
        self.lease = OwnLease()
        self.weights = DeviceWeights("cpu", self.lease)
        self._file = mmap.mmap(-1, 4 * MIN_SHARED_BYTES)

    def tensor(self, index: int, num: int = NUM) -> torch.Tensor:
        """Returns the file's tensor of this number, where the weights want it."""
        offset = index * MIN_SHARED_BYTES
        found = torch.frombuffer(
            self._file, dtype=torch.float32, count=num, offset=offset
        )
        return self.weights.moved(found, FILE, by_address(lambda: [self._file]))

    def place(self, index: int) -> Place:
        return FILE, index * MIN_SHARED_BYTES, MIN_SHARED_BYTES


def test_what_nothing_but_parameters_look_into_is_shared() -> None:
    """Whatever else looks into the same memory might write to it."""
    loading = Loading()
    weight = torch.nn.Parameter(loading.tensor(0))
    mixed = torch.nn.Parameter(loading.tensor(1))
    view = mixed.detach()[:4]
    buffer = loading.tensor(2)
    loading.tensor(3)  # nobody wants it
    loading.weights.settle()
    assert loading.lease.kept == [loading.place(0)]
    assert loading.weights.shared_bytes == MIN_SHARED_BYTES
    assert weight.detach().sum() + buffer.sum() == 7 * 2 * NUM
    view.zero_()
    assert mixed.detach().sum() == 7 * (NUM - 4), "they were parted from each other"


def test_small_tensors_are_copied() -> None:
    """A name for one costs more than its bytes."""
    loading = Loading()
    weight = torch.nn.Parameter(loading.tensor(0, NUM - 1))
    loading.weights.settle()
    assert loading.lease.num_opened == 0
    assert weight.detach().sum() == 0


def test_a_tensor_read_twice_is_opened_once() -> None:
    """Tied weights stay tied when they come from the keeper."""
    loading = Loading()
    weight, tied = (torch.nn.Parameter(loading.tensor(0)) for _ in range(2))
    loading.weights.settle()
    assert loading.lease.num_opened == 1
    assert weight.data_ptr() == tied.data_ptr()


@pytest.mark.parametrize("how", ["add", "view", "item"])
def test_a_write_to_what_is_shared_is_noticed(how: str) -> None:
    """Any write that torch makes to a shared parameter, or a view of it, is noticed."""
    loading = Loading()
    weight = torch.nn.Parameter(loading.tensor(0))
    loading.weights.settle()
    with torch.inference_mode():
        torch.nn.functional.linear(torch.ones(1, NUM), weight.view(1, NUM))
        assert loading.weights.num_written() == 0
        match how:
            case "add":
                weight.add_(1)
            case "view":
                weight.view(4, -1)[1].mul_(2)
            case _:
                weight[3] = 1
    assert loading.weights.num_written() == 1


def test_a_lease_lasts_while_anything_looks_into_it() -> None:
    """A model may leave a tensor behind when it is unloaded."""
    loading = Loading()
    weight = torch.nn.Parameter(loading.tensor(0))
    loading.weights.settle()
    left_behind = weight.detach()
    del weight
    assert not loading.weights.close()
    assert not loading.lease.is_closed
    del left_behind
    assert loading.weights.close()
    assert loading.lease.is_closed


def test_a_lease_of_nothing_ends_at_once() -> None:
    """A lease that opened nothing ends at once, so that the keeper may end."""
    loading = Loading()
    loading.weights.settle()
    assert loading.lease.kept == []
    assert loading.lease.is_closed


def test_a_name_of_cuda_memory_arrives_as_torch_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All eight parts, of the types that torch wants, through JSON."""
    made = (1, b"\x01" + bytes(64), 4096, 512, b"/torch_1_2", 3, bytes(range(64)), True)
    seen: list[object] = []

    class Exporting:
        def _share_cuda_(self) -> tuple[object, ...]:
            seen.append("exported")
            return made

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(
        torch.UntypedStorage, "_new_shared_cuda", lambda *args: seen.append(args)
    )
    monkeypatch.setattr(
        torch.UntypedStorage,
        "_release_ipc_counter_cuda",
        lambda *args: seen.append(args),
    )
    storage = CudaStorage(Exporting())  # type: ignore[arg-type]
    handle = json.loads(json.dumps(storage.export()))
    CudaMemory(torch.device("cuda:1")).open(handle)
    storage.release(handle)
    assert seen == ["exported", made, (b"/torch_1_2", 3)]
    assert storage.export() == handle  # given out again, and not made anew
    # Else this says nothing of the names that torch really has.
    assert {"_share_cuda_", "_new_shared_cuda", "_release_ipc_counter_cuda"} <= set(
        dir(torch._C.StorageBase)
    )
