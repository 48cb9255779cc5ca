"""Tries whether a module can be pickled; finds the values that cannot, and what to do about them."""

from __future__ import annotations

import collections
import functools
import inspect
import io
import pickle
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tfs.export.packaging.dependency_report import Action, Unsaved
from tfs.export.packaging.module_origin import default_action, is_of_a_package

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


_MOST_DEPTH: Final = 12
_MOST_SHOWN: Final = 8


class DryPickler(pickle.Pickler):
    """Tries to pickle everything except the elements of tensors.

    Attributes:
        names: The classes and functions at the top of the running script that are used.

    """

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=3)
        self.names: set[str] = set()

    def persistent_id(self, obj: object) -> str | None:
        if torch.is_storage(obj) or isinstance(obj, torch.storage.TypedStorage):
            return "storage"
        return None

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, type | types.FunctionType):
            # A class of a package; its importer finds it.
            if is_of_a_package(obj.__module__ or ""):
                return str, ()
            if obj.__module__ == "__main__":
                self.names.add(obj.__qualname__.partition(".")[0])
        return NotImplemented


def unsaved_of(module: nn.Module) -> tuple[Unsaved, ...]:
    """Returns the attributes of a module that cannot be pickled, each at its place."""
    found: dict[str, Unsaved] = {}
    for path, value, error in _failing("model", module, set(), 0):
        what, advice = advice_on(path, value, error)
        found.setdefault(path, Unsaved(path, what, advice))
        if len(found) == _MOST_SHOWN:
            break
    return tuple(found.values())


def _error(value: object) -> Exception | None:
    try:
        DryPickler().dump(value)
    except Exception as error:
        return error
    return None


def _failing(
    path: str, value: object, seen: set[int], depth: int
) -> Iterator[tuple[str, object, Exception]]:
    if id(value) in seen:
        return
    error = _error(value)
    if error is None:
        return
    seen.add(id(value))
    kind = type(value)
    if isinstance(value, torch.jit.ScriptFunction):
        yield path, value, error
        return
    is_own = kind.__module__ == "__main__" or "<locals>" in kind.__qualname__
    if is_own and _error(kind) is not None:
        yield path, kind, error
        return
    is_found = False
    if depth < _MOST_DEPTH:
        is_theirs = _is_of_a_library(value)
        for name, part in _parts(path, value):
            for each in _failing(name, part, seen, depth + 1):
                if is_theirs and not _is_written_by_the_author(each[1]):
                    continue  # a lock of a thread pool: the pool is to be left out
                is_found = True
                yield each
    if not is_found:
        yield path, value, error


def _is_written_by_the_author(value: object) -> bool:
    if not isinstance(value, types.FunctionType | type):
        return False
    name = value.__module__ or ""
    return name == "__main__" or default_action(name)[0] is Action.INTERNED


def _is_of_a_library(value: object) -> bool:
    """Whether a value is an object of a library, whose attributes authors do not change."""
    if isinstance(value, nn.Module | Mapping | list | tuple | set | frozenset):
        return False
    if isinstance(value, functools.partial | types.MethodType):
        return False
    name = type(value).__module__
    return name != "__main__" and default_action(name)[0] is not Action.INTERNED


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, nn.Module):
        for name, part in vars(value).items():
            if name in ("_parameters", "_buffers", "_modules"):
                yield from ((f"{path}.{key}", each) for key, each in part.items())
            else:
                yield f"{path}.{name}", part
    elif isinstance(value, Mapping):
        if isinstance(value, collections.defaultdict):
            yield f"{path}.default_factory", value.default_factory
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield path, value.func
        yield f"{path} (its arguments)", (value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield f"{path} (its object)", value.__self__
    elif isinstance(value, type | types.FunctionType | types.ModuleType):
        return
    elif type(value).__reduce_ex__ is object.__reduce_ex__ and not hasattr(
        type(value), "__setstate__"
    ):
        yield from (
            (f"{path}.{name}", part)
            for name, part in getattr(value, "__dict__", {}).items()
        )
