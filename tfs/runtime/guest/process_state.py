"""What a model's code can change of the whole process, for all that runs there."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any, Final

import torch

_PATCHABLE: Final[tuple[Any, ...]] = (
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
)
_TORCHS_OWN: Final = frozenset(
    {
        "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test",
        "c10d_functional", "debugprims", "flex_lib", "fsdp", "inductor", "onnx",
        "onnx_symbolic", "prims", "quantized_decomposed", "rngprims", "streams",
        "symm_mem", "torchao",
    }
)  # fmt: skip
"""Namespaces of operators that parts of torch fill when they are first imported."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGCHLD)


class ProcessState:
    """As it is when this is made. Immutable.

    Threads' own settings are left out (gradients, numbers of threads), and what code
    adds, as every import does.
    """

    def __init__(self) -> None:
        self._settings = _settings()
        self._operators = _operators()
        self._functions = [
            {
                name: value
                for name, value in vars(owner).items()
                # torch replaces classes of its own (torch.Storage) as settings change.
                if callable(value)
                and not isinstance(value, type)
                and not name.startswith("_")
            }
            for owner in _PATCHABLE
        ]

    def changes(self) -> str:
        """Returns what differs now, as a list for people; empty if nothing."""
        now = _settings()
        found = [name for name, value in self._settings.items() if now[name] != value]
        for owner, functions in zip(_PATCHABLE, self._functions, strict=True):
            present = vars(owner)
            found += [
                f"{owner.__name__}.{name}"
                for name, value in functions.items()
                if present.get(name) is not value
            ]
        operators = sorted(_operators() - self._operators)
        if operators:
            found.append(f"operators of torch ({', '.join(operators[:3])})")
        return ", ".join(found)


def _operators() -> set[str]:
    """Returns what Python code has defined or replaced: ``lib::scaled``.

    torch finds operators by name, whoever registered them last: of two versions in one
    process the older one would call what the newer one brings.
    """
    library = torch.library
    names = {
        "::".join(name.replace("/", "::").split("::")[:2])
        for registered in ("_defs", "_impls")
        for name in getattr(library, registered, ())
    }
    return {name for name in names if name.partition("::")[0] not in _TORCHS_OWN}


def _settings() -> dict[str, object]:
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    return {
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of matmul": torch.get_float32_matmul_precision(),
        "the working directory": folder,
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
    }
