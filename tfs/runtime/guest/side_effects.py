"""Finds what a model's code changes for others: for its process, and for its thread.

A model that changes anything of these never runs in the server's process, where it would
change what other models compute. It may replace functions of torch and of Python,
register operators, and change settings, each of which has a name for messages.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import types
import warnings
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


# Private names of torch, most of which have no public getter. One that a version of torch
# lacks is left out, and a model that changes it is then not noticed.
_TORCH_OF_PROCESS: Final = (
    "_get_blas_preferred_backend",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_tf32",
    "_get_cudnn_allow_tf32",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_float32_matmul_precision",
    "_get_graph_executor_optimize",
    "_get_linalg_preferred_backend",
    "_get_math_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_mkldnn_deterministic",
    "_get_mkldnn_enabled",
    "_get_nnpack_enabled",
    "_get_qengine",
    "_get_warnAlways",
    "get_default_dtype",
    "get_num_interop_threads",
    "is_anomaly_enabled",
)
_TORCH_OF_THREAD: Final = (
    "_is_any_autocast_enabled",
    "_is_torch_function_enabled",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
    "get_num_threads",
    "is_grad_enabled",
    "is_inference_mode_enabled",
)
_WORDS: Final = {
    "_get_deterministic_algorithms": "deterministic algorithms",
    "_get_float32_matmul_precision": "the precision of matmul",
    "_is_any_autocast_enabled": "automatic casts",
    "_len_torch_function_stack": "modes of torch",
    "get_default_dtype": "the default dtype",
    "get_num_threads": "the number of torch's threads",
    "is_grad_enabled": "gradients",
    "is_inference_mode_enabled": "the inference mode",
}
_LIMITS: Final = [
    getattr(resource, name)
    for name in dir(resource)
    # The limit of data moves with what is loaded.
    if name.startswith("RLIMIT_") and name != "RLIMIT_DATA"
]


def settings_of_thread() -> dict[str, object]:
    """Returns the settings of the calling thread."""
    return {
        **_of_torch(_TORCH_OF_THREAD),
        "the trace function": sys.gettrace(),
        "the profile function": sys.getprofile(),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "denormal numbers": sys.float_info.min / 2 == 0.0,
    }


def settings_of_process() -> dict[str, object]:
    """Returns the settings of the process."""
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    return {
        **_of_torch(_TORCH_OF_PROCESS),
        # A default device is a mode, also where it is the device that torch begins with.
        "the default device": (
            torch.get_default_device(),
            torch._C._len_torch_function_stack(),
        ),
        "the working directory": folder,
        "the module path": list(sys.path),
        "logging": (
            logging.root.level,
            logging.root.manager.disable,
            [id(each) for each in logging.root.handlers],
        ),
        "warnings as errors": [f for f in warnings.filters if f[0] == "error"],
        "the environment": dict(os.environ),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the size of stacks": threading.stack_size(),
        "the timeout of sockets": socket.getdefaulttimeout(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "signal handlers": [signal.getsignal(n) for n in signal.valid_signals()],
        "timers": [any(signal.getitimer(kind)) for kind in range(3)],
        "limits": [resource.getrlimit(kind) for kind in _LIMITS],
        "its cores": os.sched_getaffinity(os.getpid()),
        "processes that it started": _has_children(),
    }


def differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Returns the names of what differs."""
    return [name for name in before if now.get(name) != before[name]]


def _of_torch(names: Sequence[str]) -> dict[str, object]:
    return {
        _WORDS.get(name, f"torch._C.{name}"): _answer_of(getattr(torch._C, name))
        for name in names
        if hasattr(torch._C, name)
    }


def _answer_of(getter: Callable[[], object]) -> object:
    try:
        return getter()
    except RuntimeError as error:  # a precision was set in both of two ways
        return str(error)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class ProcessEffects:
    """Knows the process as it is when this is made. Immutable.

    Settings of single threads are left out, and so is what code adds, as every import
    does.

    Args:
        functions: The functions as they were before this process was forked; None looks
            at them now.

    """

    def __init__(self, functions: KnownFunctions | None = None) -> None:
        self._settings = settings_of_process()
        self._threads = {*threading.enumerate()}
        self._functions = functions or KnownFunctions()

    def changes(self) -> list[str]:
        """Returns what differs now, in words for people; empty if nothing."""
        found = differing(self._settings, settings_of_process())
        if {*threading.enumerate()} - self._threads:
            found.append("threads that it starts")
        return found + in_a_copy(self._functions.replaced)


class ThreadEffects:
    """Knows the calling thread as it is when this is made. Confined to it.

    Threads of the server are shared: all models in ``front`` are called on the serving
    loop, and those in ``inline`` on a few threads. A default device or automatic casts
    that one of them leaves behind would change what the others compute.
    """

    def __init__(self) -> None:
        self._settings = settings_of_thread()

    def changes(self) -> list[str]:
        """Returns what differs now, in words for people; empty if nothing."""
        return differing(self._settings, settings_of_thread())
