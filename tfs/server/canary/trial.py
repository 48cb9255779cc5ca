"""One version on trial: its copies of the primary's requests, and its end by a guard.

The primary answers first, and its caller has the answer before the copy is used. Copies
wait in a small queue of their own and are computed one at a time; copies that do not
fit are dropped and counted. So the primary never waits for the canary. Answers are
compared on an executor, not on the serving loop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    ServingError,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.server.canary.copies import Copy, CopyQueue, owned
from tfs.server.canary.trial_counts import TrialCounts, TrialRecord
from tfs.server.model_settings import CanarySettings
from tfs.server.trial_notes import Rejection

log = logging.getLogger(__name__)

_COPY_DEADLINE_S: Final = 30.0  # the canary drops a copy that has waited longer
# A canary hangs if it has worked on a copy for this long, and for this many times as
# long as the primary did. The time is half of what a call in a process may take
# (--interpreter_call_timeout_s).
_HANG_S: Final = 15.0
_HANG_RATIO: Final = 10.0

Pin = Callable[[], ServableHandle[Servable]]


@dataclass(frozen=True, slots=True)
class Part:
    """What a trial sees in one request. Immutable.

    Attributes:
        is_canary: Whether the version on trial answers it.
        is_teed: Whether the version on trial gets a copy.
        is_split: Whether it was subject to a split.

    """

    is_canary: bool
    is_teed: bool
    is_split: bool


@dataclass(frozen=True, slots=True)
class TrialParts:
    """What every trial needs from the server. Immutable.

    Attributes:
        post: Runs a function on the serving loop, soon.
        executor: Runs comparisons.
        clock: For latencies and phases.

    """

    post: Callable[[Callable[[], None]], None]
    executor: Executor
    clock: Clock


class Trial:
    """The trial of one version. Thread-safe; nothing in it blocks.

    Args:
        name: The model.
        settings: Which version is tried, and how.
        pin: Pins the canary; raises NotFound while it is not available.
        parts: What it needs from the server.
        on_rejected: Called once if a guard ends the trial, on any thread, with the
            settings that it had then.
        rejection: Why a guard ended the same trial before a restart.

    """

    def __init__(
        self,
        name: str,
        settings: CanarySettings,
        pin: Pin,
        parts: TrialParts,
        on_rejected: Callable[[CanarySettings, Rejection], None],
        rejection: Rejection | None = None,
    ) -> None:
        self.name = name
        self._pin = pin
        self._parts = parts
        self._on_rejected = on_rejected
        # Guards every field below. Leaf: only arithmetic happens under it.
        self._lock = threading.Lock()
        self._settings = settings
        self._counts = TrialCounts()
        self._queue = CopyQueue()
        self._is_busy = False
        self._hangs_from_s = math.inf  # when the copy in the canary will be overdue
        self._is_closed = False
        self._rejected = "" if rejection is None else rejection.reason
        self._since_s = parts.clock.wall_s() if rejection is None else rejection.since_s

    @property
    def settings(self) -> CanarySettings:
        """Which version is tried, and how."""
        return self._settings

    @property
    def is_rejected(self) -> bool:
        """Whether a guard ended it."""
        return bool(self._rejected)

    def update(self, settings: CanarySettings) -> None:
        """Changes fractions and limits; the figures stay."""
        with self._lock:
            self._settings = settings
            self._counts.judge_soon()

    def close(self) -> None:
        """Ends the trial: no further copy is computed. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()

    def record(self) -> TrialRecord:
        """Returns the record of the trial so far."""
        with self._lock:
            return self._counts.record(self._settings, self._rejected, self._since_s)

    # -- requests --------------------------------------------------------------------

    def submit(self, servable: Servable, task: InferenceTask, part: Part) -> None:
        """Submits a caller's task to the version that answers, and records how it ended."""
        clock = self._parts.clock
        copied = self._copy_of(task) if part.is_teed else None
        on_done = task.on_done
        signature_name = task.signature_name
        begun_s = clock.now()

        def done(outcome: Outcome) -> None:
            try:
                latency_s = clock.now() - begun_s
                if part.is_split:
                    self._note_split(signature_name, outcome, latency_s, part.is_canary)
                if copied is not None:
                    self._offer(copied, outcome, latency_s)
            except Exception:
                log.exception("event=trial_failed servable=%s", self.name)
            finally:
                on_done(outcome)

        task.on_done = done
        servable.submit(task)

    def _copy_of(self, task: InferenceTask) -> Copy | None:
        """Copies the inputs that the caller sent; their buffers are valid until the task is done.

        Inputs that were left out are not copied: the canary has defaults of its own.
        """
        size_bytes = sum(view.size_bytes for view in task.inputs.values())
        with self._lock:
            if self._is_closed or self._rejected:
                return None
            hangs = self._hangs_locked()
            if not hangs and not self._queue.has_room(size_bytes):
                self._counts.num_dropped += 1
                return None
        defaults = task.signature.defaults
        sent = {
            name: view
            for name, view in task.inputs.items()
            if view is not defaults.get(name)
        }
        return Copy(
            task.signature_name,
            {} if hangs else owned(sent),
            task.output_filter,
            task.num_rows,
            size_bytes,
            is_void=hangs,
        )

    def _hangs_locked(self) -> bool:
        return self._parts.clock.now() >= self._hangs_from_s

    def _note_split(
        self, signature_name: str, outcome: Outcome, latency_s: float, is_canary: bool
    ) -> None:
        with self._lock:
            self._counts.add_split(
                signature_name, outcome, latency_s, is_canary=is_canary
            )
        if is_canary:
            self._judge()

    def note_refused(self, *, is_canary: bool) -> None:
        """Records a request of a split that ended before it could be submitted.

        It did not fit the signatures of the version to which it was sent.
        """
        unfit = InvalidArgument(f"{self.name}: the request does not fit the version")
        with self._lock:
            self._counts.add_refused(unfit, is_canary=is_canary)
        if is_canary:
            self._judge()

    # -- copies ----------------------------------------------------------------------

    def _offer(self, copied: Copy, outcome: Outcome, latency_s: float) -> None:
        if isinstance(outcome, Cancelled):
            return
        size_bytes = copied.size_bytes
        if not isinstance(outcome, ServingError):
            outcome = owned(outcome, copied.output_filter)
            size_bytes += sum(view.size_bytes for view in outcome.values())
        full = replace(
            copied, size_bytes=size_bytes, outcome=outcome, latency_s=latency_s
        )
        starts = False
        with self._lock:
            if self._is_closed or self._rejected:
                return
            hangs = self._hangs_locked()
            if hangs:
                self._note_unanswered_locked(full)
            elif full.is_void or not self._queue.has_room(full.size_bytes):
                self._counts.num_dropped += 1
            else:
                self._counts.num_teed += 1
                self._queue.add(full)
                starts = not self._is_busy
                self._is_busy = True
        if starts:
            self._parts.post(self._run_next)
        elif hangs:
            self._judge()

    def _note_unanswered_locked(self, copied: Copy) -> None:
        """Records a copy that a hanging canary could not have answered either.

        Otherwise a canary that hangs would never have enough samples for its guard.
        """
        assert copied.outcome is not None  # set when it was offered
        self._counts.num_dropped += 1
        unanswered = DeadlineExceeded(f"{self.name}: the canary hangs")
        tally = self._counts.of(copied.signature_name)
        tally.add_copy(copied.outcome, copied.latency_s, unanswered, 0.0)

    def _run_next(self) -> None:
        """Submits the oldest copy to the canary. On the serving loop."""
        with self._lock:
            if not self._queue or self._is_closed or self._rejected:
                self._is_busy = False
                return
            copied = self._queue.take()
            overdue_s = max(_HANG_S, _HANG_RATIO * copied.latency_s)
            self._hangs_from_s = self._parts.clock.now() + overdue_s
        try:
            handle = self._pin()
        except ServingError:
            with self._lock:  # the canary is not loaded yet, or not any more
                self._hangs_from_s = math.inf
                self._counts.num_dropped += 1
                self._counts.num_teed -= 1
            self._parts.post(self._run_next)
            return
        clock = self._parts.clock
        begun_s = clock.now()

        def done(outcome: Outcome) -> None:
            latency_s = clock.now() - begun_s
            with self._lock:
                self._hangs_from_s = math.inf
            try:
                if not isinstance(outcome, ServingError):
                    outcome = owned(outcome)
            except Exception as error:
                outcome = serving_error(error, f"{self.name}: copying an answer")
            finally:
                handle.release()
            self._finish_later(copied, outcome, latency_s)

        try:
            task = self._task(handle.servable, copied, done)
        except ServingError as error:
            done(error)
            return
        handle.servable.submit(task)

    def _task(
        self, servable: Servable, copied: Copy, done: Callable[[Outcome], None]
    ) -> InferenceTask:
        signature = servable.signatures.get(copied.signature_name)
        if signature is None:
            raise InvalidArgument(f"the canary has no {copied.signature_name!r}")
        inputs = copied.inputs
        if signature.defaults:
            inputs = signature.with_defaults(inputs)
        num_rows = signature.check_inputs(inputs)
        return InferenceTask(
            copied.signature_name,
            signature,
            inputs,
            done,
            num_rows=num_rows,
            output_filter=copied.output_filter,
            deadline_s=self._parts.clock.now() + _COPY_DEADLINE_S,
            is_low=True,
        )

    def _finish_later(self, copied: Copy, outcome: Outcome, latency_s: float) -> None:
        try:
            self._parts.executor.submit(
                lambda: self._finish(copied, outcome, latency_s)
            )
        except RuntimeError:  # the server is shutting down
            self.close()

    def _finish(self, copied: Copy, outcome: Outcome, latency_s: float) -> None:
        """Compares the answers and records the result. On the executor."""
        try:
            self._compare(copied, outcome, latency_s)
            self._judge()
        finally:
            self._parts.post(self._run_next)

    def _compare(self, copied: Copy, outcome: Outcome, latency_s: float) -> None:
        # This imports numpy, for which a server without a canary need not wait.
        from tfs.server.canary.difference import difference

        before = copied.outcome
        assert before is not None  # set when it was offered
        is_pair, found = False, None
        if not isinstance(before, ServingError) and not isinstance(
            outcome, ServingError
        ):
            is_pair = True
            found = difference(before, outcome, copied.output_filter)
        with self._lock:
            tally = self._counts.of(copied.signature_name)
            tally.add_copy(before, copied.latency_s, outcome, latency_s)
            if is_pair:
                tally.add_pair(copied.num_rows, found)

    def _judge(self) -> None:
        with self._lock:
            guard = self._settings.guard
            if self._rejected or self._is_closed or guard is None:
                return
            self._rejected = self._counts.why_rejected(guard)
            if not self._rejected:
                return
            self._since_s = self._parts.clock.wall_s()
            settings = self._settings
            self._queue.clear()
        log.warning(
            "event=canary_rejected servable=%s/%d reason=%r",
            self.name,
            settings.version,
            self._rejected,
        )
        self._on_rejected(settings, Rejection(self._rejected, self._since_s))
