"""Notices a call that hangs in a thread that cannot be ended.

A call on a thread can be neither interrupted nor killed. But other callers need not
wait for it for ever: they are told what hangs, and can go elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)

HANG_FACTOR: Final = 10.0

OnHang: TypeAlias = Callable[[ServableId, str], None]


class HangWatch:
    """Watches the calls of one thread, which calls ``begin`` and ``end``.

    Any thread may call ``error``.

    Args:
        name: The name of the interpreter.
        timeout_s: A call hangs when it takes longer than this, and ten times as long as
            any call of its version before.
        now: The time in seconds.
        on_hang: Called with the version whose call hangs and a text that says so, when
            somebody notices it; with an empty text when the call has ended after all.
            On any thread.

    """

    def __init__(
        self,
        name: str,
        timeout_s: float,
        now: Callable[[], float],
        on_hang: OnHang = lambda _servable, _text: None,
    ) -> None:
        self._on_hang = on_hang
        self._name = name
        self._timeout_s = timeout_s
        self._now = now
        self._longest_s: dict[ServableId, float] = {}
        # Replaced whole: who reads it has both.
        self._running: tuple[ServableId, float] | None = None
        self._was_told = False

    def begin(self, servable: ServableId) -> None:
        """Notes that a call begins."""
        self._running = servable, self._now()

    def end(self) -> None:
        """Notes that the call has ended; if it counted as hung, it does not any more."""
        if self._running is None:
            return
        servable, begun_s = self._running
        self._running = None
        call_s = self._now() - begun_s
        self._longest_s[servable] = max(call_s, self._longest_s.get(servable, 0.0))
        if self._was_told:
            self._was_told = False
            log.warning(
                "event=interpreter_hangs_no_more interpreter=%s servable=%s call_s=%.1f",
                self._name,
                servable.slashed,
                call_s,
            )
            self._on_hang(servable, "")

    def forget(self, servable: ServableId) -> None:
        """Forgets the calls of a version that is unloaded."""
        self._longest_s.pop(servable, None)

    def error(self) -> ServingError | None:
        """Returns the error to answer with instead of waiting; None while nothing hangs."""
        running = self._running
        if running is None:
            return None
        servable, begun_s = running
        call_s = self._now() - begun_s
        longest_s = self._longest_s.get(servable, 0.0)
        if call_s <= max(self._timeout_s, HANG_FACTOR * longest_s):
            return None
        if not self._was_told:
            self._was_told = True
            log.error(
                "event=interpreter_hangs interpreter=%s servable=%s call_s=%.1f",
                self._name,
                servable.slashed,
                call_s,
            )
            text = f"a call hangs in interpreter {self._name}, which takes no others"
            self._on_hang(servable, text)
        return FailedPrecondition(
            f"interpreter {self._name} takes no calls: one of {servable.slashed} has "
            f"been running there for {call_s:.0f} s and cannot be ended. Restart the "
            "server, and run that model in processes, which can be"
        )
