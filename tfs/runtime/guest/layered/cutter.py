"""Makes stages of a model that was not written in stages.

A model is cut where exactly one live tensor crosses, with the batch as its first
dimension: between the children of an ``nn.Sequential``, or between two operators of a graph
of torch.export or torch.fx. Liveness decides, not the order of submodules: a residual
stream is not cut inside of its block. Before anything is served, each cut is tried: the
answers of rows that were joined there have to be those of the rows alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tfs.core.errors import FailedPrecondition
from tfs.runtime.guest.fault_text import one_line
from tfs.runtime.guest.layered.cuttable import Cuttable
from tfs.runtime.guest.layered.stage_run import Chain, Stage

LEAST_STAGE_S: Final = 1e-3
"""Less than that a stage does not take: between two stages others may join, which is
looked at in Python."""

_LEAST_SHARE: Final = 0.03  # of the time of one row

_TOLERANCE: Final = {torch.bfloat16: 3e-2, torch.float16: 5e-3}
_USUAL_TOLERANCE: Final = 1e-4  # relative to the largest value of an output


class NotCut(FailedPrecondition):
    """A model stays whole; the message says why."""


def cut(
    model: Cuttable,
    inputs: Mapping[str, torch.Tensor],
    least_s: float = LEAST_STAGE_S,
    now: Callable[[], float] = time.perf_counter,
) -> list[Stage]:
    """Returns a model as two stages or more; the first takes ``inputs`` by name.

    Blocks for some calls of the model. Enter inference mode before.

    Args:
        model: In eval mode.
        inputs: Three rows that differ, as a user might send them.
        least_s: Least seconds of a stage.
        now: Tells the time.

    Raises:
        NotCut: It cannot be cut, or its rows depend on each other.

    """
    _refuse_batch_statistics(model.module)
    pieces = _pieces_of_graph(model, inputs)
    stages = _grouped(pieces, inputs, least_s, now)
    _compare(model, stages, inputs)
    return stages


def _refuse_batch_statistics(module: nn.Module) -> None:
    if isinstance(module, fx.GraphModule):
        return  # its graph says what is computed, whatever mode its modules are in
    for name, each in module.named_modules():
        where = name or type(each).__name__
        if each.training:
            raise NotCut(f"{where} is in train mode")
        if (
            isinstance(each, nn.modules.batchnorm._BatchNorm)
            and each.running_mean is None
        ):
            raise NotCut(f"{where} uses statistics of the batch")


def _pieces_of_graph(
    model: Cuttable, inputs: Mapping[str, torch.Tensor]
) -> list[Stage]:
    """Returns the parts of a model's graph between the places where it may be cut."""
    module = model.module
    is_exported = isinstance(module, fx.GraphModule)
    # An exported graph checks its inputs by itself, in its first operator.
    if not is_exported and (module._forward_hooks or module._forward_pre_hooks):
        raise NotCut(f"{type(module).__name__} has hooks")
    if isinstance(module, torch.jit.ScriptModule):
        raise NotCut("TorchScript is computed whole")
    graph = getattr(module, "graph", None)
    if not isinstance(graph, fx.Graph):
        try:
            with _TRACING:
                graph = _Tracer().trace(module)
        except Exception as error:
            raise NotCut(f"torch.fx cannot trace it: {one_line(error)}") from error
    nodes = list(graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    if model.positional or is_exported or len(places) == len(inputs) == 1:
        rest = [name for name in inputs if name not in model.positional]
        names = [*model.positional, *rest]
    else:
        names = [str(node.target) for node in places if node.target in inputs]
    if len(places) != len(names) or set(names) != set(inputs):
        raise NotCut("its inputs are not those of its graph")
    of_two, of_three = (
        _Values(module, graph).of([inputs[name][:rows] for name in names])
        for rows in (2, 3)
    )
    constant: set[fx.Node] = set()
    rows_nodes: set[fx.Node] = set()
    for node in nodes:
        if node.op == "get_attr" or (
            node.op in ("call_function", "call_method")
            and all(source in constant for source in node.all_input_nodes)
        ):
            constant.add(node)
        elif type(of_two.get(node)) is int and (of_two[node], of_three[node]) == (2, 3):
            rows_nodes.add(node)
    # ``x.shape``, where only ``x.shape[0]`` is used.
    rows_nodes |= {
        node
        for node in nodes
        if isinstance(of_two.get(node), torch.Size) and node.users.keys() <= rows_nodes
    }
    last_use = {node: index for index, node in enumerate(nodes)}
    for index, node in enumerate(nodes):
        for source in node.all_input_nodes:
            if node not in rows_nodes:  # the batch may be counted anywhere
                last_use[source] = index
    pieces: list[Stage] = []
    live: set[fx.Node] = set()
    entry: fx.Node | None = None
    begin = 0
    for index, node in enumerate(nodes):
        if node not in constant and node not in rows_nodes:
            live.add(node)
        live = {each for each in live if last_use[each] > index}
        if len(live) != 1 or node.op in ("placeholder", "get_attr", "output"):
            continue
        if nodes[index + 1].op == "output":
            break
        (only,) = live
        if only.op == "placeholder" or not _is_batch(of_two[only], of_three[only]):
            continue
        part = _Part(module, constant, rows_nodes)
        pieces.append(part.between(nodes[begin : index + 1], names, entry, only))
        entry, begin = only, index + 1
    if not pieces:
        raise NotCut("nowhere does a single tensor of the batch cross")
    part = _Part(module, constant, rows_nodes)
    last = part.between(nodes[begin:], names, entry, None)
    out_spec = getattr(getattr(graph._codegen, "pytree_info", None), "out_spec", None)
    if out_spec is None:
        return [*pieces, last]
    # A graph of torch.export ends with a flat tuple.
    return [*pieces, lambda x: pytree.tree_unflatten(list(last(x)), out_spec)]


def _is_batch(of_two: Any, of_three: Any) -> bool:
    """Whether a value is a tensor whose first dimension, and no other, is the batch."""
    if not isinstance(of_two, torch.Tensor) or not isinstance(of_three, torch.Tensor):
        return False
    two, three = of_two.shape, of_three.shape
    return (two[:1], three[:1]) == ((2,), (3,)) and two[1:] == three[1:]


_TRACING: Final = threading.Lock()
"""A trace patches modules of the whole process, so there is one at a time."""


class _Tracer(fx.Tracer):
    """Takes the children of a sequence whole, and lets those of other threads alone."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        parent = self.root.get_submodule(module_qualified_name.rpartition(".")[0])
        if nn.Sequential in (type(m), type(parent)):
            return type(m) is not nn.Sequential
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


class _Values(fx.Interpreter):
    """Runs a graph, and keeps what each node had."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)

    def of(self, args: Sequence[torch.Tensor]) -> dict[fx.Node, Any]:
        """Returns the value of each node."""
        try:
            self.run(*[each.clone() for each in args], enable_io_processing=False)
        except Exception as error:
            raise NotCut(f"its graph does not run: {one_line(error)}") from error
        return dict(self.env)


class _Part:
    """Makes a module of some nodes of a graph; parameters are shared, not copied.

    Args:
        root: Has the parameters.
        constant: Nodes that do not depend on inputs; they are repeated where needed.
        rows_nodes: Nodes that count the batch; it is counted anew where needed.

    """

    def __init__(
        self, root: nn.Module, constant: set[fx.Node], rows_nodes: set[fx.Node]
    ) -> None:
        self._root = root
        self._constant = constant
        self._rows_nodes = rows_nodes
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._entry: fx.Node | None = None

    def between(
        self,
        nodes: Sequence[fx.Node],
        names: Sequence[str],
        entry: fx.Node | None,
        end: fx.Node | None,
    ) -> Stage:
        """Returns what computes ``nodes``.

        Args:
            nodes: In order.
            names: The inputs of the model; taken if there is no ``entry``.
            entry: The value that is taken.
            end: The value that is returned; None for the output of the graph.

        """
        if entry is not None:
            self._entry = self._copies[entry] = self._graph.placeholder("crossing")
        for node in nodes:
            if node.op == "placeholder":
                self._copies[node] = self._graph.placeholder(node.name)
            elif node not in self._constant and (
                entry is None or node not in self._rows_nodes
            ):
                self._copies[node] = self._graph.node_copy(node, self._copy_of)
        if end is not None:
            self._graph.output(self._copy_of(end))
        module = fx.GraphModule(self._root, self._graph)
        if entry is not None:
            return module
        return lambda **inputs: module(*[inputs[name] for name in names])

    def _copy_of(self, node: fx.Node) -> fx.Node:
        copied = self._copies.get(node)
        if copied is None:
            if node in self._rows_nodes and self._entry is not None:
                copied = self._graph.call_method("size", (self._entry, 0))
            else:
                copied = self._graph.node_copy(node, self._copy_of)
            self._copies[node] = copied
        return copied


def _grouped(
    pieces: Sequence[Stage],
    inputs: Mapping[str, torch.Tensor],
    least_s: float,
    now: Callable[[], float],
) -> list[Stage]:
    """Returns stages that take long enough, of pieces that may take less."""
    took = [float("inf")] * len(pieces)
    first = {name: rows[:1] for name, rows in inputs.items()}
    for _ in range(3):
        value: Any = None
        for index, piece in enumerate(pieces):
            begun_s = now()
            value = piece(value) if index else piece(**first)
            took[index] = min(took[index], now() - begun_s)
    total_s = sum(took)
    least_s = max(least_s, _LEAST_SHARE * total_s)
    stages: list[Stage] = []
    group: list[Stage] = []
    group_s, rest_s = 0.0, total_s
    for piece, piece_s in zip(pieces, took, strict=True):
        group.append(piece)
        group_s += piece_s
        rest_s -= piece_s
        if group_s >= least_s and rest_s >= least_s:
            stages.append(Chain(group))
            group, group_s = [], 0.0
    stages.append(Chain(group))
    if len(stages) < 2:
        raise NotCut(
            f"it has no two stages of {least_s * 1e3:.1f} ms each: one row takes "
            f"{total_s * 1e3:.1f} ms"
        )
    return stages


def _compare(
    model: Cuttable, stages: Sequence[Stage], inputs: Mapping[str, torch.Tensor]
) -> None:
    """Joins two rows with one before each stage, and compares with the rows alone.

    Raises:
        NotCut: They differ.

    """

    def rows(start: int, stop: int) -> dict[str, torch.Tensor]:
        return {name: each[start:stop].clone() for name, each in inputs.items()}

    alone = [pytree.tree_leaves(model(**rows(i, i + 1))) for i in range(3)]
    for boundary in range(1, len(stages)):
        two, one = stages[0](**rows(0, 2)), stages[0](**rows(2, 3))
        for stage in stages[1:boundary]:
            two, one = stage(two), stage(one)
        value = torch.cat([two, one])
        for stage in stages[boundary:]:
            value = stage(value)
        leaves = pytree.tree_leaves(value)
        for index, leaf in enumerate(leaves):
            difference = _difference(leaf, [each[index] for each in alone])
            if difference is not None:
                raise NotCut(
                    f"rows that are joined before stage {boundary + 1} of "
                    f"{len(stages)} get other answers than alone ({difference})"
                )


def _difference(joined: Any, alone: Sequence[Any]) -> str | None:
    """Returns by how much joined rows differ from single ones; None if by too little."""
    if not isinstance(joined, torch.Tensor) or joined.shape[:1] != (len(alone),):
        return "an output is no tensor with the batch first"
    if joined.shape[1:] != alone[0].shape[1:]:
        return "their shapes differ"
    expected = torch.cat(list(alone))
    if not joined.is_floating_point():
        return None if bool((joined == expected).all()) else "whole numbers differ"
    scale = float(expected.abs().max()) or 1.0
    worst = float((joined - expected).abs().max()) / scale
    most = _TOLERANCE.get(joined.dtype, _USUAL_TOLERANCE)
    return None if worst <= most else f"by {worst:.1e} of the largest"
