"""Tries whether a module can be pickled, and finds the values that cannot."""

from __future__ import annotations

import collections
import functools
import io
import pickle
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

from tfs.export.packaging.dependency_report import Action, Unsaved
from tfs.export.packaging.module_origin import default_action, is_of_a_package
from tfs.export.packaging.pickling_advice import advice_on

_MOST_DEPTH: Final = 12
_MOST_SHOWN: Final = 8


class TrialPickler(pickle.Pickler):
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
        TrialPickler().dump(value)
    except Exception as error:
        return error
    return None


def _failing(
    path: str, value: object, seen: set[int], depth: int
) -> Iterator[tuple[str, object, Exception]]:
    """Yields the innermost values that cannot be pickled."""
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
