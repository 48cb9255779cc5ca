"""A loader whose every step a test can watch, fail and hold up."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable

from tfs.core.errors import Internal, ServingError
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData


class LoaderLog:
    """What fake loaders did, in order, and which servables are loaded. Thread-safe."""

    def __init__(self) -> None:
        # Guards every field below; leaf.
        self._changed = threading.Condition()
        self._events: list[tuple[str, ServableId]] = []
        self._resident: dict[int, ServableId] = {}
        self.max_num_resident: dict[str, int] = {}

    def note(self, what: str, servable_id: ServableId) -> None:
        """Appends an event."""
        with self._changed:
            self._events.append((what, servable_id))
            self._changed.notify_all()

    def note_resident(self, loader: FakeLoader, is_resident: bool) -> None:
        """Notes that a loader's servable was loaded or unloaded."""
        with self._changed:
            if is_resident:
                self._resident[id(loader)] = loader.id
                name = loader.id.name
                num = sum(i.name == name for i in self._resident.values())
                before = self.max_num_resident.get(name, 0)
                self.max_num_resident[name] = max(before, num)
            else:
                del self._resident[id(loader)]

    @property
    def events(self) -> list[tuple[str, ServableId]]:
        """Every event so far: ("load" | "unload" | ..., id)."""
        with self._changed:
            return list(self._events)

    @property
    def resident(self) -> list[ServableId]:
        """The versions that are loaded and not unloaded yet, in order."""
        with self._changed:
            return sorted(self._resident.values())

    def count(self, what: str, servable_id: ServableId | None = None) -> int:
        """How often ``what`` happened, to one version or to any."""
        with self._changed:
            return sum(
                each == what and servable_id in (None, where)
                for each, where in self._events
            )


class FakeServable:
    """What a :class:`FakeLoader` loads. Knows whether it was destroyed.

    Attributes:
        id: The version.
        value: The version's number, or the value that the loader was given.
        is_alive: False once unloaded.

    """

    def __init__(self, servable_id: ServableId, value: object) -> None:
        self.id = servable_id
        self.value = value
        self.is_alive = True

    def __repr__(self) -> str:
        return f"<FakeServable {self.id.slashed} {'live' if self.is_alive else 'dead'}>"


class FakeLoader:
    """A :class:`tfs.core.loader.Loader` for tests.

    It checks what every manager has to observe: no two calls at the same time, no
    further load after one that succeeded, and one unload after each load. A breach
    raises AssertionError. It is also kept in ``breaches``, because managers turn what
    loaders raise into states.

    Args:
        servable_id: The version.
        value: What the servable carries; its version number by default.
        ram_bytes: Main memory that it estimates, in bytes.
        peak_bytes: Bytes that it needs in addition until it is loaded.
        loaded_bytes: Its estimate once it is loaded; None for the same as before.
        errors: What successive calls of ``load`` raise; None for a call that succeeds.
            Calls beyond the last entry succeed.
        estimate_errors: The same for ``estimate_resources`` before loading.
        log: Takes a note of everything it does.
        on_load: Called within each ``load``.
        on_unload: Called within ``unload``, which unloads and raises what this raises.

    """

    def __init__(
        self,
        servable_id: ServableId,
        *,
        value: object = None,
        ram_bytes: int = 0,
        peak_bytes: int = 0,
        loaded_bytes: int | None = None,
        errors: Iterable[BaseException | None] = (),
        estimate_errors: Iterable[BaseException | None] = (),
        log: LoaderLog | None = None,
        on_load: Callable[[], object] | None = None,
        on_unload: Callable[[], object] | None = None,
    ) -> None:
        self.id = servable_id
        self.log = log or LoaderLog()
        self.breaches: list[str] = []
        self.num_loads = 0
        self.num_unloads = 0
        self.num_estimates = 0
        self.unload_thread: threading.Thread | None = None
        self.ram_bytes = ram_bytes
        self.peak_bytes = peak_bytes
        self.loaded_bytes = ram_bytes if loaded_bytes is None else loaded_bytes
        self._value = servable_id.version if value is None else value
        self._errors = iter(errors)
        self._estimate_errors = iter(estimate_errors)
        self._on_load = on_load
        self._on_unload = on_unload
        self._servable: FakeServable | None = None
        self._busy = threading.Lock()  # held during each call; nobody waits for it

    def estimate_resources(self) -> ResourceAllocation:
        """Returns the estimate; until it is loaded, with the peak."""
        with _Call(self):
            self.num_estimates += 1
            if self._servable is not None:
                return ResourceAllocation.ram(self.loaded_bytes)
            _raise(next(self._estimate_errors, None))
            return ResourceAllocation.ram(self.ram_bytes, self.peak_bytes)

    def load(self, servable_id: ServableId) -> None:
        """Makes a :class:`FakeServable`, or raises the next error."""
        with _Call(self):
            self.check(servable_id == self.id, f"asked to load {servable_id}")
            self.check(self._servable is None, "loaded twice")
            self.check(self.num_unloads == 0, "loaded after unload")
            self.num_loads += 1
            self.log.note("load", self.id)
            if self._on_load is not None:
                self._on_load()
            _raise(next(self._errors, None))
            self._servable = FakeServable(self.id, self._value)
            self.log.note_resident(self, True)

    def unload(self) -> None:
        """Marks the servable dead."""
        with _Call(self):
            servable = self._servable
            self.check(servable is not None, "unloaded without being loaded")
            assert servable is not None
            self.num_unloads += 1
            self.unload_thread = threading.current_thread()
            self.log.note("unload", self.id)
            try:
                if self._on_unload is not None:
                    self._on_unload()
            finally:
                servable.is_alive = False
                self._servable = None
                self.log.note_resident(self, False)

    @property
    def make_another(self) -> Callable[[], FakeLoader]:
        """A function that makes a loader which goes on with this loader's errors."""
        return functools.partial(
            FakeLoader,
            self.id,
            value=self._value,
            ram_bytes=self.ram_bytes,
            peak_bytes=self.peak_bytes,
            loaded_bytes=self.loaded_bytes,
            errors=self._errors,
            estimate_errors=self._estimate_errors,
            log=self.log,
            on_load=self._on_load,
            on_unload=self._on_unload,
        )

    @property
    def servable(self) -> FakeServable:
        """The servable that was loaded."""
        if self._servable is None:
            raise Internal(f"{self.id.slashed} is not loaded")
        return self._servable

    @property
    def is_loaded(self) -> bool:
        """Whether it holds a servable now."""
        return self._servable is not None

    def check(self, is_kept: bool, breach: str) -> None:
        """Notes and raises a breach of the loader's contract, unless ``is_kept``."""
        if not is_kept:
            self.breaches.append(f"{self.id.slashed}: {breach}")
            raise AssertionError(self.breaches[-1])

    def __repr__(self) -> str:
        return f"<FakeLoader {self.id.slashed}>"


class _Call:
    """Checks that a loader is called by one thread at a time."""

    def __init__(self, loader: FakeLoader) -> None:
        self._loader = loader

    def __enter__(self) -> None:
        is_alone = self._loader._busy.acquire(blocking=False)
        self._loader.check(is_alone, "called twice at once")

    def __exit__(self, *_: object) -> None:
        self._loader._busy.release()


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def loaders(
    name: str,
    *items: int | FakeLoader | tuple[int, ServingError],
    log: LoaderLog | None = None,
    reason: str = "",
) -> AspiredVersions[FakeLoader]:
    """Returns versions as a source aspires them, each with a new loader.

    A pair of number and error becomes an erroneous version.
    """
    versions: list[ServableData[FakeLoader]] = []
    for item in items:
        if isinstance(item, FakeLoader):
            versions.append(ServableData(item.id, item))
        elif isinstance(item, tuple):
            versions.append(ServableData(ServableId(name, item[0]), None, item[1]))
        else:
            servable_id = ServableId(name, item)
            versions.append(ServableData(servable_id, FakeLoader(servable_id, log=log)))
    return AspiredVersions(name, tuple(versions), reason)
