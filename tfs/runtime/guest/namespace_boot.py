"""The first of our code that a private CPython runs, before it imports torch.

It lets models of a private CPython start threads that end.

When a thread ends, the C library keeps its stack for the next thread, and frees the
thread-local memory of libraries before that. All link namespaces share one list of
stacks. The thread-local memory was allocated by the process's own libc, whichever
library it is for, and freeing it with the libc of another namespace crashes. Therefore

- threads of a namespace ask for larger stacks than the process's own threads have, so that
  they never get one of those (``tfs.runtime.dlmopen.dlmopen_namespace``);
- a Python thread of a namespace ends without owning such memory. The process's libc frees
  it when the next thread is started from outside.

This does not help threads that C++ code starts there. torch's own threads live as long
as the namespace.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables of thread pools: every namespace has pools of its own, which
would multiply, so each gets one thread unless a model asks for more."""


def boot(entry_address: int, free_address: int, environment: Mapping[str, str]) -> None:
    """Makes this Python answer requests; see ``tfs.runtime.dlmopen.dlmopen_namespace``.

    Args:
        entry_address: Where to write the address of the function that answers.
        free_address: Address of the process's own ``free``.
        environment: The process's, as its Python knows it: this libc has seen only
            what the process was started with.

    Raises:
        Exception: torch or this package cannot be imported here.

    """
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({**environment, **dict.fromkeys(_ONE_THREAD, "1")})
    _load_locally()
    let_threads_end(free_address)
    # This Python is never finalised, so what it prints must not stay in a buffer.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # torch.package itself uses it, which we cannot change.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    guest = importlib.import_module("tfs.runtime.guest.namespace_guest")
    ctypes.c_uint64.from_address(entry_address).value = guest.start()


def _load_locally() -> None:
    """Removes RTLD_GLOBAL from the flags with which libraries are loaded.

    In any namespace but the first, glibc (2.36) has no global scope to add to, and
    crashes. torch asks for RTLD_GLOBAL when it is imported, but it does not need it,
    because its libraries name what they need.
    """
    load: Any = ctypes.CDLL.__init__
    set_flags = sys.setdlopenflags

    def load_locally(
        self: ctypes.CDLL,
        name: str | None,
        mode: int = ctypes.DEFAULT_MODE,
        *args: object,
        **kwargs: object,
    ) -> None:
        load(self, name, mode & ~ctypes.RTLD_GLOBAL, *args, **kwargs)

    ctypes.CDLL.__init__ = load_locally  # type: ignore[method-assign]
    sys.setdlopenflags = lambda flags, /: set_flags(flags & ~os.RTLD_GLOBAL)


_DTV_OFFSET: Final = 8  # in the thread's control block, of x86-64
_SLOT_BYTES: Final = 16  # where a library's memory is, and what to free for it


def let_threads_end(free_address: int) -> None:
    """Wraps the function that starts Python threads. Only done on x86-64.

    Args:
        free_address: Address of the process's own ``free``.

    """
    if platform.machine() == "x86_64":
        threads = _EndingThreads(free_address)
        for module, name in (
            (_thread, "start_new_thread"),
            (threading, "_start_new_thread"),
        ):
            setattr(module, name, threads.start)


class _EndingThreads:
    """Thread-safe, by this Python's GIL."""

    def __init__(self, free_address: int) -> None:
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(free_address)
        self._control_block = ctypes.CDLL("libc.so.6").pthread_self
        self._control_block.restype = ctypes.c_void_p
        self._start: Callable[..., int] = _thread.start_new_thread
        self._own = threading.local()  # has "is_ours" in threads that were started here
        self._left: list[tuple[int, list[int]]] = []  # by thread: what to free

    def start(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object] = MappingProxyType({}),
        /,
    ) -> int:
        """As ``_thread.start_new_thread``."""
        if self._left and not hasattr(self._own, "is_ours"):
            self._free_left()

        def run() -> None:
            self._own.is_ours = True
            try:
                function(*args, **kwargs)
            finally:
                owned = _disowned(self._control_block())
                self._left.append((_thread.get_native_id(), owned))

        return self._start(run, ())

    def _free_left(self) -> None:
        """Frees the memory of threads that have ended. Only a thread of that libc may."""
        left, self._left = self._left, []
        for thread_id, owned in left:
            if os.path.exists(f"/proc/self/task/{thread_id}"):
                self._left.append((thread_id, owned))
            else:
                for address in owned:
                    self._free(address)


def _disowned(control_block: int) -> list[int]:
    """Returns the thread's dynamic thread-local memory, which it no longer frees."""
    slots = ctypes.c_size_t.from_address(control_block + _DTV_OFFSET).value
    num_slots = ctypes.c_size_t.from_address(slots - _SLOT_BYTES).value
    owned = []
    for index in range(1, num_slots + 1):
        place = slots + index * _SLOT_BYTES + ctypes.sizeof(ctypes.c_void_p)
        to_free = ctypes.c_void_p.from_address(place)
        if to_free.value:
            owned.append(to_free.value)
            to_free.value = None
    return owned
