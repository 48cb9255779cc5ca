"""Kinds of models that people bring and the eight architectures are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.export.called_version import call_version
from tests.models import irregular, numeric
from tfs.export import save
from tfs.export.values import from_numbers, view_of

Inputs = dict[str, Tensor]


def rows(num_rows: int, **shapes: tuple[int, ...]) -> Inputs:
    """Returns normal numbers, ``num_rows`` of each shape."""
    return {n: torch.randn(num_rows, *shape) for n, shape in shapes.items()}


def graph(num_nodes: int) -> Inputs:
    """Returns a graph with twice as many edges as nodes."""
    edges = torch.randint(0, num_nodes, (2, 2 * num_nodes))
    return {**rows(num_nodes, x=(8,)), "edges": edges}


def sentences(num_rows: int) -> Inputs:
    """Returns tokens and how many of them count."""
    lengths = torch.arange(num_rows) % 7 + 1
    return {"tokens": torch.randint(1, 50, (num_rows, 7)), "lengths": lengths}


def pictures(num_rows: int) -> Inputs:
    """Returns noise, its time steps and what it is to become."""
    made = rows(num_rows, sample=(3, 8, 8), context=(5, 12))
    return {**made, "step": torch.randint(0, 999, (num_rows,))}


def quantized() -> nn.Module:
    """Returns a model with integer weights."""
    quantize: Any = torch.ao.quantization.quantize_dynamic  # untyped
    kinds = {nn.Linear, nn.LSTM}
    module: nn.Module = quantize(numeric.Quantized().eval(), kinds, dtype=torch.qint8)
    return module


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs]]] = {
    "sparse": (irregular.SparseMixing, lambda n: rows(n, x=(6, 4))),
    "experts": (irregular.Experts, lambda n: rows(n, x=(8,))),
    "packed": (irregular.PackedTagger, sentences),
    "beams": (irregular.BeamSearch, lambda n: rows(n, state=(8,))),
    "spectral": (numeric.Spectral, lambda n: rows(n, x=(8, 4))),
    "short": (
        numeric.Short,
        lambda n: {"x": torch.randn(n, 8).to(torch.float8_e4m3fn)},
    ),
    "quantized": (quantized, lambda n: {"tokens": torch.randint(0, 20, (n, 5))}),
    "ensemble": (numeric.Ensemble, lambda n: rows(n, x=(4,))),
    "slope": (numeric.Slope, lambda n: rows(n, place=(3,))),
    "flow": (numeric.Flow, lambda n: rows(n, y=(2,), until=())),
    "denoiser": (numeric.Denoiser, pictures),
    "together": (numeric.Together, lambda n: rows(n, x=(4,))),
}


def assert_repeats(path: str, module: nn.Module, inputs: Inputs) -> None:
    """Loads a version as an interpreter does, and compares it with the plain module."""
    outputs = call_version(path, inputs)
    with torch.inference_mode():
        result = module(**inputs)
    named = {"output": result} if isinstance(result, Tensor) else result
    assert outputs.keys() == named.keys()
    for name, value in named.items():
        expected = value if isinstance(value, Tensor) else from_numbers(value)
        assert expected is not None
        assert outputs[name] == view_of(expected), name


@pytest.mark.filterwarnings("ignore")  # torch's, of what it deprecates or has in beta
@pytest.mark.parametrize("name", MODELS)
def test_further_kind_of_model_is_saved_as_it_is_and_repeats_itself(
    tmp_path: Path, name: str
) -> None:
    """Bit for bit, for as many rows as it was saved with and for others."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as in an interpreter
    build, inputs = MODELS[name]
    module = build().eval()
    path = save(module, inputs(2), tmp_path)
    for num_rows in (1, 2, 5):
        assert_repeats(path, module, inputs(num_rows))


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
def test_graph_of_any_size_is_a_request(tmp_path: Path, platform: str) -> None:
    """A graph of any number of nodes and edges gives exactly the module's answer."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = irregular.GraphConvolution().eval()
    path = save(
        module,
        graph(5),
        tmp_path,
        platform=platform,
        batched=False,
        dynamic={"x": [0], "edges": [1]},
    )
    for num_nodes in (3, 5, 40):
        assert_repeats(path, module, graph(num_nodes))
