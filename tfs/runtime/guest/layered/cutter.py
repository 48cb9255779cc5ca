"""Makes stages of a model that was not written in stages.

A model is cut where exactly one live tensor crosses, with the batch as its first
dimension: between the children of an ``nn.Sequential``, or between two operators of a graph
of torch.export or torch.fx. Liveness decides, not the order of submodules: a residual
stream is not cut inside of its block. Before anything is served, each cut is tried: the
answers of rows that were joined there have to be those of the rows alone.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from tfs.core.errors import FailedPrecondition
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.layered.stages import Stage
from tfs.runtime.guest.platforms.torch_callable import Cuttable

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
    module = model.module
    graph = _graph_of(module)
    names = _names_of_places(model, graph, inputs)

    def run(num_rows: int) -> _Run:
        run = _Run(module, graph, now)
        run.of([inputs[name][:num_rows].clone() for name in names])
        return run

    of_two, of_three = run(2).env, run(3).env
    nodes = list(graph.nodes)
    constant, counts = _constant(nodes), _counts(nodes, of_two, of_three)
    crossing = {
        index: node
        for index, node in _crossing(nodes, constant, counts).items()
        if _is_batch(of_two[node], of_three[node])
    }
    if not crossing:
        raise NotCut("nowhere does a single tensor of the batch cross")
    runs = [run(1).took for _ in range(3)]
    took = [min(each[node] for each in runs) for node in nodes]
    stages: list[Stage] = []
    entry, begin = None, 0
    for index in (*_chosen(list(crossing), took, least_s), len(nodes) - 1):
        end = crossing.get(index)
        part = _part_of(nodes[begin : index + 1], entry, end, constant, counts)
        stages.append(fx.GraphModule(module, part))
        entry, begin = end, index + 1
    first, last = stages[0], stages[-1]
    stages[0] = lambda **inputs: first(*[inputs[name] for name in names])
    out_spec = getattr(getattr(graph._codegen, "pytree_info", None), "out_spec", None)
    if out_spec is not None:  # a graph of torch.export ends with a flat tuple
        stages[-1] = lambda x: pytree.tree_unflatten(list(last(x)), out_spec)
    _compare(model, stages, inputs)
    return stages


def _graph_of(module: nn.Module) -> fx.Graph:
    """Returns the operators of a module in order; its own if it was exported."""
    if isinstance(module, fx.GraphModule):
        return module.graph  # whatever mode its modules are in
    if isinstance(module, torch.jit.ScriptModule):
        raise NotCut("TorchScript is computed whole")
    if module._forward_hooks or module._forward_pre_hooks:
        raise NotCut(f"{type(module).__name__} has hooks")
    for name, each in module.named_modules():
        where = name or type(each).__name__
        if each.training:
            raise NotCut(f"{where} is in train mode")
        is_norm = isinstance(each, nn.modules.batchnorm._BatchNorm)
        if is_norm and each.running_mean is None:
            raise NotCut(f"{where} uses statistics of the batch")
    try:
        with _TRACING:
            return _Tracer().trace(module)
    except Exception as error:
        raise NotCut(f"torch.fx cannot trace it: {one_line(error)}") from error


def _names_of_places(
    model: Cuttable, graph: fx.Graph, inputs: Mapping[str, torch.Tensor]
) -> list[str]:
    """Returns the names of the inputs in the order in which the graph takes them."""
    places = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    names = places
    if model.positional or isinstance(model.module, fx.GraphModule):
        rest = [name for name in inputs if name not in model.positional]
        names = [*model.positional, *rest]
    if len(places) != len(names) or set(names) != set(inputs):
        raise NotCut("its inputs are not those of its graph")
    return names


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


class _Run(fx.Interpreter):
    """Runs a graph, and keeps what each node had, and how long it took."""

    def __init__(
        self, module: nn.Module, graph: fx.Graph, now: Callable[[], float]
    ) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self.took: dict[fx.Node, float] = {}
        self._now = now

    def of(self, args: Sequence[torch.Tensor]) -> None:
        try:
            self.run(*args, enable_io_processing=False)
        except Exception as error:
            raise NotCut(f"its graph does not run: {one_line(error)}") from error

    def run_node(self, n: fx.Node) -> Any:
        begun_s = self._now()
        value = super().run_node(n)
        self.took[n] = self._now() - begun_s
        return value


def _constant(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Returns the nodes that no input changes; they are repeated where they are needed."""
    constant: set[fx.Node] = set()
    for node in nodes:
        if node.op == "get_attr" or (
            node.op in ("call_function", "call_method")
            and constant.issuperset(node.all_input_nodes)
        ):
            constant.add(node)
    return constant


def _counts(
    nodes: Sequence[fx.Node], of_two: Mapping[Any, Any], of_three: Mapping[Any, Any]
) -> set[fx.Node]:
    """Returns the nodes that count the batch; it is counted anew behind a cut."""

    def is_count(node: fx.Node) -> bool:
        two, three = of_two.get(node), of_three.get(node)
        if isinstance(two, torch.Size):  # ``x.shape``, for ``x.shape[0]`` alone
            return bool(node.users) and all(map(is_count, node.users))
        return type(two) is int and (two, three) == (2, 3)

    return set(filter(is_count, nodes))


def _crossing(
    nodes: Sequence[fx.Node], constant: Collection[fx.Node], counts: Collection[fx.Node]
) -> dict[int, fx.Node]:
    """Returns the one value that crosses, by the index of the node that it is cut behind."""
    last_use = {node: index for index, node in enumerate(nodes)}
    for index, node in enumerate(nodes):
        if node not in counts:
            last_use.update(dict.fromkeys(node.all_input_nodes, index))
    crossing: dict[int, fx.Node] = {}
    live: set[fx.Node] = set()
    for index, node in enumerate(nodes[:-2]):  # the last one computes the output
        if node not in constant and node not in counts:
            live.add(node)
        live = {each for each in live if last_use[each] > index}
        if len(live) == 1 and node.op not in ("placeholder", "get_attr"):
            (only,) = live
            if only.op != "placeholder":
                crossing[index] = only
    return crossing


def _is_batch(of_two: Any, of_three: Any) -> bool:
    """Whether a value is a tensor whose first dimension, and no other, is the batch."""
    if not isinstance(of_two, torch.Tensor) or not isinstance(of_three, torch.Tensor):
        return False
    two, three = of_two.shape, of_three.shape
    return (two[:1], three[:1]) == ((2,), (3,)) and two[1:] == three[1:]


def _chosen(places: Sequence[int], took: Sequence[float], least_s: float) -> list[int]:
    """Returns the places between which nodes take long enough. Pure."""
    until_s = list(itertools.accumulate(took))
    total_s = until_s[-1]
    least_s = max(least_s, _LEAST_SHARE * total_s)
    chosen: list[int] = []
    begun_s = 0.0
    for place in places:
        if until_s[place] - begun_s >= least_s <= total_s - until_s[place]:
            chosen.append(place)
            begun_s = until_s[place]
    if not chosen:
        raise NotCut(
            f"it has no two stages of {least_s * 1e3:.1f} ms each: one row takes "
            f"{total_s * 1e3:.1f} ms"
        )
    return chosen


def _part_of(
    nodes: Sequence[fx.Node],
    entry: fx.Node | None,
    end: fx.Node | None,
    constant: Collection[fx.Node],
    counts: Collection[fx.Node],
) -> fx.Graph:
    """Returns some nodes as a graph.

    Args:
        nodes: In order.
        entry: The value that it takes; None for the inputs of the model.
        end: The value that it returns; None if ``nodes`` end with the output.
        constant: Nodes that are repeated.
        counts: Nodes that are counted anew.

    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    if entry is not None:
        copies[entry] = graph.placeholder("crossing")

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            if entry is not None and node in counts:
                copies[node] = graph.call_method("size", (copies[entry], 0))
            elif node.op == "placeholder":
                copies[node] = graph.placeholder(node.name)
            else:
                copies[node] = graph.node_copy(node, copy_of)
        return copies[node]

    for node in nodes:
        if node not in constant and (entry is None or node not in counts):
            copy_of(node)
    if end is not None:
        graph.output(copy_of(end))
    return graph


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
    two, one = stages[0](**rows(0, 2)), stages[0](**rows(2, 3))
    for boundary in range(1, len(stages)):
        value = torch.cat([two, one])
        for stage in stages[boundary:]:
            value = stage(value)
        try:
            leaves = pytree.tree_leaves(value)
            for leaf, *parts in zip(leaves, *alone, strict=True):
                _check_close(leaf, torch.cat(parts))
        except Exception as error:
            raise NotCut(
                f"rows that are joined before stage {boundary + 1} of {len(stages)} "
                f"get other answers than alone: {one_line(error)}"
            ) from error
        two, one = stages[boundary](two), stages[boundary](one)


def _check_close(joined: torch.Tensor, expected: torch.Tensor) -> None:
    most = 0.0
    if expected.is_floating_point():
        scale = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
        most = _TOLERANCE.get(expected.dtype, _USUAL_TOLERANCE) * (scale or 1.0)
    torch.testing.assert_close(joined, expected, rtol=0.0, atol=most, equal_nan=True)
