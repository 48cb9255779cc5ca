"""What a model takes and gives, independent of any wire format.

The JSON form is the ``signatures`` part of a version's manifest (docs/
version-directory.md); only handlers turn signatures into ``SignatureDef``.
"""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from tfs.core.dtype import DTYPES, STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView

DEFAULT_SIGNATURE: Final = "serving_default"
FREE: Final = -1
"""A dimension whose size the signature leaves open."""

JsonValue = object

_MAX_DEFAULT_VALUES: Final = 1 << 24  # a scalar default is repeated this often at most


class Method(enum.Enum):
    """What a signature is for; the value is the manifest's word."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"

    @property
    def method_name(self) -> str:
        """The name in ``SignatureDef``: ``tensorflow/serving/predict`` and so on."""
        return f"tensorflow/serving/{self.value}"


class FeatureKind(enum.Enum):
    """How the values of a tf.Example feature fill an input's row."""

    FIXED = "fixed"
    VARLEN = "varlen"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Dtype and shape of one named input or output.

    Attributes:
        dtype: Element type.
        shape: Sizes; -1 is free. Dimension 0 is the batch unless the signature is
            unbatched.
        pad: Inputs only: fills free inner dimensions when rows of different sizes
            are batched; None forbids that.
        mask: Inputs only: name of another input that receives the mask (1 where a
            value was given, 0 where it was padded).

    """

    dtype: DType
    shape: tuple[int, ...]
    pad: float | None = None
    mask: str | None = None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of ``shape`` fits: same rank, fixed sizes equal."""
        own = self.shape
        if len(shape) != len(own):
            return False
        if own and own[0] == FREE and shape[1:] == own[1:]:
            return True  # nearly all are like this
        for size, wanted in zip(shape, own, strict=True):
            if size != wanted and wanted != FREE:
                return False
        return True

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """How one tf.Example feature becomes one row of an input.

    Attributes:
        input: The input that the feature fills.
        kind: FIXED takes exactly ``prod(shape)`` values, or the default when the
            feature is absent; VARLEN takes any number, padded within a batch.
        dtype: Of the input: float32, int64 or string on the wire, converted.
        shape: One row's shape (no batch dimension); FIXED only.
        default: Values used when the feature is absent; None makes it required.
        pad: VARLEN only: what fills shorter rows.

    """

    input: str
    kind: FeatureKind
    dtype: DType
    shape: tuple[int, ...] = ()
    default: tuple[float, ...] | tuple[bytes, ...] | None = None
    pad: float | bytes | None = None

    def trouble(self, spec: TensorSpec) -> str:
        """Returns why no row of it would fit its input ``spec``; empty if one does."""
        if self.dtype is not spec.dtype:
            return f"is {self.dtype}, its input {self.input!r} {spec.dtype}"
        if self.kind is FeatureKind.FIXED and not spec.accepts((1, *self.shape)):
            return (
                f"has rows of shape {list(self.shape)}, its input {self.input!r} "
                f"{list(spec.shape[1:])}"
            )
        return ""


@dataclass(frozen=True, slots=True)
class ExampleSlot:
    """Where an example input lies: bytes at ``offset`` of examples.bin, or strings."""

    shape: tuple[int, ...]
    offset: int = 0
    value: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call a model. Immutable.

    Attributes:
        method: What it answers: predict, classify or regress.
        inputs: Specs by name, as the caller and the model name them.
        outputs: Specs by name, in the order in which a model that returns a tuple
            gives them.
        defaults: Inputs the caller may leave out, with the tensor used instead.
        labels: Classify only: class names in score order.
        features: tf.Example features by name, for Classify and Regress.
        batched: Whether dimension 0 of every input and output is the batch.
        examples: Example inputs by name, for probes and warm-up.

    """

    method: Method
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, TensorView] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    batched: bool = True
    examples: Mapping[str, ExampleSlot] = field(default_factory=dict)

    def check_inputs(self, inputs: Mapping[str, TensorView]) -> int:
        """Checks names, dtypes and shapes; returns the number of rows.

        Defaults count as given; an unbatched signature has one row.

        Raises:
            InvalidArgument: Naming the input, what was sent and what is expected.

        """
        specs = self.inputs
        if inputs.keys() != specs.keys():
            self._check_names(inputs)
        num_rows = -1
        for name, view in inputs.items():
            spec = specs[name]
            if view.dtype is not spec.dtype:
                raise InvalidArgument(
                    f"input {name!r} expected to be {_type_name(spec.dtype)} but "
                    f"{_type_name(view.dtype)} is provided"
                )
            shape = view.shape
            if not spec.accepts(shape):
                raise InvalidArgument(
                    f"input {name!r} must have shape {list(spec.shape)} "
                    f"(-1 is free), got {list(shape)}"
                )
            # A default stands for every row; what a caller sends has its own rows.
            if self.batched and view is not self.defaults.get(name):
                if not shape:
                    raise InvalidArgument(
                        f"input {name!r} must have at least one dimension, the batch"
                    )
                if num_rows < 0:
                    num_rows = shape[0]
                elif shape[0] != num_rows:
                    raise InvalidArgument(
                        "input tensors must have equal 0th-dimension size: "
                        f"{name!r} has {shape[0]}, others {num_rows}"
                    )
        return num_rows if num_rows >= 0 else 1

    def with_defaults(
        self, inputs: Mapping[str, TensorView]
    ) -> Mapping[str, TensorView]:
        """Returns ``inputs`` with the defaults of those left out."""
        if not self.defaults or inputs.keys() >= self.defaults.keys():
            return inputs
        return {**self.defaults, **inputs}

    def check_output_filter(self, names: Sequence[str]) -> None:
        """Checks that every wanted output exists, and none is asked for twice.

        Raises:
            InvalidArgument: Naming the output.

        """
        for index, name in enumerate(names):
            if name not in self.outputs:
                raise InvalidArgument(
                    f"output tensor alias not found in signature: {name} Outputs "
                    f"expected to be in the set {_name_set(self.outputs)}."
                )
            if name in names[:index]:
                raise InvalidArgument(f"duplicate output tensor alias: {name}")

    def _check_names(self, inputs: Mapping[str, TensorView]) -> None:
        """Refuses names that are wrong, in TensorFlow Serving's words.

        (servables/tensorflow/predict_util.cc, util.cc GetInputValues)
        """
        defaults = self.defaults
        sent = [name for name, view in inputs.items() if view is not defaults.get(name)]
        extra = [name for name in sent if name not in self.inputs]
        missing = [
            name for name in self.inputs if name not in inputs and name not in defaults
        ]
        if not extra and not missing:
            return
        if len(sent) != len(self.inputs):
            raise InvalidArgument(
                f"input size does not match signature: {len(sent)}!="
                f"{len(self.inputs)} len({_name_set(sent)}) != "
                f"len({_name_set(self.inputs)}). Sent extra: {_name_set(extra)}. "
                f"Missing but required: {_name_set(missing)}."
            )
        if missing:
            raise InvalidArgument(
                f"Signature input alias: {missing[0]}(feed name: {missing[0]}) not "
                "found in request and no default value provided. Inputs expected to be "
                f"in the request {_name_set(sent)}, or default input alias set: "
                f"{','.join(sorted(defaults))}. The signature takes "
                f"{_name_set(self.inputs)}"
            )
        used = [name for name in sent if name in self.inputs]
        raise InvalidArgument(
            "Inputs contains invalid name. Used request inputs: "
            f"{','.join(sorted(used))}, request input: {','.join(sorted(sent))}"
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the manifest's form; ``from_json`` reads it back equal."""
        form: dict[str, JsonValue] = {
            "method": self.method.value,
            "inputs": {name: _spec_json(spec) for name, spec in self.inputs.items()},
            "outputs": {name: _spec_json(spec) for name, spec in self.outputs.items()},
        }
        if self.defaults:
            form["defaults"] = {n: _tensor_json(v) for n, v in self.defaults.items()}
        if self.labels:
            form["labels"] = list(self.labels)
        if self.features:
            form["features"] = {n: _feature_json(f) for n, f in self.features.items()}
        if not self.batched:
            form["batched"] = False
        if self.examples:
            form["example"] = {n: _slot_json(s) for n, s in self.examples.items()}
        return form

    @classmethod
    def from_json(cls, form: object, where: str) -> Signature:
        """Reads one signature of a manifest.

        Raises:
            InvalidArgument: Saying where and what is wrong.

        """
        try:
            return _signature(_object(form))
        except (KeyError, TypeError, ValueError) as error:
            what = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidArgument(f"bad signature in {where}: {what}") from error


def _signature(form: dict[str, object]) -> Signature:
    unknown = form.keys() - {
        "method", "inputs", "outputs", "defaults", "labels", "features", "batched",
        "example",
    }  # fmt: skip
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    inputs = {name: _spec(spec) for name, spec in _object(form["inputs"]).items()}
    outputs = {name: _spec(spec) for name, spec in _object(form["outputs"]).items()}
    batched = form.get("batched", True)
    if not isinstance(batched, bool):
        raise TypeError("batched must be true or false")
    for kind, specs in (("input", inputs), ("output", outputs)):
        for name, spec in specs.items():
            if batched and not spec.shape:
                raise ValueError(f"{kind} {name!r} has no batch dimension")
            if spec.mask is not None and spec.mask not in inputs:
                raise ValueError(f"{kind} {name!r} has an unknown mask {spec.mask!r}")
    if not outputs:
        raise ValueError("a signature needs at least one output")
    defaults = {n: _tensor(t) for n, t in _object(form.get("defaults", {})).items()}
    for name, view in defaults.items():
        if name not in inputs or view.dtype is not inputs[name].dtype:
            raise ValueError(f"default {name!r} fits no input")
        if not inputs[name].accepts(view.shape):
            raise ValueError(
                f"default {name!r} has shape {list(view.shape)}, its input "
                f"{list(inputs[name].shape)}"
            )
    features = {n: _feature(f) for n, f in _object(form.get("features", {})).items()}
    for name, feature in features.items():
        if feature.input not in inputs:
            raise ValueError(f"feature {name!r} fills an unknown input")
        if trouble := feature.trouble(inputs[feature.input]):
            raise ValueError(f"feature {name!r} {trouble}")
    labels = form.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(x, str) for x in labels):
        raise TypeError("labels must be a list of strings")
    return Signature(
        method=Method(form["method"]),
        inputs=inputs,
        outputs=outputs,
        defaults=defaults,
        labels=tuple(labels),
        features=features,
        batched=batched,
        examples={n: _slot(s) for n, s in _object(form.get("example", {})).items()},
    )


def _object(form: object) -> dict[str, object]:
    if not isinstance(form, dict) or not all(isinstance(key, str) for key in form):
        raise TypeError(f"expected an object, got {type(form).__name__}")
    return cast(dict[str, object], form)


def _shape(form: object, lowest: int = FREE) -> tuple[int, ...]:
    if not isinstance(form, list):
        raise TypeError("shape must be a list")
    for size in form:
        if type(size) is not int or size < lowest:
            raise ValueError(f"bad dimension {size!r} in shape {form}")
    return tuple(form)


def _dtype(form: object) -> DType:
    if not isinstance(form, str) or form not in DTYPES:
        raise ValueError(f"unknown dtype {form!r}; known: {', '.join(DTYPES)}")
    return DTYPES[form]


def _spec(form: object) -> TensorSpec:
    fields = _object(form)
    pad = fields.get("pad")
    mask = fields.get("mask")
    if pad is not None and not isinstance(pad, int | float):
        raise TypeError("pad must be a number")
    if mask is not None and not isinstance(mask, str):
        raise TypeError("mask must name an input")
    return TensorSpec(_dtype(fields["dtype"]), _shape(fields["shape"]), pad, mask)


def _spec_json(spec: TensorSpec) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {"dtype": spec.dtype.name, "shape": list(spec.shape)}
    if spec.pad is not None:
        form["pad"] = spec.pad
    if spec.mask is not None:
        form["mask"] = spec.mask
    return form


def _feature(form: object) -> FeatureSpec:
    fields = _object(form)
    dtype = _dtype(fields["dtype"])
    shape = _shape(fields.get("shape", []), lowest=0)
    name = fields["input"]
    if not isinstance(name, str):
        raise TypeError("a feature's input must be a name")
    default = _values(fields.get("default"), dtype, math.prod(shape))
    pad = _values(fields.get("pad"), dtype, 1)
    return FeatureSpec(
        input=name,
        kind=FeatureKind(fields["kind"]),
        dtype=dtype,
        shape=shape,
        default=default,
        pad=None if pad is None else pad[0],
    )


def _values(
    form: object, dtype: DType, num: int
) -> tuple[float, ...] | tuple[bytes, ...] | None:
    """Reads a scalar (repeated ``num`` times) or a list of numbers or strings."""
    if form is None:
        return None
    if num > _MAX_DEFAULT_VALUES:
        raise ValueError(f"a feature of {num} values is too large")
    values = form if isinstance(form, list) else [form] * num
    if dtype is STRING:
        strings = tuple(str(v).encode() for v in values if isinstance(v, str))
        if len(strings) != len(values):
            raise TypeError("a string feature's default must be strings")
        return strings
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError("a numeric feature's default must be numbers")
    return tuple(values)


def _feature_json(feature: FeatureSpec) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {
        "input": feature.input,
        "kind": feature.kind.value,
        "dtype": feature.dtype.name,
        "shape": list(feature.shape),
    }
    if feature.default is not None:
        form["default"] = [_plain(value) for value in feature.default]
    if feature.pad is not None:
        form["pad"] = _plain(feature.pad)
    return form


def _plain(value: float | bytes) -> JsonValue:
    return value.decode() if isinstance(value, bytes) else value


def _tensor(form: object) -> TensorView:
    fields = _object(form)
    dtype = _dtype(fields["dtype"])
    shape = _shape(fields["shape"], lowest=0)
    return TensorView.checked(dtype, shape, _payload(fields["value"], dtype))


def _payload(form: object, dtype: DType) -> bytes | tuple[bytes, ...]:
    if dtype is STRING:
        if not isinstance(form, list):
            raise TypeError("strings are a list of base64 texts")
        return tuple(base64.b64decode(item, validate=True) for item in form)
    if not isinstance(form, str):
        raise TypeError("a tensor's value is one base64 text")
    return base64.b64decode(form, validate=True)


def _tensor_json(view: TensorView) -> dict[str, JsonValue]:
    value: JsonValue
    if isinstance(view.data, tuple):
        value = [base64.b64encode(item).decode() for item in view.data]
    else:
        value = base64.b64encode(view.data).decode()
    return {"dtype": view.dtype.name, "shape": list(view.shape), "value": value}


def _slot(form: object) -> ExampleSlot:
    fields = _object(form)
    offset = fields.get("offset", 0)
    if type(offset) is not int or offset < 0:
        raise ValueError(f"bad offset {offset!r}")
    value = fields.get("value")
    strings = None if value is None else _payload(value, STRING)
    shape = _shape(fields["shape"], lowest=0)
    return ExampleSlot(shape, offset, cast("tuple[bytes, ...] | None", strings))


def _slot_json(slot: ExampleSlot) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {"shape": list(slot.shape)}
    if slot.value is None:
        form["offset"] = slot.offset
    else:
        form["value"] = [base64.b64encode(item).decode() for item in slot.value]
    return form


_TENSORFLOW_NAMES: Final = {"float32": "float", "float64": "double", "float16": "half"}


def _type_name(dtype: DType) -> str:
    """Returns what TensorFlow calls it, as clients have it in their messages."""
    return _TENSORFLOW_NAMES.get(dtype.name, dtype.name)


def _name_set(names: Iterable[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"
