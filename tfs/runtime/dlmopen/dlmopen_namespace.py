"""A private CPython in this process: its own libc, libpython and torch, loaded anew.

``dlmopen`` loads a shared library and all it needs into a link namespace of its own, so
that it shares nothing with what the process has loaded already: another copy of Python
with another GIL. glibc meant this for audit libraries. For a whole Python that has
consequences, each of which is dealt with at the place named here:

1. loading anything with RTLD_GLOBAL there crashes the loader: :mod:`the guest's boot
   code <tfs.runtime.guest.namespace_boot>` removes the flag;
2. every libc numbers its thread-local keys by itself, but all of them keep the values in
   one table per thread: :class:`_Keys`;
3. a thread of one libc is unknown to another: :meth:`Namespace._enter`;
4. each copy of libc needs static thread-local storage, of which there is little:
   :data:`MORE_ROOM` says how to get more;
5. stacks of threads that ended are kept in one list, with memory that only the
   process's own libc can free: :func:`_want_larger_stacks`, and the boot code of 1;
6. no namespace can be unloaded, because torch cannot: each is kept for the next user
   (:func:`take`, :func:`give_back`), and a process has as many as it ever used at once.

A crash in a namespace ends the process. None of this works with libraries that use
CUDA.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from typing import Any, Final

from tfs.core.errors import FailedPrecondition, error_from
from tfs.runtime.process.zygote_process import import_path


def find_libpython() -> str | None:
    """Returns the path of the ``libpython`` that belongs to this interpreter.

    If this process runs from a shared library, it is that one. For an executable that
    has Python built in, it is the library that is installed beside it. None if there is
    none.
    """
    # Not from sysconfig: before Python 3.12, threads that ask it for the first time at
    # once may be told that there is nothing.
    major, minor = sys.version_info[:2]
    name = f"libpython{major}.{minor}{sys.abiflags}.so.1.0"
    for path in (*_mapped(name), *_installed(name)):
        if os.path.isfile(path):
            return path
    return None


def _mapped(name: str) -> Iterator[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                path = line.split(maxsplit=5)[-1].rstrip("\n")
                if os.path.basename(path) == name:
                    yield path
    except OSError:
        return


def _installed(name: str) -> Iterator[str]:
    folders = [os.path.join(sys.base_prefix, "lib"), sysconfig.get_config_var("LIBDIR")]
    multiarch = getattr(sys.implementation, "_multiarch", None)
    if isinstance(multiarch, str):
        folders.append(os.path.join("/usr/lib", multiarch))
    for folder in folders:
        if isinstance(folder, str):
            yield os.path.join(folder, name)


MORE_ROOM: Final = "GLIBC_TUNABLES=glibc.rtld.nns=16"
"""Gives room for 15 namespaces instead of 6, if it is set in the environment before the
process starts."""

_ADVICE: Final = (
    f"start the process with {MORE_ROOM} in its environment, or use fewer interpreters"
)

_LM_ID_NEWLM: Final = -1
_RTLD_DI_LMID: Final = 1
_LIBC: Final = b"libc.so.6"
# Offset of the first byte in a bytes object.
_BYTES_OFFSET: Final = bytes.__basicsize__ - 1
_NUM_KEYS: Final = 1024  # PTHREAD_KEYS_MAX
_BLOCK_KEYS: Final = 32  # PTHREAD_KEY_2NDLEVEL_SIZE
_NUM_BLOCKS: Final = 2  # 62 keys: Python, torch and gRPC together use 14
_MORE_STACK_BYTES: Final = 1 << 20  # address space only

# A model's next call uses the memory of its last one again, instead of giving it back
# and faulting it in anew; unloading gives it back. Process interpreters have the same
# setting.
_MALLOPT: Final = ((-1, 256 << 20), (-2, 16 << 20), (-3, 32 << 20))

_ENTRY: Final = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p
)
_FAULT_BYTES: Final = 1024
_BOOT: Final = """
import sys
sys.path[:] = {path!r}
try:
    from tfs.runtime.guest.namespace_boot import boot
    boot({entry}, {free}, {environment!r})
except BaseException as error:
    import ctypes
    text = f"{{type(error).__name__}}: {{error}}".encode()[:{fault_bytes} - 1]
    ctypes.memmove({fault}, text, len(text))
"""

# One namespace opens at a time, because they share the loader's tables; also guards the
# list. Held while Python starts and imports torch, which takes seconds.
_opening = threading.Lock()
_idle: list[Namespace] = []
# Namespaces are never freed, because threads may have left something there.
_all: list[Namespace] = []


def take() -> Namespace:
    """Returns a namespace that nobody uses: an idle one, or a new one. Blocks for seconds.

    Raises:
        FailedPrecondition: No further one can be opened.

    """
    with _opening:
        if _idle:
            return _idle.pop()
        namespace = Namespace(len(_all))
        _all.append(namespace)
        return namespace


def give_back(namespace: Namespace) -> None:
    """Keeps a namespace for the next user; the last one must have left nothing."""
    with _opening:
        _idle.append(namespace)


class Namespace:
    """One private CPython. Thread-safe: any thread of the process may call it.

    It should be called by long-lived threads, because what the namespace's libc
    allocates for a thread (some 2 KB) is not freed when the thread ends.

    Raises:
        FailedPrecondition: It cannot be opened; what was loaded for it stays.

    """

    def __init__(self, number: int) -> None:
        self._host = _host()
        self._python, self._libc = _load(self._host)
        self._keys = _Keys(self._host, self._libc)
        self._ctype_init = self._libc["__ctype_init"]
        for parameter, value in _MALLOPT:
            self._libc.mallopt(parameter, value)
        _want_larger_stacks(self._libc)
        self._own = _PerThread()
        self._program = ctypes.create_unicode_buffer(sys.executable)
        self._entry: Any = None
        booted = threading.Event()
        faults: list[str] = []
        # Python takes the thread that starts it for its main thread, and libraries
        # leave their state in that thread's memory: it stays as long as they do.
        threading.Thread(
            target=self._live,
            args=(booted, faults),
            name=f"dlmopen-main-{number}",
            daemon=True,
        ).start()
        booted.wait()
        if faults:
            raise _not_started(faults[0])

    def call(self, request: Any) -> Any:
        """Sends a request to the guest; returns its answer, and blocks until then.

        The request is a tuple. Request and answer consist of values that ``marshal``
        accepts; see :class:`~tfs.runtime.guest.namespace_guest.NamespaceGuest`.

        Raises:
            ServingError: The error that the guest returned.

        """
        visit = self._own.visit
        if visit is None:
            visit = self._own.visit = self._enter()
        data = marshal.dumps(request)
        size = self._entry(id(data) + _BYTES_OFFSET, len(data), visit.address)
        reply = ctypes.string_at(visit.reply.value or 0, size)
        code, value = marshal.loads(reply)
        if code:
            raise error_from(code, value)
        return value

    # -- threads -----------------------------------------------------------------------

    def _enter(self) -> _Visit:
        """Makes the calling thread known to the namespace's libc and Python."""
        self._keys.adopt_thread()
        # When glibc starts a thread, it makes the tables that isalpha() and strtod()
        # use. For a thread of another libc that was not done.
        self._ctype_init()
        return _Visit(self._python)

    def _live(self, booted: threading.Event, faults: list[str]) -> None:
        try:
            self._boot()
        except Exception as error:
            faults.append(str(error))
        finally:
            booted.set()
        threading.Event().wait()

    def _boot(self) -> None:
        self._keys.adopt_thread()
        self._ctype_init()
        python = self._python
        version = python.Py_GetVersion().decode()
        if version != sys.version:
            raise RuntimeError(f"the library is of Python {version}, not {sys.version}")
        python.Py_SetProgramName(self._program)  # Python reads it as long as it lives
        python.Py_InitializeEx(0)  # 0 leaves signals to the process
        entry = ctypes.c_uint64()
        fault = ctypes.create_string_buffer(_FAULT_BYTES)
        code = _BOOT.format(
            path=import_path(),
            environment=dict(os.environ),
            entry=ctypes.addressof(entry),
            free=ctypes.cast(self._host.free, ctypes.c_void_p).value,
            fault=ctypes.addressof(fault),
            fault_bytes=_FAULT_BYTES,
        )
        python.PyRun_SimpleString(code.encode())
        python.PyEval_SaveThread()
        if not entry.value:
            raise RuntimeError(
                fault.value.decode(errors="replace") or "no reason known"
            )
        self._entry = _ENTRY(entry.value)


class _PerThread(threading.local):
    visit: _Visit | None = None


class _Visit:
    """A host thread's state in a namespace's Python, from its first call to its end."""

    def __init__(self, python: ctypes.CDLL) -> None:
        self._python = python
        self._pid = os.getpid()
        self.reply = ctypes.c_void_p()  # where the reply to its last request lies
        self.address = ctypes.addressof(self.reply)
        # Python keeps a state per thread. It is made here once; otherwise every call
        # would make one and throw it away.
        python.PyGILState_Ensure()
        self._state = python.PyEval_SaveThread()

    def __del__(self) -> None:
        # In a fork, the namespace's Python does not know the thread that is left.
        if not sys.is_finalizing() and os.getpid() == self._pid:
            self._python.PyEval_RestoreThread(self._state)
            self._python.PyGILState_Release(1)


class _Keys:
    """Keeps the thread-local keys of a namespace's libraries away from all others.

    A libc numbers its keys from 0 up, and looks up a key's value in a table of the
    thread, which all copies of libc share. Two of them that give out the same number
    would read each other's values. So numbers are reserved in the host's libc, and the
    namespace's libc is left with only those. Then it can neither give out a number of
    another nor exceed the table.

    The table grows by blocks of 32. The libc that needs a block first allocates it, and
    the libc that ends the thread, which is the host's, frees it. Therefore one key per
    block gets a value in the host's libc before a thread enters.
    """

    def __init__(self, host: ctypes.CDLL, libc: ctypes.CDLL) -> None:
        self._host = host
        self._libc = libc
        reserved = _reserve(host)
        self._anchors = [
            key for key in reserved if key % _BLOCK_KEYS == _BLOCK_KEYS - 1
        ]
        free = _make_keys(libc)
        if len(free) != _NUM_KEYS:
            raise FailedPrecondition(
                "a private Python does not start: its C library has made thread-local "
                "keys already"
            )
        for key in reserved:
            if key not in self._anchors:
                libc.pthread_key_delete(key)

    def adopt_thread(self) -> None:
        """Prepares the calling thread's table."""
        for key in self._anchors:
            self._host.pthread_setspecific(key, 1)


def _want_larger_stacks(libc: ctypes.CDLL) -> None:
    """Makes the threads of a namespace ignore the stacks that other threads left."""
    attributes = (ctypes.c_uint64 * 8)()  # pthread_attr_t: 56 bytes, 64 on some
    size = ctypes.c_size_t()
    libc.pthread_getattr_default_np(attributes)
    libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    larger = ctypes.c_size_t(size.value + _MORE_STACK_BYTES)
    libc.pthread_attr_setstacksize(attributes, larger)
    libc.pthread_setattr_default_np(attributes)
    libc.pthread_attr_destroy(attributes)


def _reserve(host: ctypes.CDLL) -> list[int]:
    """Reserves whole neighbouring blocks of keys in the host's libc, for good."""
    made: set[int] = set()
    found: list[int] = []
    key = ctypes.c_uint()
    while not found and host.pthread_key_create(ctypes.byref(key), None) == 0:
        made.add(key.value)
        stop = key.value + 1
        span = range(stop - _NUM_BLOCKS * _BLOCK_KEYS, stop)
        if stop % _BLOCK_KEYS == 0 and made.issuperset(span):
            found = list(span)
    for number in made.difference(found):
        host.pthread_key_delete(number)
    if not found:
        raise FailedPrecondition(
            "a private Python does not start: the process has no thread-local keys left"
        )
    return found


def _make_keys(libc: ctypes.CDLL) -> list[int]:
    made = []
    key = ctypes.c_uint()
    while libc.pthread_key_create(ctypes.byref(key), None) == 0:
        made.append(key.value)
    return made


def _host() -> ctypes.CDLL:
    host = ctypes.CDLL(None)
    host.dlmopen.restype = ctypes.c_void_p
    host.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    host.dlerror.restype = ctypes.c_char_p
    host.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    host.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]
    return host


def _load(host: ctypes.CDLL) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Loads libpython, and libc with it, into a new namespace."""
    path = find_libpython()
    if path is None:
        raise FailedPrecondition("this Python has no libpython to load once more")
    mode = os.RTLD_NOW | os.RTLD_LOCAL
    handle = host.dlmopen(_LM_ID_NEWLM, os.fsencode(path), mode)
    if not handle:
        raise _not_loaded(host)
    namespace_id = ctypes.c_long()
    host.dlinfo(handle, _RTLD_DI_LMID, ctypes.byref(namespace_id))
    libc_handle = host.dlmopen(namespace_id.value, _LIBC, mode)
    if not libc_handle:
        raise _not_loaded(host)
    python = ctypes.CDLL(path, handle=handle)
    python.Py_GetVersion.restype = ctypes.c_char_p
    python.Py_SetProgramName.argtypes = [ctypes.c_void_p]
    python.PyEval_SaveThread.restype = ctypes.c_void_p
    python.PyEval_RestoreThread.argtypes = [ctypes.c_void_p]
    python.PyEval_RestoreThread.restype = None
    python.PyGILState_Release.restype = None
    return python, ctypes.CDLL("libc.so.6", handle=libc_handle)


def _not_loaded(host: ctypes.CDLL) -> FailedPrecondition:
    reason = (host.dlerror() or b"no reason given").decode(errors="replace")
    return FailedPrecondition(
        f"there is no room for another private Python: {reason}; {_ADVICE}"
    )


def _not_started(reason: str) -> FailedPrecondition:
    # The first to find no room may be a library of torch.
    advice = f"; {_ADVICE}" if "static TLS" in reason else ""
    return FailedPrecondition(f"a private Python does not start: {reason}{advice}")
