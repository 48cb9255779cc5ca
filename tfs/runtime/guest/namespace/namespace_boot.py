"""The first of our code that a private CPython runs, before it imports torch."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final

from tfs.runtime.guest.namespace.namespace_threads import let_threads_end

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
    guest = importlib.import_module("tfs.runtime.guest.namespace.namespace_guest")
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
