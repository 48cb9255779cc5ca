"""Finds a signature by calling the module instead of asking the author.

A second call with another number of rows shows that dimension 0 really is the batch. A
third call with other sizes shows which dimensions of outputs depend on the free ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import torch
from torch import nn

from tfs.core.dtype import DTYPES, FLOAT32, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, FeatureKind, FeatureSpec, Method, TensorSpec
from tfs.core.signature import Signature as ServedSignature
from tfs.core.tensor_view import TensorView
from tfs.export.signatures.module_calls import SINGLE_OUTPUT, ModuleCalls
from tfs.export.signatures.named_inputs import name_inputs
from tfs.export.signatures.signature import (
    Derived,
    Signature,
    check_batch,
    check_defaults,
    check_dynamic,
    check_length_of,
    check_names,
    check_rows,
)
from tfs.export.values import (
    Value,
    Values,
    dtype_of,
    first_row,
    joined,
    shape_of,
    view_of,
)
from tfs.runtime.guest.faults import one_line

_EXAMPLE_DTYPES: Final = frozenset(
    dtype
    for name, dtype in DTYPES.items()
    if not name.startswith(("complex", "float8"))
)
"""The dtypes to which values of a tf.Example are converted."""


def features_of(
    method: Method,
    inputs: Mapping[str, TensorSpec],
    options: Signature,
    where: str,
) -> Mapping[str, FeatureSpec]:
    """Returns the author's features, or one per input that has no default.

    Inputs with a default are settings of a call, while Examples are its rows.

    Raises:
        InvalidArgument: A feature does not fit its input, or an input of a signature
            for Classify or Regress would stay empty.

    """
    if options.features is not None:
        features = dict(options.features)
        _check_given(features, inputs)
    elif method is Method.PREDICT:
        return {}
    else:
        features = _derived(inputs, options)
    if method is not Method.PREDICT:
        _check_filled(features, inputs, options, where)
    return features


def _check_given(
    features: Mapping[str, FeatureSpec], inputs: Mapping[str, TensorSpec]
) -> None:
    for name, feature in features.items():
        if feature.input not in inputs:
            raise InvalidArgument(
                f"feature {name!r} fills {feature.input!r}, which is no input"
            )
        if trouble := feature.trouble(inputs[feature.input]):
            raise InvalidArgument(f"feature {name!r} {trouble}")


def _derived(
    inputs: Mapping[str, TensorSpec], options: Signature
) -> dict[str, FeatureSpec]:
    """Returns a feature for each input that has no default and can be one."""
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
        derived.pop(target, None)  # the padded input fills the mask
    return derived


def _check_filled(
    features: Mapping[str, FeatureSpec],
    inputs: Mapping[str, TensorSpec],
    options: Signature,
    where: str,
) -> None:
    """Refuses features that leave an input empty: every request would fail."""
    if not features and [spec.dtype for spec in inputs.values()] == [STRING]:
        return  # this input gets the Examples themselves
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


def observed_signature(
    example: Values,
    observed: Sequence[Values],
    options: Signature,
    where: str,
    *,
    unsure: bool,
) -> ServedSignature:
    """Returns the signature that fits the observed calls.

    Args:
        example: Inputs by name; each becomes an input of the signature.
        observed: Outputs of calls with various numbers of rows and sizes.
        options: The author's options.
        where: What was called, for messages.
        unsure: Whether the free sizes of inputs could not be varied.

    Raises:
        InvalidArgument: The options do not fit the inputs or outputs.

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
            () if name in inputs else options.dynamic.get(name, ()),
            unsure=unsure,
        )
        for name in observed[0]
    }
    _check_method(method, outputs, options, where)
    return ServedSignature(
        method=method,
        inputs=inputs,
        outputs=outputs,
        defaults=_default_views(inputs, options, where),
        labels=tuple(options.labels),
        features=features_of(method, inputs, options, where),
        batched=options.batched,
    )


def _default_views(
    inputs: Mapping[str, TensorSpec], options: Signature, where: str
) -> dict[str, TensorView]:
    """Returns the default values of inputs, after checking that they fit the inputs."""
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


def _spec(value: Value, options: Signature, name: str, where: str) -> TensorSpec:
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
    options: Signature,
    free: Collection[int],
    *,
    unsure: bool,
) -> TensorSpec:
    """Returns the spec of an output, from its values in several calls.

    A dimension is free if its size varied, if ``free`` says so, or if ``unsure``.
    """
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
    length_of = options.length_of.get(name)
    return TensorSpec(dtype, tuple(shape), length_of=length_of)


def _check_method(
    method: Method,
    outputs: Mapping[str, TensorSpec],
    options: Signature,
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


log = logging.getLogger(__name__)


def derive(module: nn.Module, options: Signature) -> Derived:
    """Calls the module (which is in evaluation mode) and returns its signature.

    Each call is made on a copy, so that none sees what another did to the state.

    Raises:
        InvalidArgument: The call fails, its result cannot be served, or the options
            do not fit it; says what to change.

    """
    where = f"{type(module).__name__}.{options.call}"
    function = getattr(module, options.call, None)
    # nn.Module has a function in place of a forward, if nobody wrote one.
    is_absent = getattr(function, "__func__", None) is nn.Module.forward
    if not callable(function) or is_absent:
        raise InvalidArgument(f"{where} does not exist: a server would call it")
    check_defaults(options, where)
    example, forms = name_inputs(
        function, options.example_inputs, where, options.defaults
    )
    left_out = options.defaults.keys() - example.keys()
    for name, value in options.defaults.items():
        example.setdefault(name, value)
    check_names(options, example, where)
    calls = ModuleCalls(module, options, forms)
    outputs = calls.first(example)
    check_dynamic(options, example, outputs, where)
    check_length_of(options, outputs, where)
    observed = [outputs]
    if options.batched:
        rows = check_rows(example, outputs, options, where)
        batch = _with_rows(example, rows, options, left_out)
        example, outputs, other = _two_rows(calls, example, outputs, rows, batch)
        if other is None:
            raise InvalidArgument(
                f"{where} fails with another number of rows than its example's "
                f"{rows}; give an example whose dimension 0 is the batch, or pass "
                f"batched=False. It fails with {one_line(calls.last_error)}"
            )
        observed = [outputs, other]
        check_batch(outputs, other, where)
    unsure = False
    if any(options.dynamic.get(name) for name in example):
        resized = _other_sizes(calls, example, options)
        unsure = resized is None
        observed += [] if resized is None else [resized]
    return Derived(
        observed_signature(example, observed, options, where, unsure=unsure),
        example,
        outputs,
        forms,
        is_nested=calls.is_nested,
        is_own_type=calls.is_own_type,
    )


def _with_rows(
    example: Values, rows: int, options: Signature, left_out: AbstractSet[str]
) -> list[str]:
    """Returns the inputs that have as many rows as the batch.

    An input with a default is among them if the author's example of it has several
    rows; from a single row nobody could tell.
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
    """Returns an example of at least two rows, its outputs, and those of another size.

    If only one row is given, a second is made from it by moving its elements around, so
    that every value is one that the author used. If the model refuses that, the row is
    repeated. ``batch`` names the inputs that have rows. The last result is None if no
    other number of rows works.
    """
    if rows > 1:
        first = {n: first_row(example[n]) for n in batch}
        other = calls.attempt({**example, **first})
        is_told = other is None and isinstance(calls.last_error, InvalidArgument)
        # For example, a variance over the batch needs two rows.
        if other is None and not is_told:
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
    """Whether every value that was finite before is still finite."""
    return all(
        _is_finite(result[name]) or not _is_finite(value)
        for name, value in outputs.items()
    )


def _is_finite(value: Value) -> bool:
    return not isinstance(value, torch.Tensor) or bool(torch.isfinite(value).all())


def _other_sizes(
    calls: ModuleCalls,
    example: Values,
    options: Signature,
) -> Values | None:
    """Returns the outputs for smaller dynamic dimensions; None if no other size worked."""
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
