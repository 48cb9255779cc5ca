"""An author's options for one way to call a model, and whether they fit it.

Each check raises InvalidArgument and says what to change: the author is still there to
do it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from tfs.core.errors import InvalidArgument
from tfs.core.signature import FeatureSpec, Method
from tfs.core.signature import Signature as ServedSignature
from tfs.export.values import Values, is_strings, shape_of
from tfs.runtime.guest.platforms.module_call import Form


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


def check_defaults(options: Signature, where: str) -> None:
    """Refuses defaults that are neither tensors nor strings.

    Callers who use no type checker pass numbers.
    """
    for name, value in options.defaults.items():
        if not isinstance(value, torch.Tensor) and not is_strings(value):
            raise InvalidArgument(
                f"the default of {name!r} of {where} is a {type(value).__name__}; use "
                "a torch.Tensor of one row, such as torch.ones(1), or a list of strings"
            )


def check_names(options: Signature, example: Values, where: str) -> None:
    """Refuses pad, mask and defaults that name no input, or that do not go together."""
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


def check_length_of(options: Signature, outputs: Values, where: str) -> None:
    """Refuses lengths of outputs that there are not, or of inputs that are not padded."""
    for name, source in options.length_of.items():
        if name not in outputs or source not in options.pad:
            raise InvalidArgument(
                f"length_of={{{name!r}: {source!r}}} of {where} needs an output and an "
                "input with a pad value, by their names"
            )


def check_dynamic(
    options: Signature, example: Values, outputs: Values, where: str
) -> None:
    """Refuses dynamic dimensions that no input or output has."""
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


def check_rows(example: Values, outputs: Values, options: Signature, where: str) -> int:
    """Returns the number of rows that all inputs and outputs share.

    Inputs with a default may have another: they are settings of a call.
    """
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


def check_batch(outputs: Values, other: Values, where: str) -> None:
    """Refuses outputs whose dimension 0 did not follow the number of rows.

    Args:
        outputs: Outputs of one call.
        other: Outputs of a call with another number of rows.
        where: What was called, for messages.

    """
    for name, value in outputs.items():
        shape, sized = shape_of(value), shape_of(other[name])
        if len(sized) != len(shape) or sized[0] == shape[0]:
            raise InvalidArgument(
                f"output {name!r} of {where} has shape {list(shape)} and "
                f"{list(sized)} for different numbers of rows; dimension 0 "
                "must be the batch, or pass batched=False"
            )
