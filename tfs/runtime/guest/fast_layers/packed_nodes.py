"""Convolutions of exported programs that keep their weights in blocks.

This works as for modules (:mod:`tfs.runtime.guest.fast_layers.packed_convolutions`).
The operator's node becomes a call of a small module, which only holds the packed
weights.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from tfs.runtime.guest.fast_layers.packed_convolutions import (
    LEAST_BYTES,
    PackedWeight,
    is_available,
)
from tfs.runtime.guest.fast_layers.plain_call import is_plain_call
from tfs.runtime.guest.weights.weight_places import FindOffset

_OPERATOR: Final = torch.ops.aten.conv2d.default


def pack_nodes(program: torch.fx.GraphModule, find_offset: FindOffset) -> None:
    """Has a program's convolutions with many weights keep them in blocks.

    That applies to convolutions whose weights lie in the version's file, according to
    ``find_offset``. Nothing is kept before a call.
    """
    if not is_available():
        return
    graph = program.graph
    num_packed = 0
    for node in graph.find_nodes(op="call_function", target=_OPERATOR):
        weight = _parameter_of(program, node)
        if (
            weight is None
            or weight.nbytes < LEAST_BYTES
            or find_offset(weight.untyped_storage()) is None
        ):
            continue
        name = f"_tfs_packed_{num_packed}"
        num_packed += 1
        program.add_submodule(name, PackedNode(weight.data_ptr()))
        with graph.inserting_before(node):
            call = graph.call_module(name, node.args, node.kwargs)
        call.meta = node.meta
        node.replace_all_uses_with(call)
        graph.erase_node(node)
    if num_packed:
        program.recompile()


class PackedNode(nn.Module):
    """One node of a program. Thread-safe; a copy of it keeps nothing.

    Args:
        address: Address of its weights in the version's file.

    """

    def __init__(self, address: int) -> None:
        super().__init__()
        self.kept = PackedWeight(address)

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - torch's name
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> torch.Tensor:
        """Returns the same as the operator: same bits, same strides."""
        if is_plain_call(input):
            state = {
                "_parameters": {"weight": weight, "bias": bias},
                "stride": stride,
                "padding": padding,
                "padding_mode": "zeros",
                "dilation": dilation,
                "groups": groups,
            }
            made = self.kept.convolve(state, input)
            if made is not None:
                return made
        plainly: torch.Tensor = _OPERATOR(
            input, weight, bias, stride, padding, dilation, groups
        )
        return plainly


def _parameter_of(
    program: torch.fx.GraphModule, node: torch.fx.Node
) -> nn.Parameter | None:
    weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    if not isinstance(weight, torch.fx.Node) or weight.op != "get_attr":
        return None
    assert isinstance(weight.target, str)
    found = operator.attrgetter(weight.target)(program)
    return found if type(found) is nn.Parameter else None
