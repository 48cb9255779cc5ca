"""The host's side of a version that is loaded in a private CPython."""

from __future__ import annotations

import ctypes
import itertools
import logging
import pickle
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import Tensors
from tfs.core.tensor_view import Buffer, TensorView
from tfs.runtime.dlmopen.dlmopen_namespace import Namespace
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import num_rows_of
from tfs.runtime.guest.slab import DTYPE_CODES, DTYPE_OF_CODE
from tfs.runtime.guest.version_files import VersionFiles


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


log = logging.getLogger(__name__)

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
        self.last_call_s: float | None = None
        fds = {name: file.fd for name, file in files.files.items()}
        self.import_s: float = namespace.call(
            ("load", self._model_id, pickle.dumps(source), fds)
        )

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
            outputs, ns = self._namespace.call(
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
        self.last_call_s = ns / 1e9
        return views

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        """Not offered: tensors of this Python mean nothing to the other one."""
        raise NotImplementedError("a model in a namespace is called with views")

    def seed(self, seed: int | None) -> bool:
        """Sets the namespace's random numbers; see ``SeedableModel``."""
        with self._calling:
            self._namespace.call(("seed", seed))
        return True

    def close(self) -> None:
        """Drops the model there, after the call that is running; idempotent."""
        try:
            with self._calling:
                self._namespace.call(("unload", self._model_id))
        except ServingError as error:
            log.warning("event=unload_failed servable=%s error=%s", self._who, error)


class _PyBuffer(ctypes.Structure):
    """CPython's ``Py_buffer``."""

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
