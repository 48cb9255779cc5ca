"""Finds a signature by calling the module, instead of asking the author for it.

A second call with another number of rows shows that dimension 0 really is the
batch, and a third with other sizes which output dimensions follow the free ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from tfs.core.dtype import DTYPES, FLOAT32, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import (
    FREE,
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView
from tfs.export.calling import name_inputs
from tfs.export.kept_state import KeptState
from tfs.export.module_calls import SINGLE_OUTPUT, ModuleCalls
from tfs.export.signature_options import SignatureOptions
from tfs.export.values import (
    Value,
    Values,
    dtype_of,
    first_row,
    is_strings,
    joined,
    shape_of,
    view_of,
)
from tfs.runtime.guest.guest_model import one_line
from tfs.runtime.guest.nested_values import Form

log = logging.getLogger(__name__)

_EXAMPLE_DTYPES: Final = frozenset(
    dtype
    for name, dtype in DTYPES.items()
    if not name.startswith(("complex", "float8"))
)
"""What values of a tf.Example are converted to."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A signature and the example it was found with.

    Attributes:
        signature: Complete but for the example's place in the version.
        example: Inputs by name; at least two rows that differ, where the author's
            example could be turned into that.
        outputs: What the module gave for ``example``.
        forms: How arguments that are containers are made of inputs.
        is_nested: Whether the module's result has to be made flat.
        is_own_type: Whether it is an object of a class that is not Python's or torch's,
            a named tuple say.

    """

    signature: Signature
    example: Values
    outputs: Values
    forms: Mapping[str, Form] = field(default_factory=dict)
    is_nested: bool = False
    is_own_type: bool = False


def derive(
    module: nn.Module, options: SignatureOptions, kept: KeptState | None = None
) -> Derived:
    """Calls the module (which is in evaluation mode) and writes down its signature.

    Its state is put back after each call: as ``kept`` has it, else as it is now.

    Raises:
        InvalidArgument: The call fails, its result cannot be served, or the options
            do not fit it; says what to change.

    """
    where = f"{type(module).__name__}.{options.call}"
    function = getattr(module, options.call, None)
    # What nn.Module has in the place of a forward that nobody wrote.
    absent = "_forward_unimplemented"
    if not callable(function) or getattr(function, "__name__", "") == absent:
        raise InvalidArgument(f"{where} does not exist: a server would call it")
    _check_defaults(options, where)
    example, forms = name_inputs(
        function, options.example_inputs, where, options.defaults
    )
    left_out = options.defaults.keys() - example.keys()
    for name, value in options.defaults.items():
        example.setdefault(name, value)
    _check_options(options, example, where)
    calls = ModuleCalls(module, options, forms, kept or KeptState(module))
    outputs = calls.first(example)
    _check_dynamic(options, example, outputs, where)
    observed = [outputs]
    if options.batched:
        rows = _check_rows(example, outputs, options, where)
        batch = _with_rows(example, rows, options, left_out)
        example, outputs, other = _two_rows(calls, example, outputs, rows, batch)
        if other is None:
            raise InvalidArgument(
                f"{where} fails with another number of rows than its example's "
                f"{rows}; give an example whose dimension 0 is the batch, or pass "
                f"batched=False. It fails with {one_line(calls.last_error)}"
            )
        observed = [outputs, other]
        _check_batch(outputs, other, where)
    unsure = False
    if any(options.dynamic.get(name) for name in example):
        resized = _other_sizes(calls, example, options)
        unsure = resized is None
        observed += [] if resized is None else [resized]
    return Derived(
        _signature(example, observed, options, where, unsure=unsure),
        example,
        outputs,
        forms,
        is_nested=calls.is_nested,
        is_own_type=calls.is_own_type,
    )


def _signature(
    example: Values,
    observed: Sequence[Values],
    options: SignatureOptions,
    where: str,
    *,
    unsure: bool,
) -> Signature:
    """Returns the signature of what was seen.

    Args:
        example: Inputs by name.
        observed: Outputs of calls with various numbers of rows and sizes.
        options: The author's.
        where: What was called, for messages.
        unsure: Whether the free sizes of inputs could not be varied.

    """
    method = Method(options.method)
    inputs = {
        name: _spec(value, options, name, where) for name, value in example.items()
    }
    outputs = {
        name: _output_spec(
            name,
            [each[name] for each in observed],
            options,
            unsure,
            () if name in inputs else options.dynamic.get(name, ()),
        )
        for name in observed[0]
    }
    _check_method(method, outputs, options, where)
    return Signature(
        method=method,
        inputs=inputs,
        outputs=outputs,
        defaults=_default_views(inputs, options, where),
        labels=tuple(options.labels),
        features=_features(method, inputs, options, where),
        batched=options.batched,
    )


def _default_views(
    inputs: Mapping[str, TensorSpec], options: SignatureOptions, where: str
) -> dict[str, TensorView]:
    """Returns what stands for inputs that callers leave out; it must fit them."""
    defaults = {name: view_of(value) for name, value in options.defaults.items()}
    for name, default in defaults.items():
        spec = inputs[name]
        if default.dtype is not spec.dtype or not spec.accepts(default.shape):
            raise InvalidArgument(
                f"the default of {name!r} of {where} is {default.dtype}"
                f"{list(default.shape)}, its example says {spec}: callers that leave "
                "it out would be refused"
            )
    return defaults


def _check_defaults(options: SignatureOptions, where: str) -> None:
    # Callers without a type checker pass numbers.
    for name, value in options.defaults.items():
        if not isinstance(value, torch.Tensor) and not is_strings(value):
            raise InvalidArgument(
                f"the default of {name!r} of {where} is a {type(value).__name__}; use "
                "a torch.Tensor of one row, such as torch.ones(1), or a list of strings"
            )


def _check_options(options: SignatureOptions, example: Values, where: str) -> None:
    mentioned = {
        "pad": options.pad,
        "mask": options.mask,
        "defaults": options.defaults,
    }
    for option, names in mentioned.items():
        for name in names:
            if name not in example:
                raise InvalidArgument(
                    f"{option} names {name!r}, which is no input of {where}: "
                    f"{', '.join(example)}"
                )
    for name, target in options.mask.items():
        if target not in example or name not in options.pad:
            raise InvalidArgument(
                f"mask {target!r} of {name!r} needs an input of that name, and a pad "
                "value for the padded one"
            )
    for name in options.pad:
        if not any(dimension > 0 for dimension in options.dynamic.get(name, ())):
            raise InvalidArgument(
                f"pad of {name!r} of {where} fills up rows of different sizes, and "
                f"callers may send one size only: say dynamic={{{name!r}: [1]}}, or "
                "leave pad out"
            )


def _check_dynamic(
    options: SignatureOptions, example: Values, outputs: Values, where: str
) -> None:
    for name, dimensions in options.dynamic.items():
        value = example.get(name, outputs.get(name))
        if value is None:
            raise InvalidArgument(
                f"dynamic names {name!r}, which is no input or output of {where}: "
                f"{', '.join((*example, *outputs))}"
            )
        rank = len(shape_of(value))
        for dimension in dimensions:
            if not 0 <= dimension < rank:
                raise InvalidArgument(
                    f"dynamic dimension {dimension} of {name!r}: it has {rank} "
                    "dimensions"
                )


def _check_rows(
    example: Values, outputs: Values, options: SignatureOptions, where: str
) -> int:
    """Returns the number of rows all inputs and outputs share."""
    sizes = {
        name: next(iter(shape_of(value)), None)
        for name, value in example.items()
        if name not in options.defaults
    }
    shared = set(sizes.values())
    if len(shared) != 1 or None in shared or shared == {0}:
        found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise InvalidArgument(
            f"the inputs of {where} must share dimension 0, the batch, and have at "
            f"least one row; it is {found or 'absent'}. Reshape them, or pass "
            "batched=False"
        )
    rows = next(size for size in shared if size is not None)
    for name, value in outputs.items():
        shape = shape_of(value)
        if not shape or shape[0] != rows:
            raise InvalidArgument(
                f"output {name!r} of {where} has shape {list(shape)} for "
                f"{rows} rows; dimension 0 of every output must be the batch: return "
                "it with one, leave it out (output_names picks entries of a dict or "
                "dataclass), or pass batched=False"
            )
    return rows


def _with_rows(
    example: Values, rows: int, options: SignatureOptions, left_out: AbstractSet[str]
) -> list[str]:
    """Returns the inputs that have a row for each of the batch.

    One with a default has it if the author's example does: of several rows, for of one
    nobody could tell.
    """
    return [
        name
        for name, value in example.items()
        if name not in options.defaults
        or (name not in left_out and rows > 1 and shape_of(value)[:1] == (rows,))
    ]


def _two_rows(
    calls: ModuleCalls,
    example: Values,
    outputs: Values,
    rows: int,
    batch: Sequence[str],
) -> tuple[Values, Values, Values | None]:
    """Returns an example of two rows or more, its outputs, and those of another size.

    One row given: a second is made from it, by moving its elements around, which
    keeps every value one that the author used. Where the model does not take that,
    the row is repeated. ``batch`` names the inputs that have rows. The last is None if
    no other number of rows works.
    """
    if rows > 1:
        first = {n: first_row(example[n]) for n in batch}
        other = calls.attempt({**example, **first})
        is_told = other is None and isinstance(calls.last_error, InvalidArgument)
        if other is None and not is_told:  # a variance over the batch needs two, say
            more = {n: joined(example[n], first[n]) for n in batch}
            other = calls.attempt({**example, **more})
            if other is not None:
                log.warning(
                    "event=single_rows_fail error=%s: who sends one row will get it",
                    one_line(calls.last_error),
                )
        return example, outputs, other
    moved, repeated = (
        {
            name: joined(value, second(value)) if name in batch else value
            for name, value in example.items()
        }
        for second in (_moved, lambda row: row)
    )
    result = calls.attempt(moved)
    if result is not None and _as_finite(result, outputs):
        return moved, result, outputs
    result = calls.attempt(repeated)
    if result is not None:
        return repeated, result, outputs
    return example, outputs, None


def _moved(row: Value) -> Value:
    if not isinstance(row, torch.Tensor):
        return row
    return row.reshape(-1).roll(1).reshape(row.shape)


def _as_finite(result: Values, outputs: Values) -> bool:
    """Whether nothing became NaN or infinite that was not before."""
    return all(
        _is_finite(result[name]) or not _is_finite(value)
        for name, value in outputs.items()
    )


def _is_finite(value: Value) -> bool:
    return not isinstance(value, torch.Tensor) or bool(torch.isfinite(value).all())


def _check_batch(outputs: Values, other: Values, where: str) -> None:
    for name, value in outputs.items():
        shape, sized = shape_of(value), shape_of(other[name])
        if len(sized) != len(shape) or sized[0] == shape[0]:
            raise InvalidArgument(
                f"output {name!r} of {where} has shape {list(shape)} and "
                f"{list(sized)} for different numbers of rows; dimension 0 "
                "must be the batch, or pass batched=False"
            )


def _other_sizes(
    calls: ModuleCalls,
    example: Values,
    options: SignatureOptions,
) -> Values | None:
    """Returns outputs for smaller dynamic dimensions; None if no other size worked."""
    shorter: list[Callable[[int], int]] = [
        lambda size: size - 1,
        lambda size: size // 2,
    ]
    for shorten in shorter:
        smaller = dict(example)
        for name, dimensions in options.dynamic.items():
            for dimension in dimensions if name in example else ():
                value = smaller[name]
                if not isinstance(value, torch.Tensor):
                    continue
                size = shorten(value.shape[dimension])
                if size > 0:
                    smaller[name] = value.narrow(dimension, 0, size)
        result = calls.attempt(smaller)
        if result is not None:
            return result
    log.warning(
        "event=dynamic_sizes_untested the model took no other size than its "
        "example's; every inner output dimension is declared free"
    )
    return None


def _spec(value: Value, options: SignatureOptions, name: str, where: str) -> TensorSpec:
    try:
        dtype = dtype_of(value)
    except ValueError as error:
        raise InvalidArgument(f"input {name!r} of {where}: {error}") from error
    free = set(options.dynamic.get(name, ()))
    if options.batched:
        free.add(0)
    shape = tuple(
        FREE if index in free else size for index, size in enumerate(shape_of(value))
    )
    return TensorSpec(dtype, shape, options.pad.get(name), options.mask.get(name))


def _output_spec(
    name: str,
    observed: list[Value],
    options: SignatureOptions,
    unsure: bool,
    free: Collection[int],
) -> TensorSpec:
    first = observed[0]
    try:
        dtype = dtype_of(first)
    except ValueError as error:
        raise InvalidArgument(f"output {name!r}: {error}") from error
    shapes = [shape_of(other) for other in observed]
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidArgument(f"output {name!r} changes its number of dimensions")
    shape = []
    for index, sizes in enumerate(zip(*shapes, strict=True)):
        is_batch = options.batched and index == 0
        varies = len(set(sizes)) > 1 or index in free
        shape.append(FREE if is_batch or varies or unsure else sizes[0])
    return TensorSpec(dtype, tuple(shape))


def _check_method(
    method: Method,
    outputs: Mapping[str, TensorSpec],
    options: SignatureOptions,
    where: str,
) -> None:
    if method is Method.PREDICT:
        return
    wanted = SINGLE_OUTPUT[method]
    spec = outputs.get(wanted)
    if spec is None or not options.batched:
        raise InvalidArgument(
            f"a {method.value} signature needs a batched output {wanted!r}; {where} "
            f"gives {', '.join(map(repr, outputs))}: name it in output_names"
        )
    if spec.dtype is not FLOAT32:
        raise InvalidArgument(
            f"output {wanted!r} of {where} must be float32, which is what clients of "
            f"{method.value} get; it is {spec.dtype}: return {wanted}.float()"
        )
    if method is Method.CLASSIFY:
        if len(spec.shape) != 2:
            raise InvalidArgument(
                f"output 'scores' of {where} must have shape [batch, classes], got "
                f"{list(spec.shape)}"
            )
        if options.labels and spec.shape[1] not in (len(options.labels), FREE):
            raise InvalidArgument(
                f"{len(options.labels)} labels for {spec.shape[1]} scores of {where}"
            )
    elif len(spec.shape) > 2 or (len(spec.shape) == 2 and spec.shape[1] != 1):
        raise InvalidArgument(
            f"output 'outputs' of {where} must have shape [batch] or [batch, 1], got "
            f"{list(spec.shape)}"
        )


def _features(
    method: Method,
    inputs: Mapping[str, TensorSpec],
    options: SignatureOptions,
    where: str,
) -> Mapping[str, FeatureSpec]:
    """Returns the author's features, or one per input that has no default.

    Inputs with a default are settings of a call, and Examples are its rows.
    """
    if options.features is not None:
        for name, feature in options.features.items():
            if feature.input not in inputs:
                raise InvalidArgument(
                    f"feature {name!r} fills {feature.input!r}, which is no input"
                )
            if trouble := feature.trouble(inputs[feature.input]):
                raise InvalidArgument(f"feature {name!r} {trouble}")
        features = dict(options.features)
        if method is not Method.PREDICT:
            _check_filled(features, inputs, options, where)
        return features
    if method is Method.PREDICT:
        return {}
    derived: dict[str, FeatureSpec] = {}
    for name, spec in inputs.items():
        if name in options.defaults or spec.dtype not in _EXAMPLE_DTYPES:
            continue
        inner = spec.shape[1:]
        if FREE not in inner:
            derived[name] = FeatureSpec(name, FeatureKind.FIXED, spec.dtype, inner)
        elif len(inner) == 1 and spec.pad is not None:
            derived[name] = FeatureSpec(
                name, FeatureKind.VARLEN, spec.dtype, pad=spec.pad
            )
    for target in options.mask.values():
        derived.pop(target, None)  # the padded input fills it
    _check_filled(derived, inputs, options, where)
    return derived


def _check_filled(
    features: Mapping[str, FeatureSpec],
    inputs: Mapping[str, TensorSpec],
    options: SignatureOptions,
    where: str,
) -> None:
    """Refuses features that leave an input empty: every request would fail."""
    if not features and [spec.dtype for spec in inputs.values()] == [STRING]:
        return  # it gets the Examples themselves
    filled = {feature.input for feature in features.values()}
    filled |= {options.mask[name] for name in filled if name in options.mask}
    for name, spec in inputs.items():
        if name in filled or name in options.defaults:
            continue
        if spec.dtype not in _EXAMPLE_DTYPES:
            how = f"no tf.Example holds {spec.dtype}: take another dtype"
        elif FREE in spec.shape[1:]:
            how = "say how rows of different sizes are filled up, by pad of that input"
        else:
            how = "name one in features"
        raise InvalidArgument(
            f"no feature of a tf.Example fills input {name!r} of {where}, {spec}, which "
            f"{options.method} needs: {how}, give it a default, or use the method "
            "'predict'"
        )
