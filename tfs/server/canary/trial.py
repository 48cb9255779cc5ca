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
from collections import defaultdict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
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
from tfs.core.servable import InferenceTask, Outcome, Servable, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.proto.tfs.v1.admin_service_pb2 import CanaryReport
from tfs.proto.tfs.v1.model_config_pb2 import Canary
from tfs.server.canary.comparison import (
    Figures,
    Tally,
    TrialHistory,
    TrialSpan,
    judge,
    least_samples,
    rejection,
)
from tfs.server.canary.trial_notes import Rejection, settings_form

log = logging.getLogger(__name__)

_COPY_DEADLINE_S: Final = 30.0  # the canary drops a copy that has waited longer
# A canary hangs if it has worked on a copy for this long, and for this many times as
# long as the primary did. The time is half of what a call in a process may take
# (--interpreter_call_timeout_s).
_HANG_S: Final = 15.0
_HANG_RATIO: Final = 10.0
_SAMPLES_PER_LOOK: Final = 256  # a guard judges again when there are 1/256 more samples
MAX_QUEUED: Final = 16
_MAX_QUEUED_BYTES: Final = 64 << 20

Pin = Callable[[], ServableHandle[Servable]]


@dataclass(slots=True)
class _Copy:
    """A request to the primary, and its outcome once it has one. Owns its bytes."""

    signature_name: str
    inputs: Tensors
    output_filter: tuple[str, ...]
    num_rows: int
    size_bytes: int
    outcome: Outcome
    latency_s: float = 0.0


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
        on_rejected: Called once if a guard ends the trial, on any thread.
        rejection: Why a guard ended the same trial before a restart.

    Attributes:
        name: See above.
        settings: Which version is tried, and how.
        rejected: Why a guard ended it; "" if none did.
        since_s: When it began or was rejected, in seconds since the epoch.
        num_teed: Copies that were taken.
        num_dropped: Copies that found the queue full, or the canary not there.
        num_split_to_primary: Requests of a split that the primary answered.
        num_split_to_canary: Requests of a split that the canary answered.

    """

    def __init__(
        self,
        name: str,
        settings: Canary,
        pin: Pin,
        parts: TrialParts,
        on_rejected: Callable[[Rejection], None],
        rejection: Rejection | None = None,
    ) -> None:
        self.name = name
        self._pin = pin
        self._parts = parts
        self._on_rejected = on_rejected
        # Guards every field below; the public ones may be read without it. Leaf: only
        # arithmetic happens under it.
        self._lock = threading.Lock()
        self.settings = settings
        self._total = Tally()
        self._history = TrialHistory()
        self._by_signature: defaultdict[str, Tally] = defaultdict(Tally)
        self.num_teed = self.num_dropped = 0
        self.num_split_to_primary = self.num_split_to_canary = 0
        self._judged_from = 0  # the number of samples at which the guard judges again
        self._queue: deque[_Copy] = deque()
        self._queued_bytes = 0
        self._is_busy = False
        self._hangs_from_s = math.inf  # when the copy in the canary will be overdue
        self._is_closed = False
        self.rejected = "" if rejection is None else rejection.reason
        self.since_s = parts.clock.wall_s() if rejection is None else rejection.since_s

    def report(self, *, include_latencies: bool = False) -> CanaryReport:
        """Returns where the trial stands, as far as it knows itself."""
        with self._lock:
            settings, total = self.settings, self._total
            report = CanaryReport(
                since_s=self.since_s,
                canary=settings,
                total=total.comparison(include_latencies=include_latencies),
                by_signature={
                    name: each.comparison(include_latencies=include_latencies)
                    for name, each in self._by_signature.items()
                },
                guards=judge(settings.guard, total.figures()),
                num_teed_requests=self.num_teed,
                num_dropped_tees=self.num_dropped,
                num_split_to_primary=self.num_split_to_primary,
                num_split_to_canary=self.num_split_to_canary,
            )
            if self.rejected:
                report.phase, report.reason = CanaryReport.REJECTED, self.rejected
        return report

    @property
    def total(self) -> Figures:
        """The figures of all signatures together, so far."""
        with self._lock:
            return self._total.figures()

    @property
    def spans(self) -> Sequence[TrialSpan]:
        """How the figures moved, the oldest first."""
        with self._lock:
            return self._history.spans()

    def update(self, settings: Canary) -> None:
        """Changes fractions and limits; the figures stay."""
        with self._lock:
            self.settings = settings
            self._judged_from = 0

    def close(self) -> None:
        """Ends the trial: no further copy is computed. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._drop_copies_locked()

    # -- requests --------------------------------------------------------------------

    def submit(
        self,
        servable: Servable,
        task: InferenceTask,
        *,
        is_canary: bool,
        is_teed: bool,
        is_split: bool,
    ) -> None:
        """Submits a caller's task to the version that answers, and records how it ended.

        Args:
            servable: The version that answers.
            task: The task.
            is_canary: Whether that is the version on trial.
            is_teed: Whether the version on trial gets a copy.
            is_split: Whether the request was subject to a split.

        """
        clock = self._parts.clock
        copied = self._copy_of(task) if is_teed else None
        on_done = task.on_done
        signature_name = task.signature_name
        begun_s = clock.now()

        def done(outcome: Outcome) -> None:
            try:
                latency_s = clock.now() - begun_s
                if is_split:
                    self._add_split(outcome, latency_s, is_canary, signature_name)
                if copied is not None and not isinstance(outcome, Cancelled):
                    self._offer(copied, outcome, latency_s)
            except Exception:
                log.exception("event=trial_failed servable=%s", self.name)
            finally:
                on_done(outcome)

        task.on_done = done
        servable.submit(task)

    def note_refused(self, *, is_canary: bool) -> None:
        """Records a request of a split that ended before it could be submitted.

        It did not fit the signatures of the version to which it was sent.
        """
        unfit = InvalidArgument(f"{self.name}: the request does not fit the version")
        self._add_split(unfit, 0.0, is_canary)

    def _add_split(
        self,
        outcome: Outcome,
        latency_s: float,
        is_canary: bool,
        signature_name: str | None = None,
    ) -> None:
        with self._lock:
            if is_canary:
                self.num_split_to_canary += 1
            else:
                self.num_split_to_primary += 1
            for tally in self._tallies_locked(signature_name):
                tally.add_split(outcome, latency_s, is_canary=is_canary)
        if is_canary:
            self._judge()

    def _tallies_locked(self, signature_name: str | None) -> tuple[Tally, ...]:
        if signature_name is None:
            return (self._total,)
        return self._total, self._by_signature[signature_name]

    # -- copies ----------------------------------------------------------------------

    def _copy_of(self, task: InferenceTask) -> _Copy | None:
        """Copies the inputs that the caller sent; their buffers are valid until the task is done.

        Inputs that were left out are not copied: the canary has defaults of its own.
        """
        size_bytes = sum(view.size_bytes for view in task.inputs.values())
        with self._lock:
            if self._is_closed or self.rejected:
                return None
            if not self._hangs_locked() and not self._has_room_locked(size_bytes):
                self.num_dropped += 1
                return None
        defaults = task.signature.defaults
        sent = {
            name: view
            for name, view in task.inputs.items()
            if view is not defaults.get(name)
        }
        return _Copy(
            task.signature_name,
            owned(sent),
            task.output_filter,
            task.num_rows,
            size_bytes,
            {},
        )

    def _hangs_locked(self) -> bool:
        return self._parts.clock.now() >= self._hangs_from_s

    def _has_room_locked(self, size_bytes: int) -> bool:
        is_short = len(self._queue) < MAX_QUEUED
        return is_short and self._queued_bytes + size_bytes <= _MAX_QUEUED_BYTES

    def _offer(self, copied: _Copy, outcome: Outcome, latency_s: float) -> None:
        if not isinstance(outcome, ServingError):
            outcome = owned(outcome, copied.output_filter)
            copied.size_bytes += sum(view.size_bytes for view in outcome.values())
        copied.outcome, copied.latency_s = outcome, latency_s
        starts = False
        with self._lock:
            if self._is_closed or self.rejected:
                return
            hangs = self._hangs_locked()
            if hangs:
                # Otherwise a canary that hangs would never have enough samples for its
                # guard.
                self.num_dropped += 1
                unanswered = DeadlineExceeded(f"{self.name}: the canary hangs")
                for tally in self._tallies_locked(copied.signature_name):
                    tally.add_copy(outcome, latency_s, unanswered, 0.0)
            elif not self._has_room_locked(copied.size_bytes):
                self.num_dropped += 1
            else:
                self.num_teed += 1
                self._queue.append(copied)
                self._queued_bytes += copied.size_bytes
                starts = not self._is_busy
                self._is_busy = True
        if starts:
            self._parts.post(self._run_next)
        elif hangs:
            self._judge()

    def _drop_copies_locked(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _run_next(self) -> None:
        """Submits the oldest copy to the canary. On the serving loop."""
        clock = self._parts.clock
        with self._lock:
            if not self._queue or self._is_closed or self.rejected:
                self._is_busy = False
                return
            copied = self._queue.popleft()
            self._queued_bytes -= copied.size_bytes
            overdue_s = max(_HANG_S, _HANG_RATIO * copied.latency_s)
            self._hangs_from_s = clock.now() + overdue_s
        try:
            handle = self._pin()
        except ServingError:
            with self._lock:  # the canary is not loaded yet, or not any more
                self._hangs_from_s = math.inf
                self.num_dropped += 1
                self.num_teed -= 1
            self._parts.post(self._run_next)
            return
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
        self, servable: Servable, copied: _Copy, done: Callable[[Outcome], None]
    ) -> InferenceTask:
        signature = servable.signatures.get(copied.signature_name)
        if signature is None:
            raise InvalidArgument(f"the canary has no {copied.signature_name!r}")
        inputs = copied.inputs
        if signature.defaults:
            inputs = signature.with_defaults(inputs)
        return InferenceTask(
            copied.signature_name,
            signature,
            inputs,
            done,
            num_rows=signature.check_inputs(inputs),
            output_filter=copied.output_filter,
            deadline_s=self._parts.clock.now() + _COPY_DEADLINE_S,
            is_low=True,
        )

    def _finish_later(self, copied: _Copy, outcome: Outcome, latency_s: float) -> None:
        try:
            self._parts.executor.submit(
                lambda: self._finish(copied, outcome, latency_s)
            )
        except RuntimeError:  # the server is shutting down
            self.close()

    def _finish(self, copied: _Copy, outcome: Outcome, latency_s: float) -> None:
        """Compares the answers and records the result. On the executor."""
        try:
            self._compare(copied, outcome, latency_s)
            self._judge()
        finally:
            self._parts.post(self._run_next)

    def _compare(self, copied: _Copy, outcome: Outcome, latency_s: float) -> None:
        # This imports numpy, for which a server without a canary need not wait.
        from tfs.server.canary.difference import difference

        before = copied.outcome
        is_pair, found = False, None
        if not isinstance(before, ServingError) and not isinstance(
            outcome, ServingError
        ):
            is_pair = True
            found = difference(before, outcome, copied.output_filter)
        with self._lock:
            for tally in self._tallies_locked(copied.signature_name):
                tally.add_copy(before, copied.latency_s, outcome, latency_s)
                if is_pair:
                    tally.add_pair(copied.num_rows, found)

    def _judge(self) -> None:
        with self._lock:
            self._history.note(self._parts.clock.wall_s(), self._total)
            settings, num = self.settings, self._total.canary.num
            guard, has_guard = settings.guard, settings.HasField("guard")
            if self.rejected or self._is_closed or not has_guard:
                return
            if num < max(least_samples(guard), self._judged_from):
                return
            # One more of many samples changes little, and computing the figures takes
            # 40 us.
            self._judged_from = num + 1 + num // _SAMPLES_PER_LOOK
            figures = self._total.figures()
            reason = rejection(judge(guard, figures), figures)
            if not reason:
                return
            # In this order, for who reads that it was rejected first.
            self.since_s = self._parts.clock.wall_s()
            self.rejected = reason
            self._drop_copies_locked()
        log.warning(
            "event=canary_rejected servable=%s/%d reason=%r",
            self.name,
            settings.version,
            reason,
        )
        self._on_rejected(Rejection(settings_form(settings), reason, self.since_s))


def owned(tensors: Tensors, names: Container[str] = ()) -> Tensors:
    """Returns tensors with bytes of their own, so that their buffers may change.

    Args:
        tensors: The tensors by name.
        names: The outputs that are wanted; empty means all.

    """
    return {
        name: view.owned()
        for name, view in tensors.items()
        if not names or name in names
    }
