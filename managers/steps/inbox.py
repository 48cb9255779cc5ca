"""News for a manager, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from managers.steps.reconciliation import Aspired


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
