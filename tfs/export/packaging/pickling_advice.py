"""Advice for authors about a value that cannot be pickled, by its type."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

_Advice = Callable[[str, Any, Exception], tuple[str, str]]
"""Takes a value's place, the value and the error; returns what it is, and what to do."""


def advice_on(path: str, value: object, error: Exception) -> tuple[str, str]:
    """Returns what a value that cannot be pickled is, and what its author can do.

    Args:
        path: Its place in the module, such as ``model.head.activation``.
        value: The innermost value that fails.
        error: The error that pickling it raised.

    """
    advice = next((advice for kind, advice in _ADVICE if isinstance(value, kind)), None)
    if advice is not None:
        return advice(path, value, error)
    owner, _, attribute = path.rpartition(".")
    return (
        f"{_shown(value)}: {error}",
        f"open or make it at its first use; leave {attribute} out of what "
        f"{owner or 'the model'} saves by a __getstate__ that drops it",
    )


def _on_function(
    path: str, value: types.FunctionType, error: Exception
) -> tuple[str, str]:
    if _is_typed_in(value):
        return _on_typed_in(value)
    if value.__name__ == "<lambda>":
        what = f"a lambda{_where(value)}, which has no name to be found by"
        return what, _as_named("name", value, path)
    if "<locals>" in value.__qualname__:
        what = f"{value.__qualname__}{_where(value)}, a function within another one"
        return what, _as_named(value.__name__, value, path)
    return _on_other_object(value, error)


def _on_class(path: str, value: type, error: Exception) -> tuple[str, str]:
    if _is_typed_in(value):
        return _on_typed_in(value)
    if "<locals>" in value.__qualname__:
        function = value.__qualname__.partition(".<locals>")[0]
        return (
            f"an object of {value.__qualname__}{_where(value)}, a class within a "
            "function",
            f"move class {value.__name__} out of {function}, to the top of "
            f"{value.__module__}; what it uses of {function} becomes arguments of its "
            "__init__",
        )
    return _on_other_object(value, error)


_ADVICE: Final[tuple[tuple[type, _Advice], ...]] = (
    (types.FunctionType, _on_function),
    (type, _on_class),
    (
        torch.jit.ScriptFunction,
        lambda path, value, error: (
            "a scripted function, which no pickle takes",
            "call it by its name in forward instead of keeping it in "
            f"{path.rpartition('.')[2]}",
        ),
    ),
    (
        weakref.ReferenceType,
        lambda path, value, error: (
            "a weak reference",
            f"keep the object itself in {path.rpartition('.')[2]}, in a list if it is a "
            "module that must not become a part, or set it anew in __setstate__",
        ),
    ),
    (
        torch.memory_format,
        lambda path, value, error: (
            f"{value}, which no pickle finds",
            "write it where it is used",
        ),
    ),
    (
        types.ModuleType,
        lambda path, value, error: (
            f"the module {value.__name__}",
            "import it at the top of the file or in the method that uses it, instead "
            "of keeping it in an attribute",
        ),
    ),
)


def _is_typed_in(value: types.FunctionType | type) -> bool:
    """Whether the definition was typed in, so that no file contains it."""
    if value.__module__ != "__main__":
        return False
    place = getattr(__import__("__main__"), "__file__", None)
    return place is None or not Path(place).is_file()


def _on_typed_in(value: types.FunctionType | type) -> tuple[str, str]:
    return (
        f"{_shown(value)}, typed into an interactive session",
        "move it into a .py file and import it",
    )


def _on_other_object(
    value: types.FunctionType | type, error: Exception
) -> tuple[str, str]:
    """Advises on a name that leads to another object than the one that is used."""
    return (
        f"{_shown(value)}{_where(value)}: {error}",
        f"a name at the top of {value.__module__} must lead to it; a module that "
        "was imported again, or a decorator, put another object there",
    )


def _as_named(name: str, function: types.FunctionType, path: str) -> str:
    attribute = path.rpartition(".")[2]
    is_hook = attribute.partition("[")[0].endswith("hooks")
    keep = "register that as the hook" if is_hook else f"keep that in {attribute}"
    text = f"write `def {name}(...):` at the top of {function.__module__} and {keep}"
    captured = function.__code__.co_freevars
    if captured:
        text += (
            f"; it uses {', '.join(captured)} of the function around it: pass them by "
            f"functools.partial({name}, ...), or make it a method of the model"
        )
    return text


def _where(value: types.FunctionType | type) -> str:
    try:
        file = inspect.getsourcefile(value)
        line = (
            value.__code__.co_firstlineno
            if isinstance(value, types.FunctionType)
            else inspect.getsourcelines(value)[1]
        )
    except (TypeError, OSError):
        return ""
    return f" ({Path(file).name}:{line})" if file else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
