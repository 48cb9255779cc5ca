"""Which device a model's own CUDA calls go to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.runtime.packaged import SCALE_SIGNATURES, package
from tests.runtime.zoo import Scale
from tfs.runtime.guest.current_device import current_device
from tfs.runtime.guest.torch_callable import TorchCallable


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
