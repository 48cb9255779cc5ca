from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.export.called_version import call_version
from tests.models.nested import Detector, Heads, Measured, Measures
from tests.models.spans import Query, Span
from tests.present import present
from tfs.core.dtype import BOOL, FLOAT64, INT64
from tfs.core.errors import InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.version_directory import read_manifest
from tfs.export import Signature, save
from tfs.export.signatures.derive import derive
from tfs.export.signatures.signature import ExampleInputs
from tfs.export.values import same
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import to_torch

X = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
STATE = (torch.ones(2, 1), torch.zeros(2, 1))


def answer(path: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loads a version as an interpreter does and calls it by its inputs' names."""
    tensors = {}
    for name, view in call_version(path, inputs).items():
        value = to_torch(view)
        assert isinstance(value, torch.Tensor)
        tensors[name] = value
    return tensors


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
def test_containers_are_named_by_the_way_to_each_tensor(
    tmp_path: Path, platform: str
) -> None:
    """A model that takes and returns containers is served without being rewritten."""
    module = Detector().eval()
    features = {"low": X, "high": X + 1}
    path = save(module, (features, STATE), tmp_path / "m", platform=platform)
    plain = module(features, STATE)
    flat = {
        "features.low": X,
        "features.high": X + 1,
        "state.0": STATE[0],
        "state.1": STATE[1],
    }
    got = answer(path, flat)
    assert list(got) == ["scores", "boxes.0", "boxes.1"]
    assert torch.allclose(got["scores"], plain.scores)
    assert same(got["boxes.1"], plain.boxes[1])


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
@pytest.mark.parametrize("has_weight", [True, False])
def test_named_tuples_and_dataclasses_are_arguments(
    tmp_path: Path, platform: str, *, has_weight: bool
) -> None:
    """Their classes come along; settings that are the class's are left to it."""
    query = Query(Span(X, X * 3), X + 1 if has_weight else None)
    module = Measured().eval()
    path = save(module, (query,), tmp_path / "m", platform=platform)
    flat = {"query.span.low": X, "query.span.high": X * 3}
    if has_weight:
        flat["query.weight"] = X + 1
    manifest = present(read_manifest(path))
    assert list(manifest.signatures["serving_default"].inputs) == list(flat)
    assert same(answer(path, flat)["output"], module(query))


def test_classes_of_arguments_that_cannot_come_along_are_refused(
    tmp_path: Path,
) -> None:
    """Each refusal says what to take instead."""

    class Local(NamedTuple):
        span: Span

    with pytest.raises(
        InvalidArgument, match="to the top of a module, or take a plain"
    ):
        save(Measured(), (Local(Span(X, X)),), tmp_path)
    with pytest.raises(InvalidArgument, match="Span, and a script brings no classes"):
        save(Measured(), (Query(Span(X, X)),), tmp_path, platform="torchscript")
    with pytest.raises(InvalidArgument, match=r"query.factor.* is the number 3\.0"):
        save(Measured(), (Query(Span(X, X), factor=3.0),), tmp_path)


def test_parts_of_a_tuple_are_named_by_position_or_by_the_author(
    tmp_path: Path,
) -> None:
    """What is None is left out; a name for a part is one for all within it."""
    path = save(Heads().eval(), X, tmp_path / "m")
    got = answer(path, {"x": X})
    assert list(got) == ["output_0", "output_1.0", "output_1.1"]
    assert same(got["output_1.1"], X * 3)
    named = save(Heads().eval(), X, tmp_path / "m", output_names=["y", "state"])
    assert list(answer(named, {"x": X})) == ["y", "state.0", "state.1"]


def test_an_entry_picks_all_that_is_within_it() -> None:
    """The author of a dataclass with many fields serves those he names."""
    options = Signature(
        ({"low": X, "high": X}, STATE), output_names=["boxes", "scores"]
    )
    found = derive(Detector().eval(), options)
    assert list(found.signature.outputs) == ["boxes.0", "boxes.1", "scores"]


def test_numbers_of_python_are_outputs_too(tmp_path: Path) -> None:
    """They arrive as Python counts, in 64 bits, so that nothing is rounded."""
    path = save(Measures().eval(), X, tmp_path / "m", batched=False)
    manifest = present(read_manifest(path))
    outputs = manifest.signatures["serving_default"].outputs
    assert [spec.dtype for spec in outputs.values()] == [FLOAT64, BOOL, INT64]
    got = answer(path, {"x": X})
    assert got["mean"].tolist() == [1.5, -0.5]
    assert got["signs"].tolist() == [[True, True], [True, False]]
    assert got["size"].item() == 2


class OfNothing(nn.Module):
    """Returns no tensor."""

    def forward(self, x: torch.Tensor) -> dict[str, None]:
        return {"loss": None}


class Ambiguous(nn.Module):
    """Returns two values whose ways read alike."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        return {"a.b": x, "a": {"b": x}}


class Ragged(nn.Module):
    """Returns tensors of different lengths as one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor([x[0], x[1, :1]], layout=torch.jagged)


class Unsteady(nn.Module):
    """Returns more for some batches than for others."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": x} if len(x) == 1 else {"y": x, "z": x}


class Quantized(nn.Module):
    """Returns what only torch can read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor")
@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (OfNothing(), X, "without a tensor"),
        (Ambiguous(), X, r"two outputs that are called 'a\.b'"),
        (Ragged(), X, "to_padded_tensor"),
        (Quantized(), X, r"dequantize\(\)"),
        (Unsteady(), X, "another; a signature's outputs are always the same"),
        (Detector(), ({1: X}, STATE), "not all strings"),
        (
            Heads(),
            [[1.0, 2.0], [3.0, 4.0]],
            r"example inputs .* torch\.tensor\(\.\.\.\)",
        ),
        (Heads(), {"x": [[1.0], [2.0]]}, r"'x' of .* lists of numbers do not say"),
        (Detector(), ({"low": X, "high": X}, torch.max(X, 1)), "plain dicts, lists"),
        (Detector(), ({"low": X, "high": 2.0}, STATE), r"the number 2\.0: leave it"),
    ],
)
def test_what_no_client_could_read_is_refused_with_what_to_return(
    module: nn.Module, example: ExampleInputs, message: str
) -> None:
    """Each refusal names the fix."""
    with pytest.raises(InvalidArgument, match=message):
        derive(module.eval(), Signature(example))


def test_a_hand_written_form_that_fits_no_input_is_refused(tmp_path: Path) -> None:
    """A manifest edited by hand says what is wrong with it, not a KeyError."""
    path = save(Heads().eval(), X, tmp_path / "m")
    manifest = present(read_manifest(path))
    for arguments, message in (
        ({"x": {"dict": {"a": "y"}}}, "names y, which signature"),
        ({"x": {"set": ["x"]}}, "is no argument's form"),
    ):
        entry = {**manifest.entry, "arguments": {"serving_default": arguments}}
        source = ModelSource(
            ServableId("m", 1), path, "torch_package", entry, manifest.signatures
        )
        with pytest.raises(InvalidArgument, match=message):
            load_guest_model(source, VersionFiles.stage(source))


def test_an_example_whose_rows_lie_apart_is_saved_as_a_server_hands_it_over(
    tmp_path: Path,
) -> None:
    """Kernels round by how memory lies, and a request's lies row by row."""
    torch.manual_seed(1)
    example = torch.randn(64, 3).t()
    path = save(nn.Linear(64, 16).eval(), example, tmp_path / "m")
    assert answer(path, {"input": example})["output"].shape == (3, 16)
