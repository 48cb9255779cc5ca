"""An author's options for one way to call a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from tfs.core.errors import InvalidArgument
from tfs.core.signature import FeatureSpec, Method
from tfs.core.signature import Signature as ServedSignature
from tfs.export.values import Values
from tfs.runtime.guest.platforms.nested_values import Form


class NumberArray(Protocol):
    """A numpy array, or any other object that shows its elements in the same way."""

    @property
    def __array_interface__(self) -> Mapping[str, object]:
        """Describes where and what the elements are."""
        ...


ExampleInputs: TypeAlias = (
    torch.Tensor | NumberArray | Sequence[object] | Mapping[str, object]
)
"""One tensor, tensors in the order of the parameters, or tensors by name. A numpy array
stands for a tensor, which the model gets, and a list of strings for a string tensor,
which the model gets as a list of bytes."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature as its author describes it; the rest is found by calling. Immutable.

    Attributes:
        example_inputs: Real inputs. Dimension 0 is the batch unless ``batched`` is
            false; dtype and rank of every tensor become the signature's.
        method: "predict", "classify" or "regress".
        call: The module's method to call by keyword, normally ``forward``.
        labels: Classify only: class names in score order.
        features: tf.Example features by name for Classify and Regress; None derives
            one fixed feature per input, named after it. An empty mapping has none.
        output_names: Names for the outputs of a model that returns a tensor or a tuple,
            in that order; for a model that returns a dict, which entries to serve and
            in which order. None lets TFS choose the names.
        batched: Whether dimension 0 of every input and output is the batch.
        dynamic: Per input, further dimensions whose size callers may choose; per
            output, those whose size depends on values, because calling the model cannot
            show that.
        pad: Per input, the value that fills free inner dimensions when requests of
            different sizes are batched; without it, such requests are not batched.
        mask: Per padded input, the input that receives the mask.
        length_of: Per output, the padded input whose lengths its own are: what answers
            padding is cut off.
        defaults: Inputs that callers may leave out, with the value used then.

    """

    example_inputs: ExampleInputs
    method: str = "predict"
    call: str = "forward"
    labels: Sequence[str] = ()
    features: Mapping[str, FeatureSpec] | None = None
    output_names: Sequence[str] | None = None
    batched: bool = True
    dynamic: Mapping[str, Collection[int]] = field(default_factory=dict)
    pad: Mapping[str, float] = field(default_factory=dict)
    mask: Mapping[str, str] = field(default_factory=dict)
    length_of: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        methods = [method.value for method in Method]
        if self.method not in methods:
            raise InvalidArgument(
                f"unknown method {self.method!r}; use one of {', '.join(methods)}"
            )
        if self.labels and self.method != Method.CLASSIFY.value:
            raise InvalidArgument("labels belong to the method 'classify' only")
        if isinstance(self.labels, str) or isinstance(self.output_names, str):
            raise InvalidArgument("labels and output_names are sequences of strings")


@dataclass(frozen=True, slots=True)
class Derived:
    """A signature and the example it was found with.

    Attributes:
        signature: Complete, except for the example's place in the version.
        example: Inputs by name; at least two rows that differ, where the author's
            example could be turned into that.
        outputs: The outputs of the module for ``example``.
        forms: How arguments that are containers are made of inputs.
        is_nested: Whether the module's result has to be made flat.
        is_own_type: Whether the result is an object of a class that is neither Python's
            nor torch's, for example a named tuple.

    """

    signature: ServedSignature
    example: Values
    outputs: Values
    forms: Mapping[str, Form] = field(default_factory=dict)
    is_nested: bool = False
    is_own_type: bool = False
