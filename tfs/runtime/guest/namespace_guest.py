"""The side of a private CPython that answers requests from the rest of its process.

Another Python of the same process calls one C function, with a request that ``marshal``
wrote, and reads the answer where it lies. Tensors are named by address: nobody
serialises them, and each side reads the other's memory.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch

from tfs.core.errors import (
    Internal,
    Unavailable,
    serving_error,
)
from tfs.runtime.guest.faults import one_line
from tfs.runtime.guest.guest_model import (
    GuestModel,
    Value,
    give_memory_back,
    load_guest_model,
)
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import FORKS, seed_random
from tfs.runtime.guest.sessions.session_guest import SessionGuest
from tfs.runtime.guest.slab import DTYPE_CODES, DTYPE_OF_CODE
from tfs.runtime.guest.torch_tensor import DTYPE_OF, TORCH_DTYPES, nest, plain

_ENTRY: Final = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p
)
_BYTES_OFFSET: Final = bytes.__basicsize__ - 1  # of the first byte in a bytes object
_MAX_TEXT_BYTES: Final = 4096
_InferenceMode = torch._C._InferenceMode  # what torch.inference_mode() wraps


_TO_SERVER: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _let_signals_go() -> None:
    """Gives signals their default meaning in a process that a model forks.

    The handlers are those of the host's Python, which does not know of this fork, and
    would take a signal to it for one to the server. Done in C, because this Python has no
    main thread that could.
    """
    libc = ctypes.CDLL(None)
    for number in _TO_SERVER:
        libc.signal(number, None)


SharedTensor: TypeAlias = "tuple[int, tuple[int, ...], int | tuple[bytes, ...]]"
"""Code of the dtype, shape, and address of the elements; strings are passed as they
are."""


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.reply = b""  # the caller reads it before the thread's next call
        self.num_threads = 0


class NamespaceGuest:
    """Answers requests: (operation, its arguments...).

    ``load``, ``release`` and ``unload`` may be called at any time, ``unload`` only
    while no call of that model is running. All other requests must come one at a time.
    """

    def __init__(self) -> None:
        # Each change is one dict operation.
        self._models: dict[int, tuple[ModelSource, GuestModel]] = {}
        self._own = _PerThread()
        self._sessions: SessionGuest | None = None
        self._kept: list[torch.Tensor] = []  # outputs that the caller is about to read
        self._operations: dict[str, Callable[..., object]] = {
            "call": self._call,
            "check": self._check,
            "release": self._release,
            "load": self._load,
            "unload": self._unload,
            "seed": seed_random,
            "session": self._session,
            "end_sessions": self._end_sessions,
        }

    def answer(self, address: int, size: int, reply_place: int) -> int:
        """Answers the request that lies at an address; returns the reply's size.

        Where the reply lies is written to ``reply_place``. It stays there until the
        calling thread's next call.
        """
        reply = self._own.reply = self._reply_to(ctypes.string_at(address, size))
        ctypes.c_void_p.from_address(reply_place).value = id(reply) + _BYTES_OFFSET
        return len(reply)

    def _reply_to(self, request: bytes) -> bytes:
        try:
            operation, *arguments = marshal.loads(request)
            value: Any = self._operations[operation](*arguments)
            return marshal.dumps((0, value))
        except BaseException as error:  # user code may raise anything, SystemExit too
            fault = serving_error(error, "a private Python")
            return marshal.dumps((int(fault.code), fault.to_bytes(_MAX_TEXT_BYTES)))

    def _check(self) -> None:
        """Computes something whose result is known, and raises if the result is wrong."""
        ones = torch.ones(64, 64)
        if float((ones @ ones).sum()) != float("262144.0"):
            raise Internal("a private Python computes wrongly")

    # -- versions ------------------------------------------------------------------------

    def _load(self, model_id: int, source: bytes, files: Mapping[str, int]) -> None:
        # The bytes come from this very process, so pickle is safe here.
        version: ModelSource = pickle.loads(source)
        torch.set_num_threads(1)
        staged = VersionFiles.adopt({name: os.dup(fd) for name, fd in files.items()})
        try:
            guest = load_guest_model(version, staged)
        finally:
            staged.close()
        self._models[model_id] = version, guest

    def _call(
        self,
        model_id: int,
        signature_name: str,
        num_rows: int,
        inputs: Sequence[tuple[str, SharedTensor]],
    ) -> list[tuple[str, object]]:
        self._kept = []
        source, guest = self._loaded(model_id)
        self._set_threads(source.intra_op_threads)
        # Inputs that are made in inference mode have no version counters, which every
        # operator would have to maintain.
        with _InferenceMode(True):
            values: dict[str, Value] = {}
            for name, (code, shape, data) in inputs:
                values[name] = (
                    tensor_at(code, shape, data)
                    if isinstance(data, int)
                    else nest(data, shape)
                )
            depth = FORKS.depth
            try:
                outputs = guest.run(signature_name, values, num_rows)
            finally:
                FORKS.end_copy(depth)
            try:
                return [
                    (name, describe(value, self._kept))
                    if isinstance(value, torch.Tensor)
                    else (name, (DTYPE_CODES[value.dtype], value.shape, value.data))
                    for name, value in outputs.items()
                ]
            except BaseException as error:  # of a class of the model's own
                who = f"{source.id.slashed}, signature {signature_name!r}"
                raise Internal(
                    f"{who} returned what cannot be read: {one_line(error)}"
                ) from error

    def _release(self) -> None:
        self._kept = []

    def _unload(self, model_id: int) -> None:
        loaded = self._models.pop(model_id, None)
        if loaded is not None:
            self._kept = []
            loaded[1].close()
            del loaded
            give_memory_back()

    def _loaded(self, model_id: int) -> tuple[ModelSource, GuestModel]:
        found = self._models.get(model_id)
        if found is None:
            raise Unavailable("the model is not loaded on this interpreter; retry")
        return found

    def _set_threads(self, wanted: int) -> None:
        # The number belongs to each thread (OpenMP's and MKL's are per thread).
        own = self._own
        if own.num_threads != wanted:
            torch.set_num_threads(wanted)
            own.num_threads = wanted

    # -- sessions ------------------------------------------------------------------------

    def _session(self, request: bytes, fds: list[int]) -> tuple[bytes, list[int]]:
        self._set_threads(1)
        if self._sessions is None:
            self._sessions = SessionGuest()
        return self._sessions.handle(request, fds)

    def _end_sessions(self) -> None:
        self._kept = []
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None
            give_memory_back()


def describe(tensor: torch.Tensor, kept: list[torch.Tensor]) -> SharedTensor:
    """Returns a tensor's description; adds what has to stay alive for it to ``kept``."""
    dense = plain(tensor)
    kept.append(dense)
    code = DTYPE_CODES[DTYPE_OF[dense.dtype]]
    return code, tuple(dense.shape), dense.data_ptr()


def tensor_at(code: int, shape: tuple[int, ...], address: int) -> torch.Tensor:
    """Returns a copy of the tensor described; it owns its memory."""
    tensor = torch.empty(shape, dtype=TORCH_DTYPES[DTYPE_OF_CODE[code]])
    ctypes.memmove(tensor.data_ptr(), address, tensor.nbytes)
    return tensor


_started: list[object] = []  # kept alive, because C code has their addresses


def start() -> int:
    """Returns the address of a C function that answers requests, for good."""
    os.register_at_fork(after_in_child=_let_signals_go)
    torch.set_num_threads(1)
    guest = NamespaceGuest()
    gc.collect()
    gc.freeze()  # collections need not look at torch's objects, which all stay
    entry = _ENTRY(guest.answer)
    _started.extend((guest, entry))
    return ctypes.cast(entry, ctypes.c_void_p).value or 0
