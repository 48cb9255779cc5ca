"""Infers a signature from what calls took and returned; features of a tf.Example fill its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tfs.core.dtype import DTYPES, FLOAT32, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, FeatureKind, FeatureSpec, Method, TensorSpec
from tfs.core.signature import Signature as ServedSignature
from tfs.core.tensor_view import TensorView
from tfs.export.signatures.module_calls import SINGLE_OUTPUT
from tfs.export.signatures.signature import Signature
from tfs.export.values import Value, Values, dtype_of, shape_of, view_of

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
