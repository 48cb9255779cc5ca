"""Calls functions and modules with inputs by name, and finds early what cannot be called so.

A version whose every call would fail must not take the place of one that serves. Whether
a function can take the inputs by name is known once it is loaded, without a call.

Modules are called as torch does it, with less work on the way to their ``forward``. For
each call torch checks whether the module was compiled, whether it is being traced, and
eight tables for hooks, half of them through the module, whose attribute look-up is slow.
That takes a microsecond, or three if something else ran since. The tables are always the
same objects, whatever is put into them later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container
from typing import Final

import torch
from torch.nn.modules import module as torch_module

from tfs.core.errors import InvalidArgument


def check_parameters(
    function: Callable[..., object], inputs: Collection[str], who: str
) -> None:
    """Checks that a function can be called with these inputs by name.

    Args:
        function: What is to be called; one that does not tell its parameters is fine.
        inputs: The names.
        who: The version and signature, for the message.

    Raises:
        InvalidArgument: Every call would fail; says what the function takes.

    """
    try:
        wanted = _signature_of(function)
    except (TypeError, ValueError):
        return
    try:
        wanted.bind(**dict.fromkeys(inputs))
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidArgument(
            f"{who}: {name} takes ({', '.join(map(str, wanted.parameters.values()))}), "
            f"but is called with the signature's inputs by name: "
            f"{', '.join(sorted(inputs)) or 'none'} ({error}); give its parameters these "
            "names"
        ) from error


def check_returns(function: Callable[..., object], who: str) -> None:
    """Checks that a function returns values, which asynchronous ones do not.

    Raises:
        InvalidArgument: It returns something that has to be awaited, or iterated over.

    """
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            f"{who}: {name} is asynchronous, and calls are not awaited: write def, not "
            "async def (asyncio.run in it, if need be)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"{who}: {name} is a generator: return what it yields, all at once"
        )


def _signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Returns what a function takes.

    Raises:
        TypeError: It does not tell.
        ValueError: It does not tell.

    """
    if isinstance(function, torch.nn.Module):
        own_call = type(function).__call__ is not torch.nn.Module.__call__
        if function._forward_pre_hooks or (
            own_call and not isinstance(function, torch.jit.ScriptModule)
        ):
            raise ValueError("forward may be called with something else")
        function = function.forward
    scripted = scripted_parameters(function)
    if scripted is not None:
        return inspect.Signature(scripted)
    # A wrapper takes what it takes itself, not what it says it wraps.
    return inspect.signature(function, follow_wrapped=False)


def scripted_parameters(
    function: Callable[..., object],
) -> list[inspect.Parameter] | None:
    """Returns what a function of TorchScript takes; None for any other."""
    schema = getattr(function, "schema", None)
    if not isinstance(schema, torch.FunctionSchema):
        return None
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default_value if each.has_default_value() else empty,
        )
        for each in schema.arguments
        if each.name != "self"
    ]


_OWN_TABLES: Final = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
_COMMON_TABLES: Final = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def module_call(module: torch.nn.Module) -> Callable[..., object]:
    """Returns a function that calls a module with inputs by name, including its hooks.

    It is the module itself if that is not called in the usual way, because it was
    compiled, is scripted, or its class has a way of its own.
    """
    own, common = vars(module), vars(torch_module)
    tables = [own.get(name) for name in _OWN_TABLES]
    tables += [common.get(name) for name in _COMMON_TABLES]
    if (
        type(module).__call__ is not torch.nn.Module.__call__
        or isinstance(module, torch.jit.ScriptModule)
        or own.get("_compiled_call_impl") is not None
        or not all(isinstance(table, dict) for table in tables)
    ):
        return module
    a, b, c, d, e, f, g, h = tables

    def call(**inputs: object) -> object:
        if a or b or c or d or e or f or g or h:
            return _with_hooks(module, inputs)
        return module.forward(**inputs)

    return call


def _with_hooks(module: torch.nn.Module, inputs: dict[str, object]) -> object:
    """Calls a module by position as far as it goes, if that is how its hooks get inputs.

    A hook sees what is passed by keyword only if it was registered with ``with_kwargs``;
    others would be called with no inputs at all.
    """
    names: list[str] = []
    if any(
        key not in with_keywords
        for hooks, with_keywords in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
            (torch_module._global_forward_hooks, ()),
            (torch_module._global_forward_pre_hooks, ()),
        )
        for key in hooks
    ):
        names = _leading(module.forward, inputs)
    rest = {name: value for name, value in inputs.items() if name not in names}
    return module(*(inputs[name] for name in names), **rest)


def _leading(function: Callable[..., object], inputs: Container[str]) -> list[str]:
    """Returns the first parameters of a function, up to one for which there is no input."""
    names = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is not each.POSITIONAL_OR_KEYWORD or each.name not in inputs:
            break
        names.append(each.name)
    return names
