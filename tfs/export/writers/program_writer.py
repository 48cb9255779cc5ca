"""Writes a module as one graph, by torch.export, or compiled by AOTInductor.

AOTInductor calls torch's own kernel for each ``aten::embedding_bag``, whatever is around it:
in a recommendation model, three quarters of the time. So bags of equal length are written as
lookups and sums, which a compiler fuses.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from tfs.core.dtype import STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, Signature
from tfs.core.version.version_layout import PROGRAM
from tfs.export.packaging.archive_file import archive_file
from tfs.export.packaging.package import quiet
from tfs.export.signatures.signature import Derived
from tfs.export.values import Values, shape_of
from tfs.export.writers.described_module import DescribedModule
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.platforms.module_call import flattening, nesting

_SUM, _MEAN = 0, 1


def plain_bags(program: torch.export.ExportedProgram) -> None:
    """Replaces each bag of a graph that has indices [rows, bag]; others stay."""
    graph = program.graph_module.graph
    aten = torch.ops.aten
    for node in list(graph.nodes):
        if node.target is not aten.embedding_bag.padding_idx:
            continue
        indices = _rows_of(node)
        users = list(node.users)
        if indices is None or any(each.args[1] != 0 for each in users if each.users):
            continue
        combine = aten.mean.dim if node.args[4] == _MEAN else aten.sum.dim_IntList
        with graph.inserting_before(node):
            found = graph.call_function(aten.embedding.default, (node.args[0], indices))
            combined = graph.call_function(combine, (found, [1]))
        for each in users:
            if each.users:
                combined.meta = dict(each.meta)
                each.replace_all_uses_with(combined)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _rows_of(node: Node) -> Node | None:
    """Returns the indices [rows, bag] of a bag that sums or averages them plainly."""
    _, flat, offsets, _, mode, _, weights, last, padding = (*node.args, *[None] * 9)[:9]
    if (
        mode not in (_SUM, _MEAN)
        or weights is not None
        or last
        or padding not in (None, -1)
    ):
        return None
    aten = torch.ops.aten
    if not (
        isinstance(flat, Node)
        and flat.target is aten.reshape.default
        and flat.args[1] == [-1]
        and isinstance(offsets, Node)
        and offsets.target is aten.arange.start_step
        and offsets.args[0] == 0
    ):
        return None
    indices = flat.args[0]
    if not isinstance(indices, Node) or indices.meta["val"].dim() != 2:
        return None
    step = offsets.args[2] if len(offsets.args) > 2 else 1
    return indices if indices.meta["val"].shape[1] == step else None


def write_program(folder: str, module: DescribedModule) -> dict[str, object]:
    """Writes a module as one graph; returns the manifest's entry.

    Raises:
        InvalidArgument: It cannot be stored in this form; says why.

    """
    with _quietly():
        program, entry = _program(module)
        try:
            with archive_file(os.path.join(folder, PROGRAM)) as file:
                torch.export.save(program, file)
        except OSError:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"the graph of {module.name} cannot be written: {error}\nReturn tensors, "
                "dicts and tuples from it, or save it as torch_package, which takes any "
                "Python"
            ) from error
    return entry


def write_compiled(folder: str, module: DescribedModule) -> dict[str, object]:
    """Writes a module as a graph that AOTInductor compiled for this kind of processor.

    Raises:
        InvalidArgument: It cannot be stored in this form; says why.

    """
    with _quietly():
        program, entry = _program(module)
        plain_bags(program)
        from torch._inductor import aoti_compile_and_package
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            aoti_compile_and_package(
                program, package_path=os.path.join(folder, PROGRAM)
            )
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, InvalidCxxCompiler):
                cause = cause.__cause__ or cause.__context__
            if cause is not None:
                raise InvalidArgument(
                    f"{module.name} cannot be compiled here without a C++ compiler: "
                    "install g++, or name yours in the environment variable CXX"
                ) from error
            raise InvalidArgument(
                f"{module.name} cannot be compiled: {one_line(error)}. Save it as "
                "torch_export, or as torch_package, which takes any Python"
            ) from error
    return entry


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Holds back the pages of half-traced code that torch prints of what is no graph."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        quiet("torch"),
    ):
        warnings.simplefilter("ignore")
        yield


def _program(
    module: DescribedModule,
) -> tuple[torch.export.ExportedProgram, dict[str, object]]:
    """Returns a module as a graph, and what the manifest's entry says of calling it.

    Graphs do not broadcast: an input always has one row, or as many as the others. If
    callers may leave an input out, and the model allows it, the input has as many rows
    as the others, and its default of one row is repeated. Otherwise the default stays
    as it is.

    Raises:
        InvalidArgument: The module cannot be made a graph, or only one of fixed sizes.

    """
    _refuse_strings(module)
    if len(module.options) != 1 or "methods" in module.entry:
        raise InvalidArgument(f"{module.name}: torch_export stores one method, forward")
    (derived,) = module.derived.values()
    repeated = _repeated(derived)
    if repeated:
        rows = {
            name: value.expand(_num_rows(derived), *value.shape[1:]).contiguous()
            if name in repeated and isinstance(value, torch.Tensor)
            else value
            for name, value in derived.example.items()
        }
        try:
            program, entry = _exported(module, derived, rows, repeated)
        except InvalidArgument:
            pass
        else:
            return program, {**entry, "repeated": repeated}
    return _exported(module, derived, derived.example, ())


def _repeated(derived: Derived) -> list[str]:
    """Returns the optional inputs whose default is one row."""
    signature = derived.signature
    if not signature.batched or len(signature.defaults) == len(signature.inputs):
        return []
    num_rows = _num_rows(derived)
    return [
        name
        for name, view in signature.defaults.items()
        if view.shape[:1] == (1,)
        and shape_of(derived.example[name])[0] in (1, num_rows)
    ]


def _num_rows(derived: Derived) -> int:
    return next(
        shape_of(value)[0]
        for name, value in derived.example.items()
        if name not in derived.signature.defaults
    )


def _exported(
    module: DescribedModule, derived: Derived, example: Values, rows: Collection[str]
) -> tuple[torch.export.ExportedProgram, dict[str, object]]:
    """Has torch make the graph; ``rows`` are optional inputs with as many rows as others."""
    name = module.name
    names = list(example)
    shapes: dict[str, Any] = _dynamic_shapes(derived.signature, rows)
    what: tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
    what = (module.module, (), dict(example))
    entry: dict[str, object] = {}
    if module.entry or derived.is_own_type or _takes_any_name(module.module):
        # A graph has no form of its own for containers, classes and **inputs.
        what = (_Flat(module.module, derived), tuple(example.values()), {})
        shapes = {"tensors": tuple(shapes[name] for name in names)}
        entry["args"] = names
    try:
        program = torch.export.export(*what, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise InvalidArgument(
            f"{name} cannot be exported as one graph: {error}\nSave it as "
            "torch_package, which takes any Python"
        ) from error
    refuse_fixed(program, names, derived.signature, name, rows)
    return program, entry


def _refuse_strings(module: DescribedModule) -> None:
    for derived in module.derived.values():
        signature = derived.signature
        for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
            for name, spec in specs.items():
                if spec.dtype is STRING:
                    raise InvalidArgument(
                        f"{kind} {name!r} of {module.name} holds strings, and graphs "
                        "take and give numbers only: save it as torch_package"
                    )


def _takes_any_name(module: nn.Module) -> bool:
    parameters = inspect.signature(module.forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD for each in parameters)


class _Flat(nn.Module):
    """A module that takes tensors in order and returns a flat result."""

    def __init__(self, module: nn.Module, derived: Derived) -> None:
        super().__init__()
        self.module = module
        self._names = tuple(derived.example)
        self._function = flattening(nesting(module, derived.forms))

    def forward(self, *tensors: torch.Tensor) -> object:
        """Returns the module's outputs, by name or in order."""
        return self._function(**dict(zip(self._names, tensors, strict=True)))


def _dynamic_shapes(
    signature: Signature, rows: Collection[str]
) -> dict[str, dict[int, Any]]:
    """Returns torch.export's description of the free dimensions.

    The batch is one symbol everywhere; in optional inputs only if they are in ``rows``.
    torch finds out by itself which of the other dimensions must be equal.
    """
    batch = torch.export.Dim("batch") if signature.batched else None
    shapes: dict[str, dict[int, Any]] = {}
    for name, spec in signature.inputs.items():
        shapes[name] = {
            index: batch
            if index == 0
            and batch is not None
            and (name not in signature.defaults or name in rows)
            else torch.export.Dim.AUTO
            for index, size in enumerate(spec.shape)
            if size == FREE
        }
    return shapes


def refuse_fixed(
    program: ExportedProgram,
    names: Sequence[str],
    signature: Signature,
    name: str,
    rows: Collection[str] = (),
) -> None:
    """Raises if a free dimension became one size.

    Args:
        program: The program that torch.export made.
        names: Names of its inputs, in the order in which it was given them.
        signature: The signature that callers will read.
        name: The name of the model, for messages.
        rows: Optional inputs that are checked as well; others are not.

    Raises:
        InvalidArgument: Names the inputs, their dimensions and sizes.

    """
    # Imported here because it brings a whole algebra system, which torch.export needs
    # anyway.
    from torch.fx.experimental.symbolic_shapes import is_concrete_int

    taken = {
        node.name: node.meta.get("val")
        for node in program.graph.nodes
        if node.op == "placeholder"
    }
    fixed = []
    for input_name, placeholder in zip(
        names, program.graph_signature.user_inputs, strict=True
    ):
        value = taken.get(str(placeholder))
        is_left_alone = input_name in signature.defaults and input_name not in rows
        if not isinstance(value, torch.Tensor) or is_left_alone:
            continue
        for index, size in enumerate(signature.inputs[input_name].shape):
            if size == FREE and is_concrete_int(value.shape[index]):
                fixed.append(
                    f"dimension {index} of {input_name!r} is {value.shape[index]}"
                )
    if fixed:
        raise InvalidArgument(
            f"the graph of {name} takes one size only where callers may choose: "
            f"{', '.join(fixed)}. Its code makes a number of it, or the example has 1 "
            "there: compute with the size as a tensor's shape, give an example of 2 or "
            "more, leave it out of dynamic, or save the model as torch_package"
        )
