"""Infers a signature from what calls of a model took and returned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tfs.core.dtype import FLOAT32
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, Method, TensorSpec
from tfs.core.signature import Signature as ServedSignature
from tfs.core.tensor_view import TensorView
from tfs.export.signatures.example_features import features_of
from tfs.export.signatures.module_calls import SINGLE_OUTPUT
from tfs.export.signatures.signature import Signature
from tfs.export.values import Value, Values, dtype_of, shape_of, view_of


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
