"""Backend ``dlmopen``: a private CPython of this process, with a GIL of its own.

These are the paper's interpreters on stock wheels: only descriptions of tensors are
serialised, no process is woken, and the weights of a version are in memory once. They
need Linux with glibc and models on the CPU, and are used only where an operator asks
for them. Nothing is contained: a call that crashes ends the process, a call that hangs
holds its interpreter, and an interpreter takes some 145 MB that are freed only when the
process ends.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import pickle
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import Tensors
from tfs.core.tensor_view import Buffer, TensorView
from tfs.runtime.dlmopen import dlmopen_namespace
from tfs.runtime.dlmopen.dlmopen_namespace import Namespace
from tfs.runtime.guest.guest_model import GuestModel, Output, Value
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import num_rows_of
from tfs.runtime.guest.slab import DTYPE_CODES, DTYPE_OF_CODE
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import closed

log = logging.getLogger(__name__)


class CallTurn:
    """Held while something runs there, as a context manager. Thread-safe.

    A call there can be neither interrupted nor killed. Who has waited ``limit_s`` for
    its end is refused.

    Args:
        name: The name of the interpreter.
        limit_s: Seconds; None waits as long as it takes.

    """

    def __init__(self, name: str, limit_s: float | None) -> None:
        self._name = name
        self._limit_s = limit_s
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    def take(self, patience_s: float | None) -> bool:
        """Takes the turn if it can be had in so many seconds; None waits for it."""
        timeout_s = -1 if patience_s is None else max(0.0, patience_s)
        return self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Gives the turn back."""
        self._lock.release()

    def __enter__(self) -> None:
        if not self.take(self._limit_s):
            raise FailedPrecondition(
                f"a call has been running in interpreter {self._name} for over "
                f"{self._limit_s:.0f} s, and cannot be ended; restart the process if it "
                "does not end by itself"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


RELEASE_BYTES: Final = 1 << 20
"""Answers larger than this are released at once, smaller ones by the next call."""
_BYTES_OFFSET: Final = bytes.__basicsize__ - 1  # of the first byte in a bytes object

# No two models of this process share a number, whichever private Python they are in.
_ids = itertools.count(1)


class NamespaceModel:
    """A :class:`~tfs.runtime.guest.guest_model.GuestModel` that computes elsewhere.

    Any thread may call it. ``calling`` ensures that there is one call at a time for all
    models of the namespace.

    Args:
        namespace: The private Python that computes.
        calling: Held while something runs there.
        source: The version.
        files: Its bytes; the model maps them, the caller keeps them.

    Raises:
        ServingError: The version does not load; nothing is left of it.

    """

    def __init__(
        self,
        namespace: Namespace,
        calling: CallTurn,
        source: ModelSource,
        files: VersionFiles,
    ) -> None:
        self._namespace = namespace
        self._calling = calling
        self._source = source
        self._who = source.id.slashed
        self._model_id = next(_ids)
        fds = {name: file.fd for name, file in files.files.items()}
        namespace.call(("load", self._model_id, pickle.dumps(source), fds))

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        """Runs a signature; its outputs are copied once, from there to here."""
        signature = self._source.signatures[signature_name]
        num_rows = num_rows_of(signature, inputs)
        exports: list[_Export] = []
        described = [
            (name, (DTYPE_CODES[view.dtype], view.shape, _data(view.data, exports)))
            for name, view in inputs.items()
        ]
        with self._calling:
            outputs = self._namespace.call(
                ("call", self._model_id, signature_name, num_rows, described)
            )
            total_bytes = 0
            views: dict[str, TensorView] = {}
            for name, (code, shape, data) in outputs:
                dtype = DTYPE_OF_CODE[code]
                if isinstance(data, int):
                    size_bytes = dtype.item_bytes
                    for size in shape:
                        size_bytes *= size
                    total_bytes += size_bytes
                    data = ctypes.string_at(data, size_bytes)
                views[name] = TensorView(dtype, shape, data)
            if total_bytes > RELEASE_BYTES:
                self._namespace.call(("release",))
        del exports
        return views

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        """Not offered: tensors of this Python mean nothing to the other one."""
        raise NotImplementedError("a model in a namespace is called with views")

    def seed(self, seed: int | None) -> None:
        """Sets the namespace's random numbers."""
        with self._calling:
            self._namespace.call(("seed", seed))

    def close(self) -> None:
        """Drops the model there, after the call that is running; idempotent."""
        try:
            with self._calling:
                self._namespace.call(("unload", self._model_id))
        except ServingError as error:
            log.warning("event=unload_failed servable=%s error=%s", self._who, error)


class DlmopenInterpreter:
    """One private CPython and the thread that calls it. Thread-safe.

    Implements :class:`~tfs.runtime.interpreter.Interpreter` and, for the library,
    :class:`~tfs.runtime.library.interpreters.SessionChannel`. The CPython is made at the
    first load or session, which takes seconds, and kept for others after ``close``.

    Args:
        name: Names the thread.
        max_queued: Most tasks that may wait; one more is answered Unavailable.
        clock: The clock of deadlines.
        call_timeout_s: How long others wait for a call to end, which nobody can end, before
            they are refused. None waits for ever.

    Attributes:
        thread: Runs the calls of all versions here.

    """

    def __init__(
        self,
        name: str = "dlmopen-0",
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
        call_timeout_s: float | None = None,
    ) -> None:
        self._name = name
        clock = clock or MonotonicClock()
        # Held while anything but a load runs in the namespace. Rank: after the
        # thread's locks; no callback runs under it.
        self._calling = CallTurn(name, call_timeout_s)
        # Queue, deadlines and unloading are those of a thread of this process. Only the
        # place where a call is computed differs.
        self.thread = InlineInterpreter(
            name,
            max_queued=max_queued,
            clock=clock,
            load_model=self._load_model,
        )
        # Guards the fields below; held while a namespace opens. Rank: before
        # _calling.
        self._lock = threading.Lock()
        self._namespace: Namespace | None = None
        self._is_closed = False
        self._num_closings = 0

    @property
    def num_unanswered(self) -> int:
        """1 while a call is running there, else 0."""
        return int(self._calling.is_taken)

    @property
    def generation(self) -> int:
        """Changes when what sessions left here is gone."""
        return self._num_closings

    def load(
        self, source: ModelSource, files: VersionFiles | None = None
    ) -> InlineModel:
        """Loads a version, from ``files`` if they are there already; see the protocol."""
        if source.device != "cpu":
            raise FailedPrecondition(
                f"{source.id.slashed}: backend 'dlmopen' computes on the CPU only, not "
                f"on {source.device}; use inline or process"
            )
        return self.thread.load(source, files)

    @property
    def num_models(self) -> int:
        return self.thread.num_models

    def close(self, deadline_s: float | None = None) -> None:
        self.thread.close(deadline_s)
        with self._lock:
            self._is_closed = True
        patience_s = 0.0 if deadline_s is None else deadline_s - time.monotonic()
        self._end_sessions(patience_s)

    # -- sessions, on the callers' threads -----------------------------------------------

    def _end_sessions(self, patience_s: float) -> None:
        """Drops what sessions left, and the CPython if nothing is loaded there."""
        with self._lock:
            namespace = self._namespace
            if namespace is None:
                return
            if not self._calling.take(patience_s):
                log.warning("event=interpreter_hangs interpreter=%s", self._name)
                return
            try:
                namespace.call(("end_sessions",))
            finally:
                self._calling.end()
            self._num_closings += 1
            if not self.thread.num_models:
                self._namespace = None
                dlmopen_namespace.give_back(namespace)

    def exchange(
        self, request: bytes, fds: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        namespace = self.namespace()
        with self._calling:
            reply: tuple[bytes, list[int]] = namespace.call(
                ("session", request, list(fds))
            )
        return reply

    def _load_model(self, source: ModelSource, files: VersionFiles) -> GuestModel:
        return NamespaceModel(self.namespace(), self._calling, source, files)

    def namespace(self) -> Namespace:
        """Returns the CPython. Blocks for seconds the first time, if none is idle."""
        with self._lock:
            if self._is_closed:
                raise closed(self._name)
            if self._namespace is None:
                self._namespace = dlmopen_namespace.take()
            return self._namespace


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None


class _Export:
    """Keeps a buffer at its address for as long as this object lives."""

    __slots__ = ("_buffer", "address")

    def __init__(self, data: Buffer) -> None:
        buffer = _PyBuffer()
        _get_buffer(data, ctypes.addressof(buffer), 0)
        self._buffer = buffer
        self.address: int = buffer.buf or 0

    def __del__(self) -> None:
        _release_buffer(ctypes.addressof(self._buffer))


def _data(
    data: Buffer | tuple[bytes, ...], exports: list[_Export]
) -> int | tuple[bytes, ...]:
    """Returns the address of a tensor's elements; strings as they are."""
    if type(data) is bytes:
        return id(data) + _BYTES_OFFSET
    if isinstance(data, tuple):
        return data
    exports.append(_Export(data))
    return exports[-1].address
