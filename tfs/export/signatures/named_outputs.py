"""Names and checks what a model returned, by the names that clients will read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tfs.core.errors import InvalidArgument
from tfs.export.values import (
    Value,
    Values,
    as_strings,
    from_array,
    from_numbers,
    is_strings,
)
from tfs.runtime.guest.platforms.module_call import leaves, parts_of


def name_outputs(
    result: object, names: Sequence[str] | None, single: str, where: str
) -> Values:
    """Returns the outputs of a call by name.

    Args:
        result: A tensor, a tuple or list of tensors, a mapping or a dataclass, nested
            to any depth; strings as lists. Values within containers are named by the
            way to them, with dots; None is left out.
        names: The author's names; for a mapping, the entries to serve.
        single: The name of one unnamed tensor.
        where: What was called, for messages.

    Raises:
        InvalidArgument: It is none of these, or the names do not fit.

    """
    parts = parts_of(result)
    if isinstance(result, Mapping):
        odd = [key for key in result if not isinstance(key, str)]
        if odd and names is None:
            raise InvalidArgument(
                f"{where} returns a dict with the key {odd[0]!r}; outputs are named by "
                "strings"
            )
    if parts is None:
        if names is not None and len(names) != 1:
            raise InvalidArgument(
                f"{where} returns 1 output, output_names has {len(names)}: "
                f"{', '.join(names)}"
            )
        named = [(single if names is None else names[0], result)]
    elif isinstance(result, tuple | list):
        named = _by_position(result, parts, names, single, where)
    else:
        named = _by_key(parts, names, where)
    outputs: Values = {}
    for name, value in named:
        if name in outputs:
            raise InvalidArgument(
                f"{where} returns two outputs that are called {name!r}; name them in "
                "output_names, or return other keys"
            )
        outputs[name] = _output(name, value, where)
    if not outputs:
        raise InvalidArgument(
            f"{where} returns {type(result).__name__} without a tensor; return a "
            "tensor, a tuple of tensors or a dict from name to tensor"
        )
    return outputs


def _by_position(
    result: Sequence[object],
    parts: list[tuple[str, object]],
    names: Sequence[str] | None,
    single: str,
    where: str,
) -> list[tuple[str, object]]:
    has_fields = hasattr(result, "_fields")
    given = [(key, part) for key, part in parts if part is not None]
    if names is not None:
        if len(names) == len(parts):
            given = parts
        if len(names) != len(given) or len(set(names)) != len(names):
            raise InvalidArgument(
                f"{where} returns {len(given)} outputs, output_names has "
                f"{len(names)}: {', '.join(names)}"
            )
        own = list(names)
    elif has_fields:
        own = [key for key, _ in given]
    elif len(given) == 1:
        own = [single]
    else:
        own = [f"output_{key}" for key, _ in given]
    return [
        leaf
        for name, (_, part) in zip(own, given, strict=True)
        for leaf in leaves(name, part)
    ]


def _by_key(
    parts: list[tuple[str, object]], names: Sequence[str] | None, where: str
) -> list[tuple[str, object]]:
    """Returns the entries of a dict that the author wants, in that order, or all."""
    found = [leaf for key, part in parts for leaf in leaves(key, part)]
    if names is None:
        return found
    wanted = [
        leaf
        for name in names
        for leaf in found
        if leaf[0] == name or leaf[0].startswith(f"{name}.")
    ]
    missing = [
        name
        for name in names
        if not any(f"{leaf}.".startswith(f"{name}.") for leaf, _ in wanted)
    ]
    if missing:
        raise InvalidArgument(
            f"{where} returns {', '.join(repr(leaf) for leaf, _ in found)}, not "
            f"{', '.join(map(repr, missing))}"
        )
    return wanted


def is_nested(result: object, outputs: Values) -> bool:
    """Whether a server has to make a call's result flat to find its outputs in it."""
    parts = parts_of(result)
    if parts is None:
        return False
    if isinstance(result, tuple | list):
        return len(parts) != len(outputs) or any(
            parts_of(part) is not None for _, part in parts
        )
    return not isinstance(result, Mapping) or not outputs.keys() <= result.keys()


def _output(name: str, value: object, where: str) -> Value:
    value = from_array(value)
    if is_strings(value):
        return as_strings(value)
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InvalidArgument(
            f"output {name!r} of {where} is a nested tensor, which clients cannot "
            "read; return torch.nested.to_padded_tensor(...) and the lengths"
        )
    if isinstance(value, torch.Tensor) and value.is_quantized:
        raise InvalidArgument(
            f"output {name!r} of {where} is quantized ({value.dtype} cannot be "
            "served): return its dequantize()"
        )
    if isinstance(value, torch.Tensor):
        return value
    numbers = from_numbers(value)
    if numbers is None:
        raise InvalidArgument(
            f"output {name!r} of {where} is a {type(value).__name__}, not a tensor; "
            "return tensors, numbers or strings only, or a dict, and name in "
            "output_names those to serve"
        )
    return numbers
