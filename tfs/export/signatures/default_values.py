"""Reads default values of inputs from a command line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tfs.core.errors import InvalidArgument


def default_values(
    given: Mapping[str, str], module: nn.Module, example_inputs: object
) -> dict[str, torch.Tensor]:
    """Returns tensors, each in the dtype that the example has for its input.

    Args:
        given: By input, JSON of a number, which is one row, or of lists of numbers.
        module: The module whose parameters name example inputs that are given in order.
        example_inputs: The example inputs that are given to ``save``.

    Raises:
        InvalidArgument: A text is neither a number nor lists of numbers.

    """
    if isinstance(example_inputs, Mapping):
        named = dict(example_inputs)
    else:
        inputs: Sequence[object] = [example_inputs]
        if isinstance(example_inputs, list | tuple):
            inputs = example_inputs
        parameters = inspect.signature(module.forward).parameters
        named = dict(zip(parameters, inputs, strict=False))
    values = {}
    for name, text in given.items():
        known = named.get(name)
        try:
            value = json.loads(text)
            values[name] = torch.tensor(
                value if isinstance(value, list) else [value],
                dtype=known.dtype if isinstance(known, torch.Tensor) else None,
            )
        except (ValueError, TypeError, RuntimeError) as error:
            raise InvalidArgument(
                f"the default {name}={text}: write a number or lists of numbers, as "
                f"JSON ({error})"
            ) from error
    return values
