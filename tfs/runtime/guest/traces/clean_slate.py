"""Checks whether a worker is as it was before it had a model, so that it may get another.

The next version must get a process in which nothing shows that there was a version
before. What can be put back is put back (random numbers, names that torch counts,
loggers). If anything else differs from what was recorded before the first model was
loaded, the process ends. Recorded are

- the contents of the zygote's objects, those of modules, classes and instances alike
  (``watched_objects.py``), so that anything that was patched, added or imported shows;
- settings of torch, of Python and of the process, of the thread that answers calls,
  signal handlers, limits, descriptors (``process_settings.py``);
- the classes and functions: if one outlives its model, somebody holds it;
- mapped files, and how much memory is held.

Memory that no object leads to cannot be checked, for example an extension's static
variables. That is why a worker is reused only for the same code, and for a limited
number of versions.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import logging
import os
import random
import re
import resource
import sys
import threading
import time
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import torch
from torch.package import _mangling, package_importer

from tfs.core import right_of_way
from tfs.core.right_of_way import make_way
from tfs.runtime.guest import slab
from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.random_numbers import seed_random
from tfs.runtime.guest.traces.all_objects import all_objects
from tfs.runtime.guest.traces.kept_memory import KeptMemory
from tfs.runtime.guest.traces.object_names import name_of_code
from tfs.runtime.guest.traces.process_settings import (
    settings_of_process,
    settings_of_thread,
)
from tfs.runtime.guest.traces.watched_objects import WatchedObjects

_MOST_KEPT_BYTES: Final = 16 << 20
"""Bytes that a worker may hold beyond what it held before the model, once free memory
is given back. Pages that it shares with its zygote become its own when it writes to
them: a few megabytes."""

_MANGLED: Final = "_mangle_index"
_CODE: Final = (types.FunctionType, types.ModuleType, type)
_MAPS_BYTES: Final = 1 << 16
_LOOKS_AT_THREADS: Final = 100
_BETWEEN_LOOKS_S: Final = 0.002

OnMainThread = Callable[[Callable[[], dict[str, object]]], dict[str, object]]


def watch_objects() -> WatchedObjects:
    """Returns the objects by which forks of this process can check themselves.

    Blocks for a tenth of a second. To be called before anything is frozen, because the
    collector does not report frozen objects.

    Raises:
        RuntimeError: See :class:`WatchedObjects`.

    """
    return WatchedObjects(all_objects(), but=_seen_to())


def _seen_to() -> list[object]:
    """Returns objects that differ after every model: put back, checked here, or ours."""
    loggers = logging.root.manager.loggerDict
    return [
        *_noted_seeds(),
        *(vars(each) for each in (_mangling, warnings, random._inst)),
        vars(right_of_way._of_process),
        *(each for cache in _typing_caches() for each in gc.get_referents(cache)),
        *(vars(each).get("_cache") for each in [logging.root, *loggers.values()]),
        loggers,
        logging._handlerList,  # type: ignore[attr-defined]
        linecache.cache,
        package_importer._package_imported_modules.data,  # type: ignore[attr-defined]
        re._cache,  # type: ignore[attr-defined]
        slab._PACKINGS,
        sys.modules,
        threading._active,  # type: ignore[attr-defined]
        threading._limbo,  # type: ignore[attr-defined]
        vars(threading._dangling),  # type: ignore[attr-defined]
        threading._dangling.data,  # type: ignore[attr-defined]
    ]


def _log_handlers() -> list[object]:
    """Returns weak references to all that are alive; the list itself moves as it grows."""
    return list(logging._handlerList)  # type: ignore[attr-defined]


class CleanSlate:
    """The state of the process now, before its first model. Immutable.

    Made and used by one thread at a time, while nothing else runs in the process.

    Args:
        watched: The objects that were in the zygote.
        on_main_thread: Runs a function on the thread that answers calls, and returns
            its result.

    Raises:
        OSError: The system does not allow these checks.

    """

    def __init__(self, watched: WatchedObjects, on_main_thread: OnMainThread) -> None:
        self._watched = watched
        self._on_main_thread = on_main_thread
        self._warnings = dict(vars(warnings))
        self._filters = list(warnings.filters)
        self._mangling = dict(vars(_mangling))
        self._loggers = dict(logging.root.manager.loggerDict)
        self._handlers = _log_handlers()
        self._random = dict(vars(random._inst))
        self._seeds = [dict(each) for each in _noted_seeds()]
        self._numpy_random = _numpy_random_state()
        self._modules = dict(sys.modules)
        self._data_limit = resource.getrlimit(resource.RLIMIT_DATA)
        give_back()
        self._num_threads = _num_threads()
        self._settings = self._read_settings()
        self._mapped = _mapped_files()
        self._folders = {os.path.dirname(path) for path in self._mapped}
        self._words = watched.read()
        self._code = _code()
        self._witness: list[object] = []  # for the collector to know of
        self._memory = KeptMemory(_MOST_KEPT_BYTES)

    def restore(self) -> None:
        """Puts back what can be put back, as in a new fork. Blocks to collect garbage.

        Random numbers of Python and torch are seeded anew; numpy's are the zygote's
        again.
        """
        make_way()
        if self._numpy_random is not None:
            sys.modules["numpy"].random.set_state(self._numpy_random)
        seed_random()
        for seeds, before in zip(_noted_seeds(), self._seeds, strict=True):
            seeds.clear()
            seeds.update(before)
        vars(_mangling)[_MANGLED] = self._mangling[_MANGLED]
        linecache.clearcache()
        re.purge()
        for cache in _typing_caches():
            cache.cache_clear()
        loggers = logging.root.manager.loggerDict
        for name in loggers.keys() - self._loggers.keys():
            del loggers[name]
        with contextlib.suppress(ValueError):  # it can no more be raised
            resource.setrlimit(resource.RLIMIT_DATA, self._data_limit)
        make_way()
        give_back()
        make_way()

    def changes(self) -> str:
        """Returns what differs, as a list for people; empty if nothing does. Blocks.

        If something differs, this may take long, and memory: the process should end
        then.
        """
        self._await_ends_of_threads()
        found = self._watched.changes(self._words)
        make_way()
        found += _replaced("sys.modules", sys.modules, self._modules)
        found += _replaced("loggers", logging.root.manager.loggerDict, self._loggers)
        found += _replaced("random", vars(random._inst), self._random)
        found += _replaced("warnings", vars(warnings), self._warnings, {"filters"})
        found += _replaced("torch.package._mangling", vars(_mangling), self._mangling)
        make_way()
        now = self._read_settings()
        make_way()
        found += [name for name in now if now[name] != self._settings.get(name)]
        if list(warnings.filters) != self._filters:
            found.append("warnings.filters")
        if _log_handlers() != self._handlers:
            found.append("handlers of logs")
        if self._numpy_random is None and _numpy_random_state() is not None:
            found.append("numpy.random")
        found += [
            f"a mapping of {path}"
            for path in _mapped_files() - self._mapped
            # Libraries that others load when they are first needed.
            if ".so" not in path or os.path.dirname(path) not in self._folders
        ]
        make_way()
        if not found:
            found = self._left_behind()
        return ", ".join(found)

    def _left_behind(self) -> list[str]:
        """Returns code that exists only because somebody still holds it."""
        objects = gc.get_objects()
        make_way()
        if not any(each is self._witness for each in objects):
            return ["objects that were frozen"]
        this_thread = threading.current_thread()
        known = [*self._code, this_thread._invoke_excepthook]  # type: ignore[attr-defined]
        found = [
            f"{name_of_code(each)}, which something holds"
            for each in objects
            if issubclass(type(each), _CODE) and not any(each is x for x in known)
        ]
        if kept_bytes := self._memory.excess_bytes():
            found.append(f"{kept_bytes >> 20} MB of memory")
        return found

    def _await_ends_of_threads(self) -> None:
        """Waits a little for threads that have done their work, such as the one that loaded."""
        for _ in range(_LOOKS_AT_THREADS):
            if _num_threads() <= self._num_threads:
                return
            time.sleep(_BETWEEN_LOOKS_S)

    def _read_settings(self) -> dict[str, object]:
        thread_locals = self._watched.thread_locals
        of_thread = self._on_main_thread(lambda: settings_of_thread(thread_locals))
        return {**of_thread, **settings_of_process()}


def _code() -> list[object]:
    """Returns the functions, classes and modules that were made since the last freeze."""
    objects = gc.get_objects()  # before what finds them is one of them
    return [each for each in objects if issubclass(type(each), _CODE)]


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _noted_seeds() -> list[dict[str, object]]:
    """Returns where torch notes a seed for devices that it has not begun to use."""
    modules = (torch.cuda, torch.mtia, torch.xpu)
    return [vars(each._lazy_seed_tracker) for each in modules]


def _typing_caches() -> list[Any]:
    """Returns what remembers ``Optional[X]`` and its like."""
    return [clear.__self__ for clear in typing._cleanups]  # type: ignore[attr-defined]


def _replaced(
    owner: str,
    now: Mapping[str, object],
    before: Mapping[str, object],
    but: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Returns the names under which there is another object than before, or a new one."""
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


def _mapped_files() -> set[str]:
    with open("/proc/self/maps", "rb", buffering=_MAPS_BYTES) as file:
        lines = [line.split(maxsplit=5) for line in file]
    return {
        os.fsdecode(line[5].rstrip())
        for line in lines
        if len(line) > 5 and line[4] != b"0"
    }
