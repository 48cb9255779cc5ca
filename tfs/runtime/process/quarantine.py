"""Versions that must not run any more: they crashed too often, or do not load again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.process.process_model import ProcessModel

log = logging.getLogger(__name__)


class Quarantine:
    """Holds crashes against versions, and keeps out those with too many. Loop-confined.

    What is known of a version, its ``VersionHealth``, is shared by its interpreters: a
    version is quarantined once, by whichever notices, and refused by all.

    Args:
        clock: Tells when a crash was.
        refuse: Answers what waits for a model with an error.
        on_quarantine: Told the version and the reason.

    """

    def __init__(
        self,
        clock: Clock,
        refuse: Callable[[ServingError, ProcessModel], None],
        on_quarantine: Callable[[ServableId, str], None],
    ) -> None:
        self._clock = clock
        self._refuse = refuse
        self._on_quarantine = on_quarantine

    def note_crash(self, model: ProcessModel, how: str) -> None:
        """Counts a crash, ``how`` in words; quarantines the version if it is one too many."""
        crashes, now_s = model.health.crashes, self._clock.now()
        crashes.add(now_s)
        if crashes.is_too_many(now_s):
            num, window_s = crashes.num_recent(now_s), crashes.window_s
            self.impose(
                model,
                f"crashed {num} times within {window_s:.0f} s; "
                f"the last time its interpreter {how}",
            )

    def impose(self, model: ProcessModel, reason: str) -> None:
        """Quarantines a version, unless it is."""
        if model.health.quarantine is not None:
            return
        model.health.quarantine = reason
        who = model.source.id
        log.error("event=quarantined servable=%s reason=%r", who.slashed, reason)
        refusal = model.refusal()
        assert refusal is not None
        self._refuse(refusal, model)
        try:
            self._on_quarantine(who, reason)
        except Exception:
            log.exception("event=on_quarantine_failed servable=%s", who.slashed)
