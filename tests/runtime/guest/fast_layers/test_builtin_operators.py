"""Operators of programs, called by functions of torch: the same operators and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.guest.bits import bits
from tfs.runtime.guest.fast_layers import builtin_operators
from tfs.runtime.guest.fast_layers.builtin_operators import call_builtins
from tfs.runtime.guest.fast_layers.quickening import quicken_program

aten = torch.ops.aten


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


CPU = torch.device("cpu")
X = drawn(2, 4, 6)
IMAGES = drawn(2, 4, 9, 8)
FIVE = drawn(4, 1, 3, 3)
IDS = torch.tensor([[1, 0], [2, 3]])
WIDTHS = (drawn(4).abs(), drawn(4), drawn(4), drawn(4).abs())

SAMPLES: Mapping[Any, Sequence[tuple[list[Any], dict[str, Any]]]] = {
    aten.adaptive_avg_pool2d.default: [([IMAGES, [1, 1]], {}), ([IMAGES, [2, 3]], {})],
    aten.add.Tensor: [([X, X], {}), ([X, X], {"alpha": 2}), ([X, drawn(6)], {})],
    aten.arange.start_step: [
        ([0, 12, 4], {"dtype": torch.int64, "device": CPU, "pin_memory": False}),
        ([0, 5, 1], {"device": CPU, "pin_memory": False}),
        ([0.5, 3.0, 0.25], {"device": CPU, "pin_memory": False}),
    ],
    aten.avg_pool2d.default: [
        ([IMAGES, [2, 2]], {}),
        ([IMAGES, [3, 3], [2, 2], [1, 1], True, False], {}),
    ],
    aten.batch_norm.default: [
        ([IMAGES, *WIDTHS, False, 0.1, 1e-5, True], {}),
        ([IMAGES, None, None, *WIDTHS[2:], False, 0.1, 1e-5, False], {}),
    ],
    aten.bmm.default: [([X, X.transpose(1, 2)], {})],
    aten.cat.default: [([[X, X]], {}), ([[X, X], -1], {})],
    aten.conv1d.default: [
        ([X, drawn(3, 4, 3)], {}),
        ([X, drawn(3, 4, 3), None, [2]], {}),
    ],
    aten.conv2d.default: [
        ([IMAGES, FIVE, drawn(4), [1, 1], [1, 1], [1, 1], 4], {}),
        ([IMAGES, drawn(5, 4, 3, 3)], {}),
    ],
    aten.div.Tensor: [([X, X], {})],
    aten.dropout.default: [([X, 0.5, False], {})],
    aten.embedding.default: [([drawn(5, 3), IDS], {}), ([drawn(5, 3), IDS, 0], {})],
    aten.flatten.using_ints: [([IMAGES, 1], {}), ([IMAGES, 1, 2], {}), ([X], {})],
    aten.gelu.default: [([X], {}), ([X], {"approximate": "tanh"})],
    aten.hardsigmoid.default: [([X], {})],
    aten.hardswish.default: [([X], {})],
    aten.layer_norm.default: [
        ([X, [6], drawn(6), drawn(6), 1e-12], {}),
        ([X, [4, 6]], {}),
    ],
    aten.linear.default: [([X, drawn(3, 6)], {}), ([X, drawn(3, 6), drawn(3)], {})],
    aten.matmul.default: [([X, drawn(6, 2)], {}), ([X, drawn(6)], {})],
    aten.mean.dim: [([IMAGES, [2, 3]], {}), ([X, [-1], True], {})],
    aten.mul.Tensor: [([X, X], {}), ([X, IDS.sum()], {})],
    aten.permute.default: [([X, [2, 0, 1]], {})],
    aten.relu.default: [([X], {})],
    aten.reshape.default: [([X, [2, -1]], {}), ([X, [48]], {})],
    aten.scaled_dot_product_attention.default: [
        ([IMAGES, IMAGES, IMAGES], {}),
        ([IMAGES, IMAGES, IMAGES, drawn(2, 1, 9, 9) > 0], {"scale": 0.3}),
        ([IMAGES, IMAGES, IMAGES, None, 0.0, True], {}),
    ],
    aten.select.int: [([X, 1, 2], {}), ([X, -1, -1], {})],
    aten.sigmoid.default: [([X], {})],
    aten.silu.default: [([X], {})],
    aten.softmax.int: [([X, -1], {}), ([X, 1, torch.float64], {})],
    aten.squeeze.dim: [([drawn(3, 1), 1], {}), ([X, 1], {})],
    aten.stack.default: [([[X, X]], {}), ([[X, X], 1], {})],
    aten.sub.Tensor: [([X, X], {}), ([X, X], {"alpha": 3})],
    aten.tanh.default: [([X], {})],
    aten.transpose.int: [([X, 1, 2], {}), ([X, -1, 0], {})],
    aten.unsqueeze.default: [([X, 1], {}), ([X, -1], {})],
}
CASES = [(op, *case) for op, cases in SAMPLES.items() for case in cases]


def program_of(
    op: Any, args: list[Any], kwargs: dict[str, Any]
) -> torch.fx.GraphModule:
    """Returns a program of one operator, whose tensors are its own."""
    graph, tensors = torch.fx.Graph(), torch.nn.Module()

    def put(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = f"t{len(tensors._buffers)}"
            tensors.register_buffer(name, value)
            node = graph.get_attr(name)
            node.meta["val"] = value
            return node
        if isinstance(value, list):
            return [put(each) for each in value]
        return value

    graph.output(graph.call_function(op, tuple(map(put, args)), kwargs))
    return torch.fx.GraphModule(tensors, graph)


def run(program: torch.fx.GraphModule) -> tuple[torch.Tensor, list[object]]:
    """Returns a program's output, and what reached torch's kernels on the way."""
    seen: list[object] = []

    def note(
        mode: object, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [each for each in args if not isinstance(each, torch.Tensor)]
        seen.append((func, plain, kwargs))
        return func(*args, **(kwargs or {}))

    noting: Any = type("Noting", (TorchDispatchMode,), {"__torch_dispatch__": note})
    with torch.inference_mode(), noting():
        return program(), seen


def test_every_function_is_tried() -> None:
    """What is called by a function was seen to be the same with it."""
    tables = builtin_operators._FUNCTIONS, builtin_operators._OF_TWO_TENSORS
    ops = {op for table in tables for op in table}
    assert {*ops, builtin_operators._RANGE} == set(SAMPLES)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"), CASES, ids=[str(case[0]) for case in CASES]
)
def test_a_function_calls_the_operator_it_stands_for(
    op: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """The same kernels get the same arguments, and give the same bits."""
    program = program_of(op, args, kwargs)
    expected, theirs = run(program)
    assert call_builtins(program)
    program.recompile()
    assert not program.graph.find_nodes(op="call_function", target=op)
    given, ours = run(program)
    assert bits(given.to(torch.float64)) == bits(expected.to(torch.float64))
    assert (given.dtype, given.stride()) == (expected.dtype, expected.stride())
    assert str(ours) == str(theirs)


def test_arithmetic_with_numbers_stays_as_it_is() -> None:
    """Given a number, a function means another overload."""
    assert not call_builtins(program_of(aten.add.Tensor, [X, 2], {}))
    assert not call_builtins(program_of(aten.mul.Tensor, [X, 0.5], {}))


def test_a_range_that_leaves_something_out_stays_as_it_is() -> None:
    """Its function means another overload then, or makes it on a default device."""
    arange = aten.arange.start_step
    assert not call_builtins(program_of(arange, [0, 5], {"device": CPU}))
    assert not call_builtins(program_of(arange, [0, 5, 1], {}))


def test_results_that_nobody_uses_are_not_taken() -> None:
    """An embedding bag has four, of which a model uses one."""

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x.chunk(2)[0])

    program = torch.export.export(Halves(), (drawn(4, 3),)).module()
    assert isinstance(program, torch.fx.GraphModule)
    with torch.inference_mode():
        expected = program(drawn(4, 3))
        quicken_program(program)
        assert bits(program(drawn(4, 3))) == bits(expected)
    assert program.code.count("[1]") == 0
    assert "torch.relu(" in program.code


def test_a_program_computes_with_other_sizes_as_before() -> None:
    """Sizes that callers choose reach the functions as numbers."""
    rows = torch.export.Dim("rows")

    class Shaped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.reshape(x.shape[0] * 2, -1)
            return torch.softmax(flat + torch.arange(flat.shape[1]), -1) * flat

    program = torch.export.export(Shaped(), (X,), dynamic_shapes=({0: rows},)).module()
    assert isinstance(program, torch.fx.GraphModule)
    other = drawn(5, 4, 6)
    with torch.inference_mode():
        expected = program(other)
        quicken_program(program)
        assert bits(program(other)) == bits(expected)
