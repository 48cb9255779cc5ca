"""Functions of torch and Python that a model can replace for all, and its registrations."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

_OF_TORCH: Final[tuple[Any, ...]] = (
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
)
_REGISTRIES: Final = ("_defs", "_impls")
"""Sets of ``torch.library`` that hold what Python code has defined or replaced. Without
them, operators that two versions register under one name would not be noticed."""

_TORCHS_OWN: Final = frozenset(
    {
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test",
        "c10d_functional", "debugprims", "flex_lib", "fsdp", "inductor", "onnx",
        "onnx_symbolic", "prims", "quantized_decomposed", "rngprims", "streams",
        "symm_mem", "torchao",
    }
)  # fmt: skip
"""Namespaces of operators that parts of torch fill when they are first imported."""


_PATIENCE_S: Final = 10.0
"""For what a model has registered to run in forks (``os.register_at_fork``)."""


class KnownFunctions:
    """The functions of torch, and of those modules of Python that are imported.

    Immutable. torch finds the operator that was last registered under a name. So of two
    versions in one process, the older one would call the newer one's operator, which is
    why operators count, too.
    """

    def __init__(self) -> None:
        self._owners = _owners()
        self._functions = [_functions(each) for each in self._owners]
        self._operators = _operators()

    def replaced(self) -> list[str]:
        """Returns what was replaced or registered since, by name.

        An addition counts only if it hides something that a class inherits.
        """
        found: list[str] = []
        for owner, before in zip(self._owners, self._functions, strict=True):
            now = _functions(owner)
            names = [name for name in before if now.get(name) is not before[name]]
            names += [
                name
                for name in now.keys() - before.keys()
                if any(name in vars(each) for each in _inherited(owner))
            ]
            found += [f"{owner.__name__}.{name}" for name in names]
        operators = sorted(_operators() - self._operators)
        if operators:
            found.append(f"operators of torch ({', '.join(operators[:3])})")
        return found


def in_a_copy(look: Callable[[], list[str]]) -> list[str]:
    """Returns what ``look``, which neither imports nor logs, finds in a fork. Blocks.

    Comparing thousands of objects counts references to them. That would make 13 MB that
    a worker shares with its zygote the worker's own.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        return look()
    if pid == 0:
        try:
            os.write(writer, "\n".join(["compared", *look()]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        if not select.select([told], [], [], _PATIENCE_S)[0]:
            os.kill(pid, signal.SIGKILL)  # the model hangs in a function of its own
        lines = told.read().decode().split("\n")
    with contextlib.suppress(ChildProcessError):  # the model ignores its children
        os.waitpid(pid, 0)
    return lines[1:] if lines[0] else ["what cannot be compared"]


def _owners() -> list[Any]:
    """Returns the objects whose functions are compared."""
    names = [each for each in list(sys.modules) if each in sys.stdlib_module_names]
    modules = [sys.modules[name] for name in names if name != "__main__"]
    return [*_OF_TORCH, *(each for each in modules if type(each) is types.ModuleType)]


def _functions(owner: Any) -> Mapping[str, object]:
    # torch replaces classes of its own (torch.Storage) as settings change.
    are_classes = owner in _OF_TORCH
    return {
        name: value
        for name, value in list(vars(owner).items())
        if callable(value)
        and not (are_classes and isinstance(value, type))
        and (not name.startswith("_") or name == "__import__")
    }


def _inherited(owner: object) -> Sequence[type]:
    return owner.__mro__[1:] if isinstance(owner, type) else ()


def _operators() -> set[str]:
    names = {
        "::".join(name.replace("/", "::").split("::")[:2])
        for registered in _REGISTRIES
        for name in list(getattr(torch.library, registered, ()))
    }
    return {name for name in names if name.partition("::")[0] not in _TORCHS_OWN}
