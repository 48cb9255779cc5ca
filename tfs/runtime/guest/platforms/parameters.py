"""Finds functions that cannot answer what their signature promises, before they are called.

A version whose every call would fail must not take the place of one that serves. Whether
a function can take the inputs by name is known once it is loaded, without a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection

import torch

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
    schema = getattr(function, "schema", None)
    if isinstance(schema, torch.FunctionSchema):  # of TorchScript
        empty = inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(
                    argument.name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=argument.default_value
                    if argument.has_default_value()
                    else empty,
                )
                for argument in schema.arguments[1:]  # without self
            ]
        )
    # A wrapper takes what it takes itself, not what it says it wraps.
    return inspect.signature(function, follow_wrapped=False)
