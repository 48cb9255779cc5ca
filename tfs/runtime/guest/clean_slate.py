"""Whether a worker is as it was before it had a model, so that it may have another.

The next version gets a process in which nothing tells that there was one before: what
can be put back is put back (random numbers, names that torch counts), and whatever else
differs from what was noted before the first model was loaded ends the process, as every
unload did before. Noted are

- modules, their classes, functions and containers (``watched_objects.py``), so that a
  patched, added or imported anything shows;
- settings of torch, of Python and of the process, signal handlers, limits, descriptors,
  mapped files;
- threads, processes that were started, and how much memory is held;
- what belongs to the thread that answers calls: gradients, modes, number of threads.

What cannot be seen is what code keeps in memory of its own that no module leads to, an
extension's static variables for one. That is why a worker is only ever reused for the same
code, and for a bounded number of versions.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import gc
import linecache
import locale
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import torch
from torch.package import _mangling

from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.kept_memory import KeptMemory
from tfs.runtime.guest.random_numbers import seed_random
from tfs.runtime.guest.watched_objects import WatchedObjects

_MOST_KEPT_BYTES: Final = 16 << 20
"""What a worker may hold more than before, once it gave back what is free. Of the memory
it shares with its zygote, pages become its own as it writes to them: a few megabytes."""

# Different after every model: put back, looked at by themselves, or ours.
_SEEN_TO: Final = frozenset(
    {
        "linecache.cache",
        "sys.modules",
        "tfs.runtime.guest.slab._PACKINGS",
        "threading._active",
        "threading._limbo",
        "torch.package._mangling",
        "warnings",
    }
)
_MANGLED: Final = "_mangle_index"

# Of torch, for the whole process. Those that a version of torch lacks are left out.
_TORCH_SETTINGS: Final = (
    "_get_autograd_fallback_mode",
    "_get_backcompat_broadcast_warn",
    "_get_backcompat_keepdim_warn",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_float32_matmul_precision",
    "_get_graph_executor_optimize",
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
    "get_default_dtype",
    "get_num_interop_threads",
    "is_anomaly_enabled",
)
# Of the thread that asks.
_TORCH_THREAD_SETTINGS: Final = (
    "_is_any_autocast_enabled",
    "_is_fwd_grad_enabled",
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
        *(b"Umask", b"Uid", b"Gid", b"Groups", b"SigBlk", b"SigIgn", b"SigCgt"),
        *(b"CapEff", b"NoNewPrivs", b"Seccomp", b"Threads"),
    }
)
# All but that of data, which moves with what is loaded.
_LIMITS: Final = [
    getattr(resource, name)
    for name in dir(resource)
    if name.startswith("RLIMIT_") and name != "RLIMIT_DATA"
]
_MAPS_BYTES: Final = 1 << 16
_rounding: Callable[[], int] = getattr(ctypes.CDLL(None), "fegetround", lambda: 0)


OnMainThread = Callable[[Callable[[], dict[str, object]]], dict[str, object]]


class CleanSlate:
    """What the process is like now, before its first model. Immutable.

    Made and asked by one thread at a time, while nothing else runs in the process.

    Args:
        watched: What modules hold.
        on_main_thread: Runs a function on the thread that answers calls, and returns
            what that returns.

    Raises:
        OSError: The system does not let it look.

    """

    def __init__(self, watched: WatchedObjects, on_main_thread: OnMainThread) -> None:
        self._watched = watched
        self._on_main_thread = on_main_thread
        self._warnings = dict(vars(warnings))
        self._filters = list(warnings.filters)
        self._mangling = dict(vars(_mangling))
        self._numpy_random = _numpy_random_state()
        self._modules = _modules()
        give_back()
        self._settings = {**on_main_thread(_thread_settings), **_settings()}
        self._mapped = _mapped_files()
        self._folders = {os.path.dirname(path) for path in self._mapped}
        self._words = watched.read()
        self._memory = KeptMemory(_MOST_KEPT_BYTES)

    def restore(self) -> None:
        """Puts back what can be, as a fresh fork has it. Blocks to collect garbage.

        Random numbers of Python and torch are new ones; numpy's are the zygote's again.
        """
        if self._numpy_random is not None:
            sys.modules["numpy"].random.set_state(self._numpy_random)
        seed_random()
        vars(_mangling)[_MANGLED] = self._mangling[_MANGLED]
        linecache.clearcache()
        give_back()

    def changes(self) -> str:
        """Returns what differs, as a list for people; empty if nothing does. Blocks."""
        found = [
            name for name in self._watched.changes(self._words) if name not in _SEEN_TO
        ]
        modules = _modules()
        found += [
            f"sys.modules[{name!r}]"
            for name in {**self._modules, **modules}
            if modules.get(name) != self._modules.get(name)
        ]
        now = {**self._on_main_thread(_thread_settings), **_settings()}
        found += [name for name in now if now[name] != self._settings.get(name)]
        found += _replaced("warnings", vars(warnings), self._warnings, {"filters"})
        if list(warnings.filters) != self._filters:
            found.append("warnings.filters")
        found += _replaced("torch.package._mangling", vars(_mangling), self._mangling)
        if self._numpy_random is None and _numpy_random_state() is not None:
            found.append("numpy.random")
        found += [
            f"a mapping of {path}"
            for path in _mapped_files() - self._mapped
            # Libraries that others load when they are first needed.
            if ".so" not in path or os.path.dirname(path) not in self._folders
        ]
        if kept_bytes := self._memory.excess_bytes():
            found.append(f"{kept_bytes >> 20} MB of memory")
        return ", ".join(found)


def _modules() -> dict[str, int]:
    return {name: id(module) for name, module in list(sys.modules.items())}


def _replaced(
    owner: str,
    now: Mapping[str, object],
    before: Mapping[str, object],
    but: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Returns what of a module is another object than before."""
    names = (
        ({*now, *before} - but) if now.keys() != before.keys() else before.keys() - but
    )
    return [
        f"{owner}.{name}" for name in names if now.get(name) is not before.get(name)
    ]


def _numpy_random_state() -> object:
    """Returns the state of numpy's random numbers, None while nobody imported them."""
    if "numpy.random" not in sys.modules:
        return None
    return sys.modules["numpy"].random.get_state()


def _thread_settings() -> dict[str, object]:
    """Returns what belongs to the calling thread."""
    smallest = sys.float_info.min
    return {
        **_torch_settings(_TORCH_THREAD_SETTINGS),
        "the trace function": sys.gettrace(),
        "the profile function": sys.getprofile(),
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "the rounding mode": _rounding(),
        "denormal numbers": smallest / 2 == 0.0,
        "the priority": os.getpriority(os.PRIO_PROCESS, 0),
        "the scheduling policy": os.sched_getscheduler(0),
        "context variables": len(contextvars.copy_context()),
        "numpy's error handling": _numpy_error_handling(),
    }


def _settings() -> dict[str, object]:
    """Returns what belongs to the process."""
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    return {
        **_torch_settings(_TORCH_SETTINGS),
        **_status(),
        "the default device": torch.get_default_device(),
        "a context of a device": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        "the working directory": folder,
        "the environment": dict(os.environ),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "functions run at the end": atexit._ncallbacks(),
        "signal handlers": [signal.getsignal(n) for n in signal.valid_signals()],
        "timers": [signal.getitimer(kind)[1] for kind in range(3)],
        "limits": [resource.getrlimit(kind) for kind in _LIMITS],
        "the process group": (os.getpgid(0), os.getsid(0)),
        "open files": _open_files(),
        "processes that it started": _started_processes(),
    }


def _torch_settings(names: Sequence[str]) -> dict[str, object]:
    getters = [(name, getattr(torch._C, name, None)) for name in names]
    return {name: getter() for name, getter in getters if getter is not None}


def _status() -> dict[str, object]:
    found: dict[str, object] = {}
    # Bytes, because a worker without rights cannot import another text encoding.
    with open("/proc/self/status", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in _STATUS_FIELDS:
                found[name.decode()] = value
    return found


def _open_files() -> dict[str, str]:
    """Returns where descriptors lead to; the one that finds them out is left out."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _started_processes() -> tuple[int, bool]:
    """Returns what tells of children: pages that those took that have ended; any others."""
    has_children = True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        has_children = False
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt, has_children


def _mapped_files() -> set[str]:
    with open("/proc/self/maps", "rb", buffering=_MAPS_BYTES) as file:
        lines = [line.split(maxsplit=5) for line in file]
    return {
        os.fsdecode(line[5].rstrip())
        for line in lines
        if len(line) > 5 and line[4] != b"0"
    }


def _numpy_error_handling() -> object:
    numpy = sys.modules.get("numpy")
    return numpy.geterr() if numpy is not None else None
