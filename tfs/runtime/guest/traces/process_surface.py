"""Functions of torch and Python that a model can replace for all, and its registrations.

Comparing thousands of functions and names counts references. That costs a fork 3 MB of
the memory that it shares with its zygote, and 8 ms, over a third of a small model's
load and first call. So they are compared only where something was added or replaced,
which dicts and sets show (``object_words.py``) without being looked into.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tfs.runtime.guest.traces.object_words import (
    SET_MASK,
    SET_TABLE,
    SET_USED,
    WORD_BYTES,
    find_version_word,
    members_of_set,
    word,
)

_OF_TORCH: Final[tuple[Any, ...]] = (
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
)
_REGISTRIES: Final = ("_defs", "_impls")
"""Sets of ``torch.library`` that hold what Python code has defined or replaced."""

_TORCHS_OWN: Final = frozenset(
    {
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test",
        "c10d_functional", "debugprims", "flex_lib", "fsdp", "inductor", "onnx",
        "onnx_symbolic", "prims", "quantized_decomposed", "rngprims", "streams",
        "symm_mem", "torchao",
    }
)  # fmt: skip
"""Namespaces of operators that parts of torch fill when they are first imported."""


@dataclass(frozen=True, slots=True)
class ProcessSurface:
    """These functions at some point in time. Immutable.

    Attributes:
        owners: torch, Python's own functions, and those modules of its library that were
            imported when this was first done.
        functions: The callables of each owner that have a public name.
        operators: Operators that Python code has defined or replaced, ``lib::scaled``.
            torch finds the operator that was last registered under a name. So of two
            versions in one process, the older one would call the newer one's operator.

    """

    owners: Sequence[Any]
    functions: Sequence[Mapping[str, object]]
    operators: frozenset[str]

    @classmethod
    def now(cls, owners: Sequence[Any]) -> ProcessSurface:
        """Returns what it is; counts references to all of it."""
        functions = [_functions(each) for each in owners]
        return cls(owners, functions, frozenset(_operators()))

    def changes(self, before: ProcessSurface) -> list[str]:
        """Returns what was replaced or registered since; additions do not count.

        An addition does count if it hides something that a class inherits.
        """
        if self is before:
            return []
        found = []
        triples = zip(self.owners, before.functions, self.functions, strict=True)
        for owner, functions, present in triples:
            if functions is present:
                continue
            found += [
                f"{owner.__name__}.{name}"
                for name, value in functions.items()
                if present.get(name) is not value
            ]
            found += [
                f"{owner.__name__}.{name}"
                for name in present.keys() - functions.keys()
                if any(name in vars(each) for each in _inherited(owner))
            ]
        operators = sorted(self.operators - before.operators)
        if operators:
            found.append(f"operators of torch ({', '.join(operators[:3])})")
        return found


class WatchedSurface:
    """Compares only where something has changed. Thread-safe."""

    def __init__(self) -> None:
        self._owners = _owners()
        self._version: Callable[[], _Version] | None = None
        # Else a Python in which dicts do not tell: everything is looked at.
        with contextlib.suppress(RuntimeError):
            self._version = _version_of(self._owners, find_version_word())
        # One object: read and replaced as a whole.
        version = self._version() if self._version is not None else None
        self._last = version, ProcessSurface.now(self._owners)

    def look(self) -> ProcessSurface:
        """Returns the present surface: the same object as before if nothing changed."""
        if self._version is None:
            return ProcessSurface.now(self._owners)
        version = self._version()  # before it is looked at
        known, surface = self._last
        if known is None or version == known:
            return surface
        functions = [
            old if was == now else _functions(owner)
            for owner, old, was, now in zip(
                self._owners, surface.functions, known.words, version.words, strict=True
            )
        ]
        operators = surface.operators
        if version.registries != known.registries:
            operators = frozenset(_operators())
        surface = ProcessSurface(self._owners, functions, operators)
        self._last = version, surface
        return surface


@dataclass(frozen=True, slots=True)
class _Version:
    """Differs when something was added or replaced. Immutable."""

    words: Sequence[int]
    registries: Sequence[object]


def _version_of(owners: Sequence[Any], index: int) -> Callable[[], _Version]:
    # Numbers: to go through the dicts would write to each of them. What holds them stays.
    addresses = [id(_namespace_of(owner)) + index * WORD_BYTES for owner in owners]

    def version() -> _Version:
        registries = [getattr(torch.library, name, ()) for name in _REGISTRIES]
        return _Version(
            [ctypes.c_ssize_t.from_address(each).value for each in addresses],
            [_state_of(each) for each in registries],
        )

    return version


def _owners() -> list[Any]:
    """Returns the objects whose functions are compared."""
    names = [each for each in list(sys.modules) if each in sys.stdlib_module_names]
    modules = [sys.modules[name] for name in names if name != "__main__"]
    return [*_OF_TORCH, *(each for each in modules if type(each) is types.ModuleType)]


def _functions(owner: Any) -> dict[str, object]:
    # torch replaces classes of its own (torch.Storage) as settings change.
    are_classes = owner in _OF_TORCH
    return {
        name: value
        for name, value in list(vars(owner).items())
        if callable(value)
        and not (are_classes and isinstance(value, type))
        and (not name.startswith("_") or name == "__import__")
    }


def _namespace_of(owner: object) -> dict[str, Any]:
    """Returns the real ``__dict__``, also that of a class."""
    namespace = vars(owner)
    if not isinstance(namespace, dict):
        (namespace,) = gc.get_referents(namespace)
    assert isinstance(namespace, dict)
    return namespace


def _state_of(registry: object) -> object:
    if not isinstance(registry, set):
        return registry
    words = [word(registry, index) for index in (SET_USED, SET_MASK, SET_TABLE)]
    return words, hash(members_of_set(registry))


def _inherited(owner: object) -> Sequence[type]:
    return owner.__mro__[1:] if isinstance(owner, type) else ()


def _operators() -> set[str]:
    names = {
        "::".join(name.replace("/", "::").split("::")[:2])
        for registered in _REGISTRIES
        for name in list(getattr(torch.library, registered, ()))
    }
    return {name for name in names if name.partition("::")[0] not in _TORCHS_OWN}
