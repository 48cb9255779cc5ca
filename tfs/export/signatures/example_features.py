"""How the features of a tf.Example fill a signature's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tfs.core.dtype import DTYPES, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, FeatureKind, FeatureSpec, Method, TensorSpec
from tfs.export.signatures.signature import Signature

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
