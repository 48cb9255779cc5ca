"""Python objects that a command line names as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from tfs.core.errors import InvalidArgument


def named_module(spec: str) -> tuple[Any, str]:
    """Returns the ``nn.Module``, and the name of the Python module it was found in.

    Raises:
        InvalidArgument: There is no such object, or it neither is nor makes one.

    """
    value = _import(spec)
    # An nn.Module can be called too; a class or function makes one.
    is_made = hasattr(value, "named_parameters") and not isinstance(value, type)
    made = value if is_made or not callable(value) else value()
    if not hasattr(made, "named_parameters"):
        raise InvalidArgument(f"{spec} is no nn.Module and gives none")
    return made, spec.partition(":")[0]


def named_example(spec: str | None, home: str) -> Any:
    """Returns example inputs; without a name, ``example_inputs`` of the module ``home``.

    Raises:
        InvalidArgument: There are none.

    """
    try:
        return named_value(spec or f"{home}:example_inputs")
    except InvalidArgument as error:
        if spec:
            raise
        raise InvalidArgument(
            f"{error.message}; put them there, or name them with --example MODULE:NAME"
        ) from error


def named_value(spec: str) -> Any:
    """Returns the object, or what it returns if it is a function or a class.

    Raises:
        InvalidArgument: There is no such object.

    """
    value = _import(spec)
    return value() if callable(value) else value


def _import(spec: str) -> Any:
    """Returns the object that ``module:name`` names; the current folder is searched first.

    Raises:
        InvalidArgument: There is no such object.

    """
    name, separator, attribute = spec.partition(":")
    if not separator:
        raise InvalidArgument(
            f"{spec}: no such file or directory, and no MODULE:NAME either"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        hint = ""
        if name.endswith(".py") and os.path.isfile(name):
            hint = f"; modules are named without .py: {name[:-3]}:{attribute}"
        raise InvalidArgument(f"{spec}: {error}{hint}") from error
    return value
