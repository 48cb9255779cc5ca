"""Platforms look into the version's bytes, instead of copying them."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.zoo import Weighted
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.memory_files import SealedFile, VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.weights import share_weights

NUM_FLOATS = 8 << 20

SERVABLE = """
import torch

class Servable:
    def load(self, version):
        self.weight = version.weights["weight"]

    def predict(self, x):
        return x + self.weight[-1]
"""


class AddsLast(torch.nn.Module):
    """Adds its last weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(float(NUM_FLOATS)))
        self.weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[-1]


def as_package(folder: Path) -> ModelSource:
    return package(
        folder, Weighted(NUM_FLOATS), {"serving_default": signature()}, "weighted"
    )


def _source(folder: Path, platform: str) -> ModelSource:
    return ModelSource(
        ServableId("weighted", 1),
        str(folder),
        platform,
        {},
        {"serving_default": signature()},
    )


def as_script(folder: Path) -> ModelSource:
    with warnings.catch_warnings(action="ignore"):
        traced = torch.jit.trace(AddsLast().eval(), torch.zeros(1, 2))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(folder / "model.pt"))
    return _source(folder, "torchscript")


def as_graph(folder: Path) -> ModelSource:
    rows = {"x": {0: torch.export.Dim.AUTO}}
    program = torch.export.export(
        AddsLast().eval(), (), {"x": torch.zeros(2, 2)}, dynamic_shapes=rows
    )
    torch.export.save(program, folder / "model.pt2")
    return _source(folder, "torch_export")


def as_class(folder: Path) -> ModelSource:
    (folder / "servable.py").write_text(SERVABLE)
    torch.save({"weight": torch.arange(float(NUM_FLOATS))}, folder / "weights.pt")
    return _source(folder, "python")


def private_bytes() -> int:
    """Memory this process has for itself, files and memfds apart."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize("make", [as_package, as_script, as_graph, as_class])
def test_weights_are_views_of_the_versions_bytes(
    make: Callable[[Path], ModelSource], tmp_path: Path
) -> None:
    """The model answers right and has no weights of its own."""
    source = make(tmp_path)
    files = VersionFiles.stage(source)
    warm = load_guest_model(source, files)  # what a platform imports is no weights
    gc.collect()
    before = private_bytes()
    model = load_guest_model(source, files)
    gc.collect()
    assert private_bytes() - before < NUM_FLOATS * 2
    files.close()
    with torch.inference_mode():
        outputs = model.call("serving_default", {"x": floats((1, 2))})
    last = NUM_FLOATS - 1
    assert values(outputs["y"]) == [[1 + last, 2 + last]]
    model.close()
    warm.close()


@pytest.mark.parametrize("form", ["weights.pt", "weights.safetensors"])
def test_a_class_that_writes_to_its_weights_changes_no_others(
    form: str, tmp_path: Path
) -> None:
    """It makes pages the model's own, which the other one sees nothing of."""
    (tmp_path / "servable.py").write_text(
        SERVABLE.replace(
            "        return x +", "        self.weight += 1\n        return x +"
        )
    )
    weights = {"weight": torch.zeros(NUM_FLOATS // 8)}
    if form == "weights.pt":
        torch.save(weights, tmp_path / form)
    else:
        save_file(weights, tmp_path / form)
    source = _source(tmp_path, "python")
    files = VersionFiles.stage(source)
    model, other = (load_guest_model(source, files) for _ in range(2))
    files.close()
    for each in (model, other):
        with torch.inference_mode():
            outputs = each.call("serving_default", {"x": floats((1, 2))})
        assert values(outputs["y"]) == [[2, 3]]
    model.close()
    other.close()


def test_only_what_is_the_same_is_shared(tmp_path: Path) -> None:
    """Another tensor's bytes, a view, a small or a changed one stay as they are."""
    ones, counted = torch.ones(1 << 15), torch.arange(1 << 15, dtype=torch.float32)
    torch.save({"ones": ones, "counted": counted}, tmp_path / "archive.pt")
    file = SealedFile.copy_of(str(tmp_path / "archive.pt"))
    tensors = {
        "ones": ones.clone(),
        "counted": counted.clone(),
        "changed": counted + 1,
        "part": torch.cat([ones, ones])[: 1 << 15],
        "small": torch.ones(4),
    }
    places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    share_weights(tensors.values(), file)
    file.close()
    moved = {name for name in tensors if tensors[name].data_ptr() != places[name]}
    assert moved == {"ones", "counted"}
    assert torch.equal(tensors["counted"], counted)


def test_sparse_weights_are_left_as_they_are(tmp_path: Path) -> None:
    """What has no bytes in a row cannot be a view of some, and loads all the same."""
    archive = tmp_path / "model.pt"
    torch.save({"w": torch.zeros(4)}, archive)
    sparse = torch.eye(4).to_sparse()
    file = SealedFile.copy_of(str(archive))
    share_weights([sparse], file)
    assert torch.equal(sparse.to_dense(), torch.eye(4))
    file.close()
