"""Settings that a model can change for its process, and for the thread that calls it.

Each has a name for messages.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

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
