"""What a model takes and gives, independent of any wire format.

Manifests hold signatures as JSON (``signature_json.py``); only handlers turn them into
``SignatureDef``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tfs.core.dtype import DType
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView

DEFAULT_SIGNATURE: Final = "serving_default"
FREE: Final = -1
"""A dimension whose size the signature leaves open."""


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
        length_of: Outputs only: name of the input whose free inner sizes its own are, in
            their order, so that what answers padding is cut off; None keeps it.

    """

    dtype: DType
    shape: tuple[int, ...]
    pad: float | None = None
    mask: str | None = None
    length_of: str | None = None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of ``shape`` fits: same rank, fixed sizes equal."""
        own = self.shape
        if len(shape) != len(own):
            return False
        if own and own[0] == FREE and shape[1:] == own[1:]:
            return True  # nearly all tensors are like this
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
        dtype: The input's dtype, to which float32, int64 or string on the wire are
            converted.
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
        max_rows: Most rows that a call may have, where the model's own file sets a
            limit; None where it sets none. Manifests do not have it.

    """

    method: Method
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    defaults: Mapping[str, TensorView] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    features: Mapping[str, FeatureSpec] = field(default_factory=dict)
    batched: bool = True
    examples: Mapping[str, ExampleSlot] = field(default_factory=dict)
    max_rows: int | None = None

    @property
    def least_answer_bytes(self) -> int:
        """How long an answer of one row is at least: of outputs without free sizes."""
        first = 1 if self.batched else 0
        return sum(
            math.prod(spec.shape[first:]) * spec.dtype.item_bytes
            for spec in self.outputs.values()
            if FREE not in spec.shape[first:]
        )

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


_TENSORFLOW_NAMES: Final = {"float32": "float", "float64": "double", "float16": "half"}


def _type_name(dtype: DType) -> str:
    """Returns TensorFlow's name of the type, as clients know it from messages."""
    return _TENSORFLOW_NAMES.get(dtype.name, dtype.name)


def _name_set(names: Iterable[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"
