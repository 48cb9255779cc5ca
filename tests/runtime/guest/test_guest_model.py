"""The device that a model asks for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.packaged import SCALE_SIGNATURES, package
from tests.runtime.zoo import Scale
from tfs.core.errors import DataLoss, FailedPrecondition, Internal, ResourceExhausted
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.guest_model import (
    Output,
    Value,
    check_device,
    current_device,
    load_guest_model,
    two_thread_scaling,
)
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.platforms import torch_package
from tfs.runtime.guest.platforms.torch_callable import TorchCallable


def test_a_model_on_another_device_is_called_with_that_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread begins with the first, where its own kernels would go."""
    current = ["cuda:0"]

    @contextlib.contextmanager
    def switched(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    seen: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(current[-1])
        return x

    monkeypatch.setattr(torch.cuda, "device", switched)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    source = replace(package(tmp_path, Scale()), device="cuda:1")
    model = TorchCallable(source, dict.fromkeys(SCALE_SIGNATURES, function))
    model.run("serving_default", {"x": torch.ones(1, 2)}, 1)
    assert seen == ["cuda:1"]
    assert current == ["cuda:0"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_the_first_device_is_current_already(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of CUDA for a model on the processor."""
    monkeypatch.delattr(torch.cuda, "device")
    with current_device(device):
        pass


def has_devices(monkeypatch: pytest.MonkeyPatch, num_devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)


@pytest.mark.parametrize(
    ("num_devices", "device"),
    [(0, "cuda"), (0, "cuda:0"), (1, "cuda:1"), (2, "cuda:7"), (1, "tpu"), (1, "mps")],
)
def test_a_device_that_there_is_not_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_devices: int, device: str
) -> None:
    """Each loader of torch's would say it otherwise, as a damaged file among others."""
    has_devices(monkeypatch, num_devices)
    source = replace(package(tmp_path, Scale()), device=device)
    with pytest.raises(FailedPrecondition, match=f"scale/1 asks for device '{device}'"):
        load_guest_model(source, VersionFiles({}))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:1"])
def test_a_device_that_there_is_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A device that exists is accepted, however it is written."""
    has_devices(monkeypatch, 2)
    check_device(device, "scale/1")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_device_that_is_full_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    """RESOURCE_EXHAUSTED, whatever a platform makes of the error."""

    def load(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            if wrapped:
                raise DataLoss("cannot be read") from error
            raise

    monkeypatch.setattr(torch_package, "load", load)
    with pytest.raises(ResourceExhausted, match="scale/1 does not load: device cpu"):
        load_guest_model(package(tmp_path, Scale()), VersionFiles({}))


class Meeting:
    """A model whose calls count themselves; some fail."""

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.num_calls = 0
        self.threads: set[int] = set()

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        self.num_calls += 1
        self.threads.add(threading.get_ident())
        if self.num_calls == self.fails_at:
            raise Internal("failed")
        return {}

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        raise NotImplementedError

    def seed(self, seed: int | None) -> None:
        pass

    def close(self) -> None:
        pass


def test_scaling_is_the_rate_of_two_threads_over_one() -> None:
    """One thread calls alone, then two together; the answer is a positive ratio."""
    model = Meeting()
    scaling = two_thread_scaling(model, "serving_default", {}, 0.5)
    assert scaling is not None
    assert scaling > 0
    assert len(model.threads) >= 2


def test_failing_call_leaves_the_scaling_unknown() -> None:
    """A model that fails is not placed by half a measurement, and nobody hangs."""
    assert two_thread_scaling(Meeting(fails_at=1), "serving_default", {}, 0.01) is None
