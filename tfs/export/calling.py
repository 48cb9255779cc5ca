"""Calling an author's module the way a server will: by name, in evaluation mode."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from tfs.core.errors import InvalidArgument
from tfs.export.signature_options import ExampleInputs
from tfs.export.values import Value, Values, as_strings, from_array, is_strings

log = logging.getLogger(__name__)


def unwrapped(module: nn.Module) -> nn.Module:
    """Returns the module inside torch.compile's or a data-parallel wrapper.

    These exist for the process that trains: their parameters have no names, and what
    they add does not survive pickling.
    """
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in _WRAPPERS:
            inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return module
        log.info("event=wrapper_left_out wrapper=%s", type(module).__name__)
        module = inner


_WRAPPERS: Final = ("DataParallel", "DistributedDataParallel")


@contextlib.contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Puts the module into evaluation mode for the block, then back as it was.

    A module in training mode would answer differently from call to call (dropout)
    and from batch to batch (batch normalisation), so that is what gets served.
    """
    training = [part for part in module.modules() if part.training]
    if training:
        log.warning(
            "event=module_in_training_mode module=%s exported in evaluation mode",
            type(module).__name__,
        )
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def name_inputs(
    function: Callable[..., object], example_inputs: ExampleInputs, where: str
) -> Values:
    """Returns the example inputs by the names of the function's parameters.

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
        values = list(whole) if isinstance(whole, Sequence) else [whole]
        if len(values) > len(by_keyword):
            raise InvalidArgument(
                f"{len(values)} example inputs for {where}, whose parameters by name "
                f"are: {', '.join(by_keyword) or 'none'}. A server passes inputs by "
                "name: give each input a named parameter instead of *args"
            )
        named = dict(zip(by_keyword, values, strict=False))
    required = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in named
    ]
    if required:
        raise InvalidArgument(
            f"no example input for {', '.join(map(repr, required))} of {where}"
        )
    return {name: _input(name, value, where) for name, value in named.items()}


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
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(
            f"example input {name!r} of {where} is a {type(value).__name__}; "
            "use a torch.Tensor, a numpy array, or a list of strings"
        )
    if value.layout is not torch.strided or value.is_quantized:
        raise InvalidArgument(
            f"example input {name!r} of {where} is {value.layout}; clients send "
            "dense tensors"
        )
    return value


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
        result: A tensor, a tuple or list of tensors, or a mapping; strings as lists.
        names: The author's names; for a mapping, the entries to serve.
        single: The name of one unnamed tensor.
        where: What was called, for messages.

    Raises:
        InvalidArgument: It is none of these, or the names do not fit.

    """
    if isinstance(result, Mapping):
        odd = [key for key in result if not isinstance(key, str)]
        if odd and names is None:
            raise InvalidArgument(
                f"{where} returns a dict with the key {odd[0]!r}; outputs are named by "
                "strings"
            )
        wanted = list(names) if names is not None else list(result)
        missing = [name for name in wanted if name not in result]
        if missing:
            raise InvalidArgument(
                f"{where} returns {', '.join(map(repr, result))}, not "
                f"{', '.join(map(repr, missing))}"
            )
        return {name: _output(name, result[name], where) for name in wanted}
    if isinstance(result, torch.Tensor) or is_strings(result):
        parts: list[object] = [result]
        own = [single]
    elif isinstance(result, tuple | list):
        parts = list(result)
        fields = getattr(result, "_fields", None)
        own = list(fields or [f"output_{index}" for index in range(len(parts))])
        if len(parts) == 1 and not fields:
            own = [single]
    else:
        raise InvalidArgument(
            f"{where} returns a {type(result).__name__}; return a tensor, a tuple of "
            "tensors or a dict from name to tensor"
        )
    if names is not None:
        if len(names) != len(parts) or len(set(names)) != len(names):
            raise InvalidArgument(
                f"{where} returns {len(parts)} outputs, output_names has "
                f"{len(names)}: {', '.join(names)}"
            )
        own = list(names)
    return {
        name: _output(name, part, where) for name, part in zip(own, parts, strict=True)
    }


def _output(name: str, value: object, where: str) -> Value:
    if is_strings(value):
        return as_strings(value)
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(
            f"output {name!r} of {where} is a {type(value).__name__}, not a tensor; "
            "return tensors only, or a dict, and name in output_names those to serve"
        )
    return value
