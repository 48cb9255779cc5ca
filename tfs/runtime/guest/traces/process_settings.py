"""Settings that code can change for its process, and for the thread that it runs on.

These are what Python's objects do not show (``watched_objects.py`` reads those):
settings of torch, of Python, of the C library and of the kernel. Each has a name for
messages.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import contextvars
import ctypes
import fcntl
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
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

# Of torch, for the whole process. Those that a version of torch lacks are left out.
_TORCH_SETTINGS: Final = (
    "_get_autograd_fallback_mode",
    "_get_backcompat_broadcast_warn",
    "_get_backcompat_keepdim_warn",
    "_get_blas_preferred_backend",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cudnn_allow_tf32",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_float32_matmul_precision",
    "_get_graph_executor_optimize",
    "_get_linalg_preferred_backend",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_math_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_mkldnn_deterministic",
    "_get_mkldnn_enabled",
    "_get_nnpack_enabled",
    "_get_onednn_allow_tf32",
    "_get_privateuse1_backend_name",
    "_get_qengine",
    "_get_sdp_priority_order",
    "_get_warnAlways",
    "_jit_can_fuse_on_cpu",
    "_jit_can_fuse_on_cpu_legacy",
    "_jit_get_inline_everything_mode",
    "_jit_get_logging_option",
    "_jit_llga_enabled",
    "_jit_texpr_dynamic_shape_enabled",
    "_jit_texpr_fallback_allowed",
    "_jit_texpr_fuser_enabled",
    "_jit_texpr_reductions_enabled",
    "get_default_dtype",
    "get_num_interop_threads",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
)
_WORDS: Final = {
    "_get_deterministic_algorithms": "deterministic algorithms",
    "_get_float32_matmul_precision": "the precision of matmul",
    "_is_any_autocast_enabled": "automatic casts",
    "_len_torch_function_stack": "modes of torch",
    "get_default_dtype": "the default dtype",
    "get_num_threads": "the number of torch's threads",
}
# The value of these can only be learned by setting them.
_TORCH_SWITCHES: Final = (
    "_jit_set_profiling_executor",
    "_jit_set_profiling_mode",
)
# Of the thread that asks.
_TORCH_THREAD_SETTINGS: Final = (
    "_are_functorch_transforms_active",
    "_get_tracing_state",
    "_is_any_autocast_enabled",
    "_is_fwd_grad_enabled",
    "_is_grad_layout_enforcement_enabled",
    "_is_multithreading_enabled",
    "_is_torch_function_enabled",
    "_is_view_replay_enabled",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
    "get_num_threads",
    "is_autocast_cache_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
)
_STATUS_FIELDS: Final = frozenset(
    {
        *(b"Name", b"Umask", b"Uid", b"Gid", b"Groups", b"NoNewPrivs", b"Seccomp"),
        *(b"SigBlk", b"SigIgn", b"SigCgt", b"Threads", b"VmLck"),
        *(b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb"),
        *(b"Cpus_allowed", b"Mems_allowed"),
    }
)
"""Fields of /proc/self/status that are compared; they tell of the main thread, which
answers calls, or of the process."""

_PROC_FILES: Final = (
    "coredump_filter",
    "oom_score_adj",
    "personality",
    "timers",
    "timerslack_ns",
)
_PR_GET_DUMPABLE: Final = 3
_PR_GET_SECUREBITS: Final = 27
_PR_GET_THP_DISABLE: Final = 42
_PRCTL_VALUES: Final = (_PR_GET_DUMPABLE, _PR_GET_SECUREBITS, _PR_GET_THP_DISABLE)
_PR_GET_PDEATHSIG: Final = 2
_PR_GET_CHILD_SUBREAPER: Final = 37
_PRCTL_POINTED: Final = (_PR_GET_PDEATHSIG, _PR_GET_CHILD_SUBREAPER)

_LIMITS: Final = [
    getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_DATA"
]
_STANDARD_FILES: Final = ("stdin", "stdout", "stderr")

_libc = ctypes.CDLL(None)
_rounding: Callable[[], int] = getattr(_libc, "fegetround", lambda: 0)


def settings_of_thread(
    thread_locals: Iterable[threading.local] = (),
) -> dict[str, object]:
    """Returns the settings of the calling thread, some only if it is the main thread.

    Args:
        thread_locals: Thread-local objects whose values in this thread are included.

    """
    smallest = sys.float_info.min
    return {
        **_torch_settings(_TORCH_THREAD_SETTINGS),
        "autocast's dtype": torch.get_autocast_dtype("cpu"),
        "the trace function": sys.gettrace(),
        "the profile function": sys.getprofile(),
        "hooks of generators": tuple(sys.get_asyncgen_hooks()),
        "origins of coroutines": sys.get_coroutine_origin_tracking_depth(),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "the rounding mode": _rounding(),
        "denormal numbers": smallest / 2 == 0.0,
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
        "the scheduling policy": os.sched_getscheduler(0),
        "context variables": len(contextvars.copy_context()),
        "numpy's error handling": _numpy_error_handling(),
        "settings of the process": _prctl_values(),
        "variables of its thread": [
            {name: id(value) for name, value in vars(each).items()}
            for each in thread_locals
        ],
    }


def settings_of_process() -> dict[str, object]:
    """Returns the settings of the process."""
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    return {
        **_torch_settings(_TORCH_SETTINGS),
        **_torch_switches(),
        **_status(),
        **_proc_files(),
        "the default device": _default_device(),
        "a context of a device": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        "the working directory": (folder, os.readlink("/proc/self/root")),
        "the module path": list(sys.path),
        "logging": (
            logging.root.level,
            logging.root.manager.disable,
            [id(each) for each in logging.root.handlers],
        ),
        "warnings as errors": [f for f in warnings.filters if f[0] == "error"],
        "the environment": (dict(os.environ), _c_environment()),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "the longest text of a number": sys.get_int_max_str_digits(),
        "flags of libraries": sys.getdlopenflags(),
        "the size of stacks": threading.stack_size(),
        "the timeout of sockets": socket.getdefaulttimeout(),
        "abstract classes": abc.get_cache_token(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "functions run at the end": atexit._ncallbacks(),
        "signal handlers": [signal.getsignal(n) for n in signal.valid_signals()],
        "timers": [any(signal.getitimer(kind)) for kind in range(3)],
        "limits": [resource.getrlimit(kind) for kind in _LIMITS],
        # The soft one moves with what is loaded.
        "the limit of memory": resource.getrlimit(resource.RLIMIT_DATA)[1],
        "the process group": (os.getpgid(0), os.getsid(0)),
        "standard files": [_text_settings(name) for name in _STANDARD_FILES],
        "open files": _open_files(),
        "processes that it started": _started_processes(),
    }


def _torch_settings(names: Sequence[str]) -> dict[str, object]:
    getters = [(name, getattr(torch._C, name, None)) for name in names]
    return {
        _WORDS.get(name, f"torch._C.{name}"): _answer_of(getter)
        for name, getter in getters
        if getter is not None
    }


def _answer_of(getter: Callable[[], object]) -> object:
    try:
        return getter()
    except (
        RuntimeError
    ) as error:  # there are two ways to set a precision; both were used
        return str(error)


def _torch_switches() -> dict[str, object]:
    found: dict[str, object] = {}
    for name in _TORCH_SWITCHES:
        if (switch := getattr(torch._C, name, None)) is not None:
            found[f"torch._C.{name}"] = before = switch(True)
            switch(before)
    return found


def _default_device() -> object:
    """Returns torch's default device; None if it is the one that torch begins with.

    Asking torch costs a new fork a millisecond and 0.7 MB, a quarter of what all
    settings cost.
    """
    holder = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    if holder is not None:
        is_set = getattr(holder, "device_context", None) is not None
        if not is_set and not torch._C._len_torch_function_stack():
            return None
    return torch.get_default_device()


def _status() -> dict[str, object]:
    found: dict[str, object] = {}
    # Bytes, because a worker without rights cannot import another text encoding.
    with open("/proc/self/status", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in _STATUS_FIELDS:
                found[name.decode()] = value
    return found


def _proc_files() -> dict[str, object]:
    found: dict[str, object] = {}
    for name in _PROC_FILES:
        # Some kernels lack one, and another user's process may not read all of its own.
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "rb") as file:
            found[name] = file.read()
    return found


def _prctl_values() -> list[int]:
    pointed = []
    for option in _PRCTL_POINTED:
        value = ctypes.c_int()
        _libc.prctl(option, ctypes.byref(value), 0, 0, 0)
        pointed.append(value.value)
    return [*pointed, *(_libc.prctl(option, 0, 0, 0, 0) for option in _PRCTL_VALUES)]


def _c_environment() -> list[bytes]:
    """Returns the environment that started programs inherit and C libraries see."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: list[bytes] = []
    while variables and (value := variables[len(found)]) is not None:
        found.append(value)
    return found


def _text_settings(name: str) -> object:
    file = getattr(sys, name)
    wanted = ("encoding", "errors", "line_buffering", "write_through")
    return [id(file), *(getattr(file, each, None) for each in wanted)]


def _open_files() -> dict[str, object]:
    """Returns where descriptors lead; the one that is used for this is left out."""
    found: dict[str, object] = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            flags = [
                fcntl.fcntl(int(fd), how) for how in (fcntl.F_GETFD, fcntl.F_GETFL)
            ]
            found[fd] = (os.readlink(f"/proc/self/fd/{fd}"), flags)
    return found


def _started_processes() -> tuple[int, bool]:
    """Returns the memory that ended children took, and whether there are other children."""
    has_children = True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        has_children = False
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt, has_children


def _numpy_error_handling() -> object:
    numpy = sys.modules.get("numpy")
    return numpy.geterr() if numpy is not None else None
