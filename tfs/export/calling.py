"""Calling an author's module the way a server will: by name, in evaluation mode."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.package._mangling import is_mangled

from tfs.core.errors import InvalidArgument
from tfs.export.kept_state import KeptState
from tfs.export.signature_options import ExampleInputs
from tfs.export.values import (
    Value,
    Values,
    as_strings,
    from_array,
    from_numbers,
    is_strings,
)
from tfs.runtime.guest.nested_values import Form, leaves, parts_of

log = logging.getLogger(__name__)


OF_PROGRAMS: Final = (
    "is a graph already: torch.export.save(program, BASE/VERSION/model.pt2) makes a "
    "version of it; or save the module that it was made from, with "
    "platform='torch_export'"
)
"""For messages: what to do with a program that torch.export made."""


_OF_NUMBERS: Final = (
    "lists of numbers do not say of which type they are; use torch.tensor(...) or a "
    "numpy array"
)
"""For messages: what to do about lists of numbers, which are no tensor yet."""


@contextlib.contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Puts the module into evaluation mode for the block, then back as it was.

    Adapters merge their weights when they are told, by a ``train`` of their own: the
    state of a module with such a part is kept, and put back too.

    A module in training mode would answer differently from call to call (dropout)
    and from batch to batch (batch normalisation), so that is what gets served.
    """
    training = [part for part in module.modules() if part.training]
    if training:
        log.warning(
            "event=module_in_training_mode module=%s exported in evaluation mode",
            type(module).__name__,
        )
    lazy = [name for name, each in module.named_parameters() if is_lazy(each)]
    if lazy:
        log.warning(
            "event=lazy_parameters module=%s parameters=%s were never computed with: "
            "the example sizes them, and their values are random",
            type(module).__name__,
            ",".join(lazy),
        )
    kept = None
    if any(map(_does_more_than_a_flag, module.modules())):
        kept = KeptState(module)
    try:
        module.eval()
    except NotImplementedError as error:
        raise InvalidArgument(
            f"{type(module).__name__} has no evaluation mode. A module that "
            f"torch.export made {OF_PROGRAMS}"
        ) from error
    try:
        yield
    finally:
        for part in training:
            part.training = True
        if kept is not None:
            kept.restore()


def _does_more_than_a_flag(part: nn.Module) -> bool:
    """Whether a part does something of its own when its mode is changed."""
    return (
        type(part).train is not nn.Module.train or type(part).eval is not nn.Module.eval
    ) and not isinstance(part, torch.jit.ScriptModule)


def name_inputs(
    function: Callable[..., object],
    example_inputs: ExampleInputs,
    where: str,
    optional: Collection[str] = (),
) -> tuple[Values, dict[str, Form]]:
    """Returns the example inputs by name, and how arguments are made of them.

    Their names are those of the function's parameters; a tensor inside a dict, list or
    tuple is named by its way there (``batch.x``, ``state.0``), and the parameter then
    has a form (:mod:`tfs.runtime.guest.nested_values`). Those that are ``optional`` need no
    example.

    Raises:
        InvalidArgument: They cannot be passed by keyword, or are no tensors; says
            which and what to do.

    """
    parameters = _parameters(function)
    by_keyword = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named: dict[str, object]
    if isinstance(example_inputs, Mapping):
        named = dict(example_inputs)
        unknown = [n for n in named if n not in by_keyword and not takes_any]
        if unknown:
            raise InvalidArgument(
                f"{where} has no parameter {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(by_keyword) or 'none that can be passed by name'}"
            )
    else:
        whole = from_array(example_inputs)
        # A list of strings is one tensor.
        is_one = isinstance(whole, list) and isinstance((whole or [0])[0], str | bytes)
        is_one = is_one or not isinstance(whole, Sequence)
        values: list[object] = (
            [whole] if is_one else list(cast("Sequence[object]", whole))
        )
        if len(values) > len(by_keyword):
            unnamed = any(p.kind is p.POSITIONAL_ONLY for p in parameters)
            if isinstance(whole, list) and from_numbers(whole) is not None:
                raise InvalidArgument(f"the example inputs of {where}: {_OF_NUMBERS}")
            if is_strings(whole) and by_keyword:
                raise InvalidArgument(
                    f"{len(values)} lists of strings for {where}, which takes "
                    f"{', '.join(by_keyword)}: if they are the rows of one tensor, say "
                    f"which, {{{by_keyword[0]!r}: [[...], ...]}}"
                )
            raise InvalidArgument(
                f"{len(values)} example inputs for {where}, whose parameters by name "
                f"are: {', '.join(by_keyword) or 'none'}. A server passes inputs by "
                "name: give each input a named parameter"
                + (", without the '/' behind it" if unnamed else " instead of *args")
            )
        named = dict(zip(by_keyword, values, strict=False))
    required = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
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
    """Returns what a named tuple or a dataclass is made of; None of what is neither.

    Settings that are as the class has them are left to the class.
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
    """Returns where a class is to be found: ``nets:Box``.

    Raises:
        InvalidArgument: It is nowhere that an archive could bring along.

    """
    module, path = kind.__module__, kind.__qualname__
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not kind or is_mangled(module):
        raise InvalidArgument(
            f"example input {name!r} of {where} is a {path}, which is not found by that "
            f"name in {module}: move the class to the top of a module, or take a plain "
            "dict or tuple"
        )
    return f"{module}:{path}"


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Returns what ``function`` takes, of scripted and traced methods too."""
    schema = getattr(function, "schema", None)
    if schema is None:
        return list(inspect.signature(function).parameters.values())
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default_value
            if each.has_default_value()
            else inspect.Parameter.empty,
        )
        for each in schema.arguments
        if each.name != "self"
    ]


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


def run(function: Callable[..., object], inputs: Mapping[str, Value]) -> object:
    """Calls with fixed random numbers and no gradients; the caller's stay as is.

    The inputs are copies, as on a server: what the function writes to them is lost.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return function(**{name: _copy(value) for name, value in inputs.items()})


def _copy(value: Value) -> Value:
    return value.clone() if isinstance(value, torch.Tensor) else as_strings(value)


def name_outputs(
    result: object, names: Sequence[str] | None, single: str, where: str
) -> Values:
    """Returns what a call gave, by name.

    Args:
        result: A tensor, a tuple or list of tensors, a mapping or a dataclass, nested
            as it likes; strings as lists. Values within containers are named by their
            way there, with dots; None is left out.
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
    """Names the parts of a tuple, in their order."""
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
