"""Watches in which order threads take the locks of our classes.

ARCHITECTURE.md has the order, and why. A deadlock needs two threads that meet at the wrong
moment; a lock taken out of order shows without that, whoever meets. Any tests can be
watched: ``pytest -p tests.lock_order tests/sources`` fails if one of them takes a lock out
of order.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]

ORDER: Final = (
    "FileSystemSource._turn",
    "Residency._turn",
    "AspiredVersionsManager._stepping",
    "VersionTable.lock",
    "EventBus._delivery",
)
"""The locks of the table in ARCHITECTURE.md, but for the leaves that it names."""

WHILE_COMPUTING: Final = (
    "LibraryInterpreter._lock",
    "DlmopenInterpreter._lock",
    "CallThreads.running",
)
"""Locks that are held while a model or its interpreter works; they come last."""

PAIRS: Final = frozenset(
    {
        ("Interpreters._lock", "ProcessBackend._lock"),
    }
)
"""Locks that are leaves but for one other."""

_OURS: Final = tuple(
    f"{ROOT / room}/" for room in ("tfs", "sources", "managers", "batching")
)
_DOUBLES: Final = f"{ROOT / 'tfs' / 'testing'}/"
_make_lock, _make_rlock = threading.Lock, threading.RLock


def breaches(taken: Mapping[tuple[str, str], str]) -> list[str]:
    """Returns what contradicts the order.

    Args:
        taken: For each pair of locks of which the second was taken under the first, the
            place in the code.

    """
    return sorted(
        f"{inner} was taken under {outer} at {where}"
        for (outer, inner), where in taken.items()
        if not _may_take(outer, inner)
    )


def _may_take(outer: str, inner: str) -> bool:
    order = ORDER + WHILE_COMPUTING
    if outer not in order:
        return (outer, inner) in PAIRS
    return inner not in order or order.index(outer) < order.index(inner)


class _Watched:
    """A lock of ours, which notes what its thread holds when it is taken."""

    def __init__(self, lock: Any, owner: object, cls: str, watch: LockWatch) -> None:
        self._lock = lock
        self._owner = owner
        self._class = cls
        self._watch = watch
        self._name = ""

    @property
    def name(self) -> str:
        """Its class and attribute, which is set only after the lock was made."""
        if not self._name:
            self._name = next(
                (
                    f"{self._class}.{field}"
                    for field, value in _fields_of(self._owner)
                    if value is self or getattr(value, "_lock", None) is self
                ),
                "",
            )
        return self._name or self._class

    def acquire(self, *arguments: Any, **options: Any) -> bool:
        is_taken = bool(self._lock.acquire(*arguments, **options))
        if is_taken:
            self._watch.note_taken(self)
        return is_taken

    def release(self) -> None:
        self._watch.note_let_go(self)
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What a Condition asks of its lock.

    def _is_owned(self) -> bool:
        return any(each is self for each in self._watch.held())

    def _release_save(self) -> object:
        self._watch.note_let_go(self)
        if hasattr(self._lock, "_release_save"):
            return self._lock._release_save()
        return self._lock.release()

    def _acquire_restore(self, state: object) -> None:
        if hasattr(self._lock, "_acquire_restore"):
            self._lock._acquire_restore(state)
        else:
            self._lock.acquire()
        self._watch.note_taken(self)


class LockWatch:
    """What was taken under what. Thread-safe.

    Attributes:
        taken: For each pair of locks of which the second was taken under the first, the
            first place in the code where that was seen.

    """

    def __init__(self) -> None:
        self.taken: dict[tuple[str, str], str] = {}
        self._threads = threading.local()

    def held(self) -> list[_Watched]:
        """Returns the locks that the caller's thread holds, outermost first."""
        locks: list[_Watched] = vars(self._threads).setdefault("held", [])
        return locks

    def note_taken(self, lock: _Watched) -> None:
        """Notes a lock that the caller's thread has just taken."""
        held = self.held()
        for outer in held:
            if outer is not lock and (outer.name, lock.name) not in self.taken:
                self.taken[outer.name, lock.name] = _place()
        held.append(lock)

    def note_let_go(self, lock: _Watched) -> None:
        """Notes a lock that the caller's thread is about to let go."""
        held = self.held()
        for index in reversed(range(len(held))):
            if held[index] is lock:
                del held[index]
                return

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the locks that objects of ours make meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading, "Lock", lambda: self._made(_make_lock()))
            patch.setattr(threading, "RLock", lambda: self._made(_make_rlock()))
            yield

    def _made(self, lock: Any) -> Any:
        frame = sys._getframe(2)
        if frame.f_code.co_qualname == "Condition.__init__" and frame.f_back:
            frame = frame.f_back
        owner = frame.f_locals.get("self")
        if owner is None or not _is_ours(frame.f_code.co_filename):
            return lock
        # Not the owner's own class: one that it inherits from may have made the lock.
        cls = frame.f_code.co_qualname.partition(".")[0]
        return _Watched(lock, owner, cls, self)


def _is_ours(path: str) -> bool:
    """Whether a file belongs to what a server runs; doubles for tests do not."""
    return path.startswith(_OURS) and not path.startswith(_DOUBLES)


def _fields_of(owner: object) -> list[tuple[str, object]]:
    names = {
        name for cls in type(owner).__mro__ for name in vars(cls).get("__slots__", ())
    }
    names |= vars(owner).keys() if hasattr(owner, "__dict__") else set()
    return [(name, getattr(owner, name, None)) for name in names]


def _place() -> str:
    """Returns the places of ours by which the caller was called, innermost first."""
    places: list[str] = []
    frame = sys._getframe(2)
    while frame.f_back is not None and len(places) < 4:
        code = frame.f_code
        if _is_ours(code.co_filename):
            path = Path(code.co_filename).relative_to(ROOT)
            places.append(f"{path}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(places)


# -- as a plugin of pytest ---------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    watch = LockWatch()
    until_the_end = ExitStack()
    until_the_end.enter_context(watch.watching())
    config.add_cleanup(until_the_end.close)
    config.stash[_WATCH] = watch


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = breaches(session.config.stash[_WATCH].taken)
    if found:
        print("\n".join(("", *found)))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_WATCH: Final = pytest.StashKey[LockWatch]()
