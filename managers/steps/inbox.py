"""What sources aspire: kept until a manager takes it in, and what must change for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from managers.versions.harness_state import HarnessState
from managers.versions.version import LoaderData, Version
from tfs.core.loader import Loader
from tfs.core.source import AspiredVersions

log = logging.getLogger(__name__)

Aspired: TypeAlias = AspiredVersions[Loader[object]]


@dataclass(slots=True)
class Reconciliation:
    """What to do, in the order of the attributes.

    Attributes:
        wanted_again: Versions that are aspired again; they simply go on serving, or
            loading.
        unaspired: Versions that are no longer aspired, and why.
        given_up: Versions that were not aspired before either, and whose loads are in
            the way.
        new: Versions to be managed, perhaps beside another of the same number.

    """

    wanted_again: list[Version] = field(default_factory=list)
    unaspired: list[tuple[Version, str]] = field(default_factory=list)
    given_up: list[Version] = field(default_factory=list)
    new: list[LoaderData] = field(default_factory=list)


def reconcile(aspired: Aspired, managed: Sequence[Version]) -> Reconciliation:
    """Compares what a source aspires of a servable with what is managed of it.

    A version that is aspired with the loader it has is left alone. If it comes with
    another loader it is replaced: a new one is aspired instead of the old one.

    Args:
        aspired: All versions that should exist; of two with the same number the last
            counts.
        managed: The servable's versions, in the order they were managed; only read.

    """
    wanted: dict[int, LoaderData] = {}
    for data in aspired.versions:
        if data.id.version in wanted:
            log.warning("event=version_aspired_twice servable=%s", data.id.slashed)
        wanted[data.id.version] = data
    result = Reconciliation()
    kept: set[int] = {
        version.id.version
        for version in managed
        if version.is_aspired
        and (data_now := wanted.get(version.id.version)) is not None
        and version.holds(data_now)
    }
    unwanted: list[Version] = []
    for version in managed:
        number = version.id.version
        data_now = wanted.get(number)
        if not version.is_aspired:
            # What its equal replaces stays replaced, or both would stay loaded.
            if data_now and number not in kept and _can_return(version, data_now):
                result.wanted_again.append(version)
                kept.add(number)
            else:
                unwanted.append(version)
        elif data_now is None:
            result.unaspired.append((version, aspired.reason or "no longer aspired"))
        elif not version.holds(data_now):
            why = f"replaced by its new contents; {aspired.reason}"
            result.unaspired.append((version, why))
    if not wanted or wanted.keys() - kept:
        result.given_up = unwanted  # versions that stood in for others
    result.new = [data for number, data in wanted.items() if number not in kept]
    return result


def _can_return(version: Version, data: LoaderData) -> bool:
    """Whether a version that is aspired again can simply go on serving, or loading."""
    is_up = version.state is HarnessState.READY or version.is_coming
    return is_up and version.holds(data)


@dataclass(frozen=True, slots=True)
class Mail:
    """The contents of an inbox. Immutable.

    Attributes:
        aspired: The latest set that sources aspire, by servable.
        tried_again: Versions that are to be tried again, by servable.
        changed: Servables to which something happened, in that order.
        num_aspired: How many messages of sources and requests to try again had come in.

    """

    aspired: Mapping[str, Aspired]
    tried_again: Mapping[str, AbstractSet[int]]
    changed: Collection[str]
    num_aspired: int


class Inbox:
    """Collects news from any thread for the one that steps. Thread-safe; never blocks.

    Args:
        on_mail: Called when something came in; quick, on any thread, under no lock.

    """

    def __init__(self, on_mail: Callable[[], None]) -> None:
        self._on_mail = on_mail
        # Guards the fields below; leaf: on_change and sources take it on any thread.
        self._lock = threading.Lock()
        self._aspired: dict[str, Aspired] = {}
        self._tried_again: dict[str, AbstractSet[int]] = {}
        self._changed: dict[str, None] = {}
        self._num_aspired = 0
        self._num_taken_in = 0  # of those, how many the manager has taken in
        self._is_closed = False

    def aspire(self, aspired: Aspired) -> None:
        """Takes the set that a source aspires, in place of the servable's last one."""
        with self._lock:
            if self._is_closed:
                return
            self._aspired[aspired.name] = aspired
            self._num_aspired += 1
            self._changed[aspired.name] = None
        self._on_mail()

    def try_again(self, name: str, versions: AbstractSet[int]) -> None:
        """Takes a request to try failed versions again."""
        with self._lock:
            if self._is_closed:
                return
            before = self._tried_again.get(name, frozenset())
            self._tried_again[name] = before | versions
            self._num_aspired += 1
            self._changed[name] = None
        self._on_mail()

    def note_change(self, name: str) -> None:
        """Notes that something happened to a servable."""
        with self._lock:
            self._changed[name] = None
        self._on_mail()

    def take(self) -> Mail:
        """Empties the inbox."""
        with self._lock:
            mail = Mail(
                self._aspired, self._tried_again, self._changed, self._num_aspired
            )
            self._aspired, self._tried_again, self._changed = {}, {}, {}
            return mail

    def confirm(self, mail: Mail) -> None:
        """Notes that the manager has taken in what sources aspire by ``mail``."""
        with self._lock:
            self._num_taken_in = mail.num_aspired

    @property
    def has_taken_in_all(self) -> bool:
        """Whether everything that sources said was taken in."""
        with self._lock:
            return self._num_taken_in == self._num_aspired

    @property
    def has_mail(self) -> bool:
        """Whether there is anything to take."""
        with self._lock:
            return bool(self._changed)

    def has_changed(self, name: str) -> bool:
        """Whether something happened to a servable that was not taken yet."""
        with self._lock:
            return name in self._changed

    @property
    def is_closed(self) -> bool:
        """Whether sources are ignored."""
        return self._is_closed

    def close(self) -> None:
        """Ignores what sources aspire from now on, and what was not taken yet."""
        with self._lock:
            self._is_closed = True
            self._aspired.clear()
            self._tried_again.clear()
