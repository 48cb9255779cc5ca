"""Calls the operators of an exported program as Python programs call them.

A graph calls each operator by its overload (``torch.ops.aten.linear.default``), whose
arguments are matched against a schema and boxed one by one. A Python program calls a
function of torch that reads them directly and then calls the same operator. In a DLRM's
graph of 150 operators the matching takes 160 of 890 us, which made the graph slower
than the module that it was exported from.

An operator is called by its function only if, with the arguments in the graph, the
function can mean no other overload, and takes and returns the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_aten: Final = torch.ops.aten
_neural: Final[Any] = torch._C._nn

_FUNCTIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    _aten.adaptive_avg_pool2d.default: _neural.adaptive_avg_pool2d,
    _aten.avg_pool2d.default: _neural.avg_pool2d,
    _aten.batch_norm.default: torch.batch_norm,
    _aten.bmm.default: torch.bmm,
    _aten.cat.default: torch.cat,
    _aten.conv1d.default: torch.conv1d,
    _aten.conv2d.default: torch.conv2d,
    _aten.dropout.default: torch.dropout,
    _aten.embedding.default: torch.embedding,
    _aten.flatten.using_ints: torch.flatten,
    _aten.gelu.default: _neural.gelu,
    _aten.hardsigmoid.default: _neural.hardsigmoid,
    _aten.hardswish.default: _neural.hardswish,
    _aten.layer_norm.default: torch.layer_norm,
    _aten.linear.default: _neural.linear,
    _aten.matmul.default: torch.matmul,
    _aten.mean.dim: torch.mean,
    _aten.permute.default: torch.permute,
    _aten.relu.default: torch.relu,
    _aten.reshape.default: torch.reshape,
    _aten.scaled_dot_product_attention.default: _neural.scaled_dot_product_attention,
    _aten.select.int: torch.select,
    _aten.sigmoid.default: torch.sigmoid,
    _aten.silu.default: _neural.silu,
    _aten.softmax.int: torch.softmax,
    _aten.squeeze.dim: torch.squeeze,
    _aten.stack.default: torch.stack,
    _aten.tanh.default: torch.tanh,
    _aten.transpose.int: torch.transpose,
    _aten.unsqueeze.default: torch.unsqueeze,
}

_OF_TWO_TENSORS: Final[Mapping[Any, Callable[..., Any]]] = {
    _aten.add.Tensor: torch.add,
    _aten.div.Tensor: torch.div,
    _aten.mul.Tensor: torch.mul,
    _aten.sub.Tensor: torch.sub,
}
"""With a number in place of a tensor, these functions would choose another overload."""


_RANGE: Final = _aten.arange.start_step
"""Without its step the function would choose another overload, and without its device
the default one."""


def call_builtins(program: torch.fx.GraphModule) -> bool:
    """Replaces a program's operators by functions of torch with the same results.

    Where an operator has several results, those that the graph never uses are not taken
    out any more. Returns whether the program must be recompiled.
    """
    changed = False
    for node in reversed(
        program.graph.find_nodes(op="call_function", target=operator.getitem)
    ):
        if not node.users:
            program.graph.erase_node(node)
            changed = True
    for node in program.graph.nodes:
        if node.op == "call_function" and "self" not in node.kwargs:
            function = _function_of(node)
            if function is not None:
                node.target = function
                changed = True
    return changed


def _function_of(node: torch.fx.Node) -> Callable[..., Any] | None:
    if node.target == _RANGE:
        is_whole = len(node.args) == 3 and node.kwargs.get("device") is not None
        return torch.arange if is_whole else None
    if all(map(_is_tensor, node.args)) and node.target in _OF_TWO_TENSORS:
        return _OF_TWO_TENSORS[node.target]
    return _FUNCTIONS.get(node.target)


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, torch.fx.Node) and isinstance(
        argument.meta.get("val"), torch.Tensor
    )
