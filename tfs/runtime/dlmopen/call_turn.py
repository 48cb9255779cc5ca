"""The turns of calls in a private CPython: one at a time, none behind a hung one.

A call there can be neither interrupted nor killed. A caller that would wait for it for
ever is told what hangs, and can go elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)

_HANG_FACTOR: Final = 10.0

OnHang: TypeAlias = Callable[[ServableId, str], None]


class _Running(NamedTuple):
    caller: ServableId | str
    begun_s: float

    @property
    def who(self) -> str:
        caller = self.caller
        return caller if isinstance(caller, str) else caller.slashed


class CallTurn:
    """Held during a call. Thread-safe.

    A caller is a version, or a name for what else runs there.

    Args:
        name: The name of the interpreter.
        timeout_s: A call hangs when it takes longer than this, and ten times as long as
            any of the same caller's calls before; None: it never does.
        now: The time in seconds.
        on_hang: Called with the version whose call hangs and a text that says so, when
            somebody asks for the reason; with an empty text when the call has ended
            after all. On any thread.

    """

    def __init__(
        self,
        name: str,
        timeout_s: float | None,
        now: Callable[[], float] = time.monotonic,
        on_hang: OnHang = lambda _servable, _text: None,
    ) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._now = now
        self._on_hang = on_hang
        self._lock = threading.Lock()
        # Written by the holder of the lock, but for what was told. Replaced as a whole,
        # so that a reader gets all of one moment.
        self._running: _Running | None = None
        self._told_of: _Running | None = None
        self._longest_s: dict[ServableId | str, float] = {}

    @property
    def is_taken(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    @property
    def is_hung(self) -> bool:
        """Whether the call that is running hangs."""
        return self._left_s(self._running) == 0.0

    def error(self) -> ServingError | None:
        """Returns why nobody may wait for the running call; None while it does not hang."""
        running = self._running
        if running is None or self._left_s(running) != 0.0:
            return None
        call_s = self._now() - running.begun_s
        if self._told_of is not running:
            self._told_of = running
            log.error(
                "event=interpreter_hangs interpreter=%s servable=%s call_s=%.1f",
                self._name,
                running.who,
                call_s,
            )
            text = f"a call hangs in interpreter {self._name}, which takes no others"
            self._tell(running, text)
        return FailedPrecondition(
            f"interpreter {self._name} takes no calls: one of {running.who} has been "
            f"running there for {call_s:.0f} s and cannot be ended. Restart the program, "
            "and run that model in processes, which can be"
        )

    def take(self, caller: ServableId | str) -> None:
        """Waits for the turn; ``end`` gives it back.

        Raises:
            FailedPrecondition: The call that is running hangs, now or during the wait.

        """
        if not self._lock.acquire(blocking=False):
            self._wait()
        self._running = _Running(caller, self._now())

    def try_take(self, caller: ServableId | str, patience_s: float = 0.0) -> bool:
        """Takes the turn if no call is running, or it ends in time; ``end`` gives it back.

        It does not wait for a call that hangs.
        """
        if not self._lock.acquire(blocking=False) and (
            self.is_hung or not self._lock.acquire(timeout=max(0.0, patience_s))
        ):
            return False
        self._running = _Running(caller, self._now())
        return True

    def end(self) -> None:
        """Gives the turn back."""
        running, self._running = self._running, None
        assert running is not None
        call_s = self._now() - running.begun_s
        if call_s > self._longest_s.get(running.caller, 0.0):
            self._longest_s[running.caller] = call_s
        was_told = self._told_of is running
        self._lock.release()
        if was_told:
            log.warning(
                "event=interpreter_hangs_no_more interpreter=%s servable=%s call_s=%.1f",
                self._name,
                running.who,
                call_s,
            )
            self._tell(running, "")

    def forget(self, caller: ServableId | str) -> None:
        """Forgets how long a caller's calls took."""
        self._longest_s.pop(caller, None)

    def _tell(self, running: _Running, text: str) -> None:
        if isinstance(running.caller, ServableId):
            self._on_hang(running.caller, text)

    def _wait(self) -> None:
        while True:
            left_s = self._left_s(self._running)
            if left_s is None:
                # No call can hang, or the one that has the turn is about to note since
                # when.
                if self._lock.acquire(timeout=-1 if self._timeout_s is None else 0.01):
                    return
            elif self._lock.acquire(timeout=left_s):
                return
            elif (error := self.error()) is not None:
                raise error

    def _left_s(self, running: _Running | None) -> float | None:
        """Returns how long a call may still take; None if nothing runs, or may for ever."""
        if running is None or self._timeout_s is None:
            return None
        longest_s = self._longest_s.get(running.caller, 0.0)
        limit_s = max(self._timeout_s, _HANG_FACTOR * longest_s)
        return max(0.0, running.begun_s + limit_s - self._now())
