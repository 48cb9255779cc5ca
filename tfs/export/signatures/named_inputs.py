"""Names and checks an author's example inputs and defaults, as clients will name them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from tfs.core.errors import InvalidArgument
from tfs.export.packaging.module_origin import is_of_a_package
from tfs.export.signatures.signature import ExampleInputs
from tfs.export.values import (
    Value,
    Values,
    as_strings,
    from_array,
    from_numbers,
    is_strings,
)
from tfs.runtime.guest.platforms.module_call import Form, scripted_parameters

_BY_KEYWORD: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
"""The kinds of parameters that an input can be passed to; a server passes them by name."""

_OF_NUMBERS: Final = (
    "lists of numbers do not say of which type they are; use torch.tensor(...) or a "
    "numpy array"
)
"""For messages: what to do about lists of numbers, which are not tensors yet."""


def name_inputs(
    function: Callable[..., object],
    example_inputs: ExampleInputs,
    where: str,
    optional: Collection[str] = (),
) -> tuple[Values, dict[str, Form]]:
    """Returns the example inputs by name, and how arguments are made of them.

    Their names are those of the function's parameters. A tensor inside a dict, list or
    tuple is named by the way to it (``batch.x``, ``state.0``), and the parameter then
    has a form (:mod:`tfs.runtime.guest.platforms.module_call`). Inputs in ``optional`` need no
    example.

    Raises:
        InvalidArgument: They cannot be passed by keyword, or are not tensors; says
            which and what to do.

    """
    parameters = _parameters(function)
    by_keyword = [p.name for p in parameters if p.kind in _BY_KEYWORD]
    if isinstance(example_inputs, Mapping):
        named: dict[str, object] = dict(example_inputs)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            _refuse_unknown(named, by_keyword, where)
    else:
        values = _in_order(example_inputs)
        if len(values) > len(by_keyword):
            raise _too_many(example_inputs, values, parameters, where)
        named = dict(zip(by_keyword, values, strict=False))
    required = [
        p.name
        for p in parameters
        if p.kind in _BY_KEYWORD
        and p.default is p.empty
        and p.name not in named
        and p.name not in optional
    ]
    if required:
        raise InvalidArgument(
            f"no example input for {', '.join(map(repr, required))} of {where}"
        )
    inputs: Values = {}
    forms: dict[str, Form] = {}
    for name, value in named.items():
        form = _form(name, value, where, inputs)
        if form != name:
            forms[name] = form
    return inputs, forms


def _refuse_unknown(
    named: Collection[str], by_keyword: Sequence[str], where: str
) -> None:
    unknown = [name for name in named if name not in by_keyword]
    if unknown:
        raise InvalidArgument(
            f"{where} has no parameter {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(by_keyword) or 'none that can be passed by name'}"
        )


def _in_order(example_inputs: ExampleInputs) -> list[object]:
    """Returns example inputs without names, one by one; a list of strings is one."""
    whole = from_array(example_inputs)
    if isinstance(whole, list) and isinstance((whole or [0])[0], str | bytes):
        return [whole]
    return list(whole) if isinstance(whole, Sequence) else [whole]


def _too_many(
    example_inputs: ExampleInputs,
    values: Sequence[object],
    parameters: Sequence[inspect.Parameter],
    where: str,
) -> InvalidArgument:
    whole = from_array(example_inputs)
    by_keyword = [p.name for p in parameters if p.kind in _BY_KEYWORD]
    if isinstance(whole, list) and from_numbers(whole) is not None:
        return InvalidArgument(f"the example inputs of {where}: {_OF_NUMBERS}")
    if is_strings(whole) and by_keyword:
        return InvalidArgument(
            f"{len(values)} lists of strings for {where}, which takes "
            f"{', '.join(by_keyword)}: if they are the rows of one tensor, say "
            f"which, {{{by_keyword[0]!r}: [[...], ...]}}"
        )
    unnamed = any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    return InvalidArgument(
        f"{len(values)} example inputs for {where}, whose parameters by name "
        f"are: {', '.join(by_keyword) or 'none'}. A server passes inputs by "
        "name: give each input a named parameter"
        + (", without the '/' behind it" if unnamed else " instead of *args")
    )


def _form(name: str, value: object, where: str, inputs: Values) -> Form:
    """Adds the tensors of an argument to ``inputs``; returns how it is made of them."""
    fields = _fields_of(value)
    if fields is not None:
        return {
            "class": _path_of(type(value), name, where),
            "fields": {
                key: _form(f"{name}.{key}", part, where, inputs)
                for key, part in fields.items()
            },
        }
    if isinstance(value, list) and from_numbers(value) is not None:
        raise InvalidArgument(f"example input {name!r} of {where}: {_OF_NUMBERS}")
    if isinstance(value, dict | list | tuple) and not is_strings(value):
        if type(value) not in (dict, list, tuple):
            raise InvalidArgument(
                f"example input {name!r} of {where} is a {type(value).__name__}; "
                "servers put together plain dicts, lists and tuples, named tuples and "
                "dataclasses: take one of these"
            )
        parts = dict(value) if isinstance(value, dict) else dict(enumerate(value))
        if isinstance(value, dict) and not all(isinstance(k, str) for k in value):
            raise InvalidArgument(
                f"example input {name!r} of {where} is a dict whose keys are not all "
                "strings; clients name its entries by them, so use strings"
            )
        formed = {
            str(key): _form(f"{name}.{key}", part, where, inputs)
            for key, part in parts.items()
        }
        if isinstance(value, dict):
            return {"dict": formed}
        return {type(value).__name__: list(formed.values())}
    if value is None:
        return None
    if name in inputs:
        raise InvalidArgument(f"two example inputs of {where} are called {name!r}")
    inputs[name] = _input(name, value, where)
    return name


def _fields_of(value: object) -> dict[str, object] | None:
    """Returns the fields of a named tuple or a dataclass; None for any other value.

    Fields that have their default value are left to the class.
    """
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and names is not None:
        return dict(zip(names, value, strict=True))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    found: dict[str, object] = {}
    for each in dataclasses.fields(value):
        part = getattr(value, each.name)
        is_as_given = part is each.default or (
            isinstance(part, bool | int | float | complex | str | bytes)
            and part == each.default
        )
        if each.init and not is_as_given:
            found[each.name] = part
    return found


def _path_of(kind: type, name: str, where: str) -> str:
    """Returns where a class can be found: ``nets:Box``.

    Raises:
        InvalidArgument: It is at no place from which an archive could take it.

    """
    module, path = kind.__module__, kind.__qualname__
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not kind or is_of_a_package(module):
        raise InvalidArgument(
            f"example input {name!r} of {where} is a {path}, which is not found by that "
            f"name in {module}: move the class to the top of a module, or take a plain "
            "dict or tuple"
        )
    return f"{module}:{path}"


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Returns the parameters of ``function``, which may also be scripted or traced."""
    scripted = scripted_parameters(function)
    if scripted is not None:
        return scripted
    return list(inspect.signature(function).parameters.values())


def _input(name: str, value: object, where: str) -> Value:
    value = from_array(value)
    if is_strings(value):
        return as_strings(value)
    if isinstance(value, bool | int | float | complex):
        raise InvalidArgument(
            f"example input {name!r} of {where} is the number {value!r}: leave it out "
            "to have the parameter's default, or use a torch.Tensor to let clients "
            "send it"
        )
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(
            f"example input {name!r} of {where} is a {type(value).__name__}; "
            "use a torch.Tensor, a numpy array, a list of strings, or a dict, list or "
            "tuple of these"
        )
    if value.layout is not torch.strided or value.is_quantized:
        raise InvalidArgument(
            f"example input {name!r} of {where} is {value.layout}; clients send "
            "dense tensors"
        )
    # As a server hands it over: kernels may round differently where rows lie apart.
    return value.detach().resolve_conj().resolve_neg().contiguous()


def default_values(
    given: Mapping[str, str], module: nn.Module, example_inputs: ExampleInputs
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
        parameters = inspect.signature(module.forward).parameters
        named = dict(zip(parameters, _in_order(example_inputs), strict=False))
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
