"""Convolutions of exported programs with their weights in blocks: the same bits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.runtime.guest.bits import bits, images
from tfs.core.dtype import FLOAT32
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.runtime.guest.fast_layers.packed_nodes import PackedNode, pack_nodes
from tfs.runtime.guest.guest_model import GuestModel
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms import torch_export
from tfs.runtime.guest.version_files import VersionFiles

pytestmark = pytest.mark.skipif(
    not torch._C._has_mkldnn, reason="this torch has no oneDNN"
)

SHAPE = (2, 128, 20, 21)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(128, 128, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, stride=2),
        nn.Conv2d(128, 8, 1),
    ).eval()


class Program:
    """An exported network, loaded for an interpreter that may keep a second copy."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = folder / "conv" / "1"
        save(
            network(),
            torch.randn(SHAPE),
            folder / "conv",
            version=1,
            platform="torch_export",
        )
        manifest = read_manifest(str(path))
        source = ModelSource(
            ServableId("conv", 1),
            str(path),
            manifest.platform,
            manifest.entry,
            manifest.signatures,
            packs_weights=True,
        )
        self.graphs: list[torch.fx.GraphModule] = []

        def noted(program: torch.fx.GraphModule, find_offset: object) -> None:
            pack_nodes(program, find_offset)  # type: ignore[arg-type]
            self.graphs.append(program)

        monkeypatch.setattr(torch_export, "pack_nodes", noted)
        self.files = VersionFiles.stage(source)
        self.guest: GuestModel = torch_export.load(source, self.files)
        (self._input,) = source.signatures[DEFAULT_SIGNATURE].inputs

    def call(self, tensor: torch.Tensor) -> list[int]:
        view = TensorView(FLOAT32, tuple(tensor.shape), tensor.numpy().tobytes())
        with torch.inference_mode():
            outputs = self.guest.call(DEFAULT_SIGNATURE, {self._input: view})
        (output,) = outputs.values()
        assert not isinstance(output.data, tuple)
        return bits(torch.frombuffer(bytearray(output.data), dtype=torch.float32))

    def kept(self) -> list[bool]:
        """Tells of each convolution that was changed whether it keeps weights."""
        (graph,) = self.graphs
        return [
            each.kept.is_kept for each in graph.modules() if type(each) is PackedNode
        ]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    program = Program(tmp_path, monkeypatch)
    yield program
    program.guest.close()
    program.files.close()


def test_packed_program_answers_to_the_bit(program: Program) -> None:
    """A program answers as its module does, in first calls of a shape and later."""
    plain = network()
    for tensor in (torch.randn(SHAPE), images(SHAPE), torch.randn(5, *SHAPE[1:])) * 2:
        with torch.inference_mode():
            assert program.call(tensor) == bits(plain(tensor))
    assert program.kept() == [True, True]


def test_program_whose_weights_are_written_to_answers_by_what_they_are(
    program: Program,
) -> None:
    """No change of a program's weights is overlooked."""
    plain, tensor = network(), torch.randn(SHAPE)
    program.call(tensor)
    (graph,) = program.graphs
    with torch.inference_mode():
        for model in (plain, graph):
            for parameter in model.parameters():
                if parameter.dim() == 4:
                    parameter.data.neg_()
        assert program.call(tensor) == bits(plain(tensor))
    assert program.kept() == [False, False]


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_copy_of_a_packed_program_keeps_nothing(program: Program) -> None:
    """Who copies a program gets one that answers the same, without a second copy."""
    tensor = torch.randn(SHAPE)
    expected = program.call(tensor)
    (graph,) = program.graphs
    program.graphs[:] = [copy.deepcopy(graph)]
    with torch.inference_mode():
        (output,) = torch.utils._pytree.tree_leaves(program.graphs[0](tensor))
    assert bits(output) == expected
    assert program.kept() == [False, False]
