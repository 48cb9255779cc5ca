"""Versions that must not run any more, because they crashed too often or fail to reload."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId
from tfs.runtime.process.process_model import ProcessModel

log = logging.getLogger(__name__)


class Quarantine:
    """Counts the crashes of versions, and bars those with too many. Loop-confined.

    A version's ``VersionHealth`` is shared by its interpreters: the first one that
    notices quarantines the version, once, and all of them refuse it.

    Args:
        clock: Tells when a crash happened.
        refuse: Answers all tasks that wait for a model with an error.
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
        """Counts a crash; quarantines the version if there were too many. ``how`` is in words."""
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
        """Quarantines a version, unless it already is."""
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
