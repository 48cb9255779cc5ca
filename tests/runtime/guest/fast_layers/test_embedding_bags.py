"""Embedding bags by the quick operator: the same bits, and modules that stay modules."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from tests.runtime.guest.bits import bits
from tests.runtime.guest.module_copies import copies_of
from tfs.core.dtype import INT64
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.runtime.guest.fast_layers import embedding_bags
from tfs.runtime.guest.fast_layers.embedding_bags import quicken_bag_nodes, quicken_bags
from tfs.runtime.guest.fast_layers.quickening import quicken_program
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import to_view
from tfs.runtime.guest.version_files import VersionFiles

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SETTINGS = (
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "sum", "padding_idx": 3},
    {"mode": "mean", "padding_idx": 0},
    {"mode": "sum", "max_norm": 1.0},
    {"mode": "sum", "sparse": True},
    {"mode": "mean", "scale_grad_by_freq": True},
    {"mode": "sum", "include_last_offset": True},
)


def bag(width: int = 16, **settings: Any) -> nn.EmbeddingBag:
    torch.manual_seed(1)
    module = nn.EmbeddingBag(50, width, **settings)
    with torch.no_grad():
        module.weight[7] = torch.tensor(float("nan"))
        module.weight[8] = -0.0
    return module


def quickened(plain: nn.EmbeddingBag) -> nn.EmbeddingBag:
    quick = copy.deepcopy(plain)
    quicken_bags(quick)
    return quick


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Notes each call of the quick operator."""
    calls: list[tuple[object, ...]] = []
    operator = embedding_bags._operator
    assert operator is not None

    def noted(*arguments: object) -> tuple[torch.Tensor, ...]:
        calls.append(arguments)
        return operator(*arguments)

    monkeypatch.setattr(embedding_bags, "_operator", noted)
    return calls


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_quickened_bag_returns_the_bits_of_a_plain_one(
    settings: dict[str, Any], dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    """A quick answer is the plain one, whatever weights, indices and settings are."""
    plain = bag(**settings).to(dtype)
    quick = quickened(plain)
    indices = torch.randint(0, 50, (6, 5, 9)).to(index_dtype)
    with torch.inference_mode():
        for each in (indices[0], indices[:, 2], indices[1, :1], indices[..., 0].T):
            expected, given = plain(each), quick(input=each)
            assert bits(given) == bits(expected)
            assert given.stride() == expected.stride()


@pytest.mark.parametrize("width", [1, 3, 16, 200])
def test_rows_of_every_width_are_summed_alike(
    width: int, quickly: list[tuple[object, ...]]
) -> None:
    """Which of torch's kernels sums goes by the width, and by nothing of ours."""
    plain = bag(width, mode="sum")
    quick = quickened(plain)
    indices = torch.randint(0, 50, (2000, 4))
    with torch.inference_mode():
        for rows in (1, 2000, 2000):
            assert bits(quick(indices[:rows])) == bits(plain(indices[:rows]))
    assert len(quickly) == 3


def test_other_ways_to_call_a_bag_are_torchs(
    quickly: list[tuple[object, ...]],
) -> None:
    """Offsets, weights of samples and empty bags go where they went."""
    plain = bag(mode="sum")
    quick = quickened(plain)
    indices = torch.randint(0, 50, (4, 3))
    with torch.inference_mode():
        for given in (
            (indices.flatten(), torch.tensor([0, 5])),
            (indices, None, torch.rand(4, 3)),
        ):
            assert bits(quick(*given)) == bits(plain(*given))
        with pytest.raises(ValueError, match="1D or 2D"):
            quick(indices[None])
        with pytest.raises(RuntimeError):
            quick(torch.tensor([[50]]))  # no such row
    assert len(quickly) == 1


def test_gradients_get_the_operator_that_the_model_wrote(
    quickly: list[tuple[object, ...]],
) -> None:
    """A model that differentiates something in a call does so as before."""
    quick = quickened(bag(mode="sum"))
    quick(torch.tensor([[1, 1, 2]])).sum().backward()
    assert not quickly
    assert quick.weight.grad is not None
    assert quick.weight.grad[:3, 0].tolist() == [0, 2, 1]


def test_subclasses_and_replaced_methods_are_left_alone() -> None:
    """Only what is known to look up as torch's module does is quickened."""

    class Own(nn.EmbeddingBag):
        pass

    replaced = nn.EmbeddingBag(5, 2)
    vars(replaced)["forward"] = torch.neg
    model = nn.ModuleList([Own(5, 2), replaced])
    before = [dict(vars(module)) for module in model]
    quicken_bags(model)
    assert [dict(vars(module)) for module in model] == before


def test_settings_may_change_after_the_bag_was_quickened() -> None:
    """A copy, too, looks up by settings of its own."""
    quick = quickened(bag(mode="sum"))
    copied = copy.deepcopy(quick)
    copied.mode = "mean"
    indices = torch.tensor([[1, 2]])
    with torch.inference_mode():
        assert torch.equal(copied(indices) * 2, quick(indices))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_quickened_bag_pickles_scripts_traces_and_exports() -> None:
    """What models do with their modules at run time works with a quickened one."""
    plain = bag(mode="sum")
    quick = quickened(plain)
    indices = torch.randint(0, 50, (4, 3))
    with torch.inference_mode():
        expected = plain(indices)
        others = copies_of(quick, indices)
        given = {name: bits(other(indices)) for name, other in others.items()}
    assert given == dict.fromkeys(others, bits(expected))
    exported = torch.export.export(quick, (indices,))
    operators = [str(node.target) for node in exported.graph.nodes]
    assert "aten.embedding_bag.padding_idx" in operators


@pytest.mark.parametrize("settings", SETTINGS[:5], ids=str)
def test_exported_program_looks_up_quickly_with_the_same_bits(
    settings: dict[str, Any], quickly: list[tuple[object, ...]]
) -> None:
    """A program's operator is replaced with all of its arguments."""
    indices = torch.randint(0, 50, (4, 3))
    model = nn.Sequential(bag(**settings))
    program = torch.export.export(model, (indices,)).module()
    assert isinstance(program, torch.fx.GraphModule)
    with torch.inference_mode():
        expected = program(indices)
        quicken_program(program)
        given = program(indices)
    assert bits(given) == bits(expected)
    assert len(quickly) == ("padding_idx" not in settings)


def test_program_that_takes_more_than_the_rows_is_left_alone() -> None:
    """What the operator returns beside them is the same from torch's own only."""

    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 4))

        def forward(self, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            rows, _, sizes, _ = torch.embedding_bag(self.weight, indices, offsets)
            return rows / sizes[:, None]

    indices, offsets = torch.tensor([1, 2, 4]), torch.tensor([0, 2])
    program = torch.export.export(Sizes(), (indices, offsets)).module()
    assert isinstance(program, torch.fx.GraphModule)
    assert not quicken_bag_nodes(program)


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
def test_loaded_version_looks_up_quickly(
    platform: Literal["torch_package", "torch_export"],
    tmp_path: Path,
    quickly: list[tuple[object, ...]],
) -> None:
    """Packages and programs do so without their author's doing, to the same bits."""
    module = bag(mode="sum")
    indices = torch.randint(0, 50, (4, 3))
    path = save(module, indices, tmp_path, platform=platform)
    manifest = read_manifest(str(path))
    source = ModelSource(
        ServableId("bag", 1), str(path), platform, manifest.entry, manifest.signatures
    )
    files = VersionFiles.stage(source)
    guest = load_guest_model(source, files)
    files.close()
    (name,) = manifest.signatures[DEFAULT_SIGNATURE].inputs
    view = TensorView(INT64, tuple(indices.shape), indices.numpy().tobytes())
    quickly.clear()
    with torch.inference_mode():
        (output,) = guest.call(DEFAULT_SIGNATURE, {name: view}).values()
        expected = module(indices)
    guest.close()
    assert len(quickly) == 1
    assert output == to_view(expected)
