"""The calls that a process has, written into its slab, and what a version's are like."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tfs.core.call import TRACING
from tfs.core.errors import Internal, InvalidArgument, ServingError
from tfs.core.loop.pacing import SpinBackoff
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.servable import InferenceTask, Outcome
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.slab import REQUESTS
from tfs.runtime.interpreter import finish
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.slab_call import (
    CorruptReply,
    RequestPlans,
    SlowReply,
    Spill,
    read_reply,
    reply_plans,
    takes_long_to_write,
    write_request,
)
from tfs.runtime.process.worker_process import WorkerProcess

log = logging.getLogger(__name__)

_SMOOTHING: Final = 0.125
_HANG_FACTOR: Final = 10.0
_SHORT_CALL_S: Final = 0.001
_MAX_SIZES: Final = 256
# Between asking a worker where it hangs, which it writes in milliseconds, and its end.
_NOTICE_S: Final = 0.05


class CallTimes:
    """Running means of a version's calls, by signature and rows. Loop-confined."""

    def __init__(self) -> None:
        self._mean_s: dict[tuple[int, int], float] = {}

    def observe(self, signature_index: int, num_rows: int, call_s: float) -> None:
        """Takes one measured call into account."""
        key = signature_index, num_rows
        mean_s = self._mean_s.get(key)
        if mean_s is not None:
            self._mean_s[key] = mean_s + _SMOOTHING * (call_s - mean_s)
        elif len(self._mean_s) < _MAX_SIZES:
            self._mean_s[key] = call_s

    def limit_s(self, signature_index: int, num_rows: int, timeout_s: float) -> float:
        """Returns how long a call may take before its process counts as hung."""
        mean_s = self._mean_s.get((signature_index, num_rows), 0.0)
        return max(timeout_s, _HANG_FACTOR * mean_s)

    def is_short(self, signature_index: int, num_rows: int) -> bool:
        """Whether a call is so short that the wake-up after it would be noticeable.

        Behind such a call, the next one may already wait in the worker. Behind a longer
        one it waits in the host, where it can be cancelled until the last moment.
        """
        return self.is_within(signature_index, num_rows, _SHORT_CALL_S)

    def is_within(self, signature_index: int, num_rows: int, time_s: float) -> bool:
        """Whether calls of this size were measured, and take at most ``time_s``."""
        mean_s = self._mean_s.get((signature_index, num_rows))
        return mean_s is not None and mean_s <= time_s


class VersionCalls:
    """The signatures of a version as its processes number them, and what calls are like.

    Loop-confined.

    Attributes:
        who: The version, for messages.
        concurrency: How many calls a process may run at once.
        signature_indexes: The number of each signature.
        request_plans: How requests for a signature were written, by signature.
        reply_plans: What is known of the words of a signature's replies, by signature.
        times: How long calls take.
        last_call_s: Seconds that the last call took in its process; None before the
            first.

    """

    def __init__(self, source: ModelSource) -> None:
        self.who = source.id.slashed
        self.concurrency = source.concurrency
        self.signature_indexes = {
            name: index for index, name in enumerate(source.signatures)
        }
        self.request_plans: list[RequestPlans] = [{} for _ in source.signatures]
        self.reply_plans = [reply_plans(each) for each in source.signatures.values()]
        self.times = CallTimes()
        self.last_call_s: float | None = None


@dataclass(slots=True)
class _Call:
    """A task in a slot.

    Attributes:
        task: What is computed.
        index: Number of its signature among the version's.
        sequence: Its number among the requests written to this worker.
        begun_s: Since when the worker can have been in it, by the loop's clock.
        limit_s: How long it may take.

    """

    task: InferenceTask
    index: int
    sequence: int
    begun_s: float
    limit_s: float


class WorkerCalls:
    """Hands tasks to a process that is ready, and answers them. Loop-confined.

    Behind a call that is short, one more may already lie in the slab; all others wait in
    the version's queue, where they can be cancelled. If calls overlap, the worker is told
    their deadlines and who has gone, because a batched part asks for that in the middle
    of a call.

    Args:
        loop: Watches for replies; its clock decides when a deadline has passed.
        options: When a call counts as hung, and who copies what would take the loop too
            long.
        process: The process; its owner closes it after this.
        version: The version that it has.
        on_room: Called when more tasks can be taken, and before the answers to those
            that have ended are handed out.
        on_answered: Called after that.
        on_unusable: Called with the reason when the process hangs or answers nonsense,
            to have it killed.
        on_hanging: Called shortly before that if a call hangs, to have it say where. A
            call that ends just then is as good as any.

    Attributes:
        num: Tasks that the process has, or is about to get.
        num_done: Calls that it has ended.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ProcessOptions,
        process: WorkerProcess,
        version: VersionCalls,
        *,
        on_room: Callable[[], None],
        on_answered: Callable[[], None],
        on_unusable: Callable[[str], None],
        on_hanging: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now: Final = loop.clock.now
        self._options = options
        self._process = process
        self._version = version
        self._on_room, self._on_answered = on_room, on_answered
        self._on_unusable, self._on_hanging = on_unusable, on_hanging
        self._spin_s = options.worker.spin_us / 1e6
        self._look_backoff = SpinBackoff()
        self._overlaps = process.concurrency > 1
        self._free = list(range(process.slab.num_slots - 1, -1, -1))
        self._calls: dict[int, _Call] = {}  # by slot, the oldest first
        self._copied: InferenceTask | None = None  # by another thread, at this moment
        self._num_written = 0
        self._asked: _Call | None = None  # where it hangs
        self._timer: Timer | None = None  # checks whether a call hangs
        self._is_open = True
        self.num = 0
        self.num_done = 0
        loop.watch(process.reply_fd, lambda _: self.read_replies())

    def may_take(self) -> bool:
        """Whether a task may begin beside those that the process has."""
        if self._copied is not None or not self._free:
            return False
        if self._overlaps:
            return self.num < self._version.concurrency
        if not self._calls:
            return True
        first = next(iter(self._calls.values()))
        return self._version.times.is_short(first.index, first.task.num_rows)

    def begin(self, task: InferenceTask, now_s: float) -> None:
        """Has the process compute a task that it may take; answers it if it cannot."""
        self.num += 1
        if not takes_long_to_write(task):
            self._write(task, None, now_s)
            return
        self._copied = task
        try:
            self._options.executor.submit(partial(self._copy, task))
        except RuntimeError:  # the server is ending
            self._copy(task)

    def read_replies(self) -> None:
        """Answers the calls that the process has finished."""
        if not self._is_open:
            return
        done = self._take_replies()
        # The worker gets its next call first: it computes while answers are handed out.
        self._on_room()
        if not self._calls and self._spin_s and self._is_open:
            self._loop.look_until(0.0, self._look_backoff)
        for task, outcome in done:
            self._finish(task, outcome)
        self._on_answered()

    def close(self) -> tuple[list[InferenceTask], list[InferenceTask]]:
        """Ends the use of the process; answers what it had finished.

        Returns:
            The tasks that it was in, and those that it had not begun, the oldest first;
            the caller owns them.

        """
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self._process.reply_fd)
        done = self._take_replies()
        num_started = self._process.num_started()
        begun, waiting = list[InferenceTask](), list[InferenceTask]()
        for call in self._calls.values():
            call.task.cancel.on_cancel = None
            (begun if call.sequence < num_started else waiting).append(call.task)
        if self._copied is not None:
            waiting.append(self._copied)
            self._copied = None
        self._calls = {}
        self.num = 0
        for task, outcome in done:
            self._finish(task, outcome)
        return begun, waiting

    # -- one call ------------------------------------------------------------------------

    def _copy(self, task: InferenceTask) -> None:
        found: Spill | ServingError
        try:
            found = Spill.of(task)
        except Exception as error:
            found = self._why_not(error)
        self._loop.post(partial(self._take_copy, task, found))

    def _take_copy(self, task: InferenceTask, found: Spill | ServingError) -> None:
        if self._copied is not task:  # the process ended meanwhile
            if isinstance(found, Spill):
                os.close(found.fd)
            return
        self._copied = None
        if isinstance(found, Spill):
            self._write(task, found, self._now())
        else:
            self._refuse(task, found)
            self._on_room()
            self._on_answered()

    def _refuse(self, task: InferenceTask, error: ServingError) -> None:
        self.num -= 1
        finish(task, error)

    def _why_not(self, error: Exception) -> ServingError:
        who = self._version.who
        if isinstance(error, InvalidArgument):
            return InvalidArgument(f"{who}: {error.message}")
        return Internal(f"{who}: a request cannot be handed over: {error}")

    def _write(self, task: InferenceTask, spill: Spill | None, now_s: float) -> None:
        process, version = self._process, self._version
        slab, slot_index = process.slab, self._free[-1]
        words, slot = slab.words, slab.slots[slot_index]
        index, num_rows = version.signature_indexes[task.signature_name], task.num_rows
        try:
            if spill is None:
                plans = version.request_plans[index]
                overflow_fd = write_request(slab, slot, index, task, plans)
            else:
                overflow_fd = spill.write(slab, slot, index, num_rows)
            if overflow_fd is not None:
                process.send_tensors(overflow_fd)
        except Exception as error:
            self._refuse(task, self._why_not(error))
            return
        self._free.pop()
        sequence = self._num_written
        limit_s = version.times.limit_s(index, num_rows, self._options.call_timeout_s)
        # It begins later if another one runs before it.
        call = self._calls[slot_index] = _Call(task, index, sequence, now_s, limit_s)
        words[slab.request_ring + sequence % slab.num_slots] = slot_index
        if self._overlaps:
            words[slab.marks + slot_index] = 0
            words[slab.deadlines + slot_index] = _deadline_ns(task.deadline_s, now_s)
        if task.trace is not None:
            slab.write_span(slot_index, task.trace.context)
        elif TRACING.tracer is not None:
            slab.write_span(slot_index, None)
        self._num_written = words[REQUESTS] = sequence + 1
        process.ring()
        if self._overlaps:
            self._pass_mark_on(call, slot_index)
        if self._timer is None:
            self._arm_timer()
        if self._spin_s and version.times.is_within(index, num_rows, self._spin_s):
            self._loop.look_until(now_s + self._spin_s, self._look_backoff)

    def _pass_mark_on(self, call: _Call, slot_index: int) -> None:
        """Arranges that the worker is told when nobody waits for the call any more."""
        token = call.task.cancel

        def mark() -> None:
            error = token.error
            if error is not None and self._calls.get(slot_index) is call:
                slab = self._process.slab
                slab.words[slab.marks + slot_index] = int(error.code)

        def on_cancel(_: ServingError) -> None:
            if self._loop.is_loop_thread:
                mark()
            else:
                self._loop.post(mark)

        token.on_cancel = on_cancel
        mark()  # the call may have been cancelled meanwhile

    def _take_replies(self) -> list[tuple[InferenceTask, Outcome]]:
        slab, calls, version = self._process.slab, self._calls, self._version
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(self._process.num_replies()):
            slot_index = slab.words[slab.reply_ring + self.num_done % slab.num_slots]
            call = calls.get(slot_index)
            try:
                if call is None:
                    raise CorruptReply("a reply without a call")
                outcome, call_s = self._take_reply(slot_index, call)
            except CorruptReply as error:
                self._on_unusable(f"was ended: it corrupted its memory ({error})")
                break
            self.num_done += 1
            self.num -= 1
            del calls[slot_index]
            self._free.append(slot_index)
            if self._overlaps:
                call.task.cancel.on_cancel = None
            elif calls:
                next(iter(calls.values())).begun_s = self._now()
            if not isinstance(outcome, ServingError):
                version.times.observe(call.index, call.task.num_rows, call_s)
                version.last_call_s = call_s
            done.append((call.task, outcome))
        return done

    def _take_reply(self, slot_index: int, call: _Call) -> tuple[Outcome, float]:
        """Returns the outcome of a call, and the seconds that it took in the worker.

        Raises:
            CorruptReply: The worker wrote nonsense; it must not be used any more.

        """
        slab, version = self._process.slab, self._version
        slot = slab.slots[slot_index]
        overflow_fd: int | None = None
        if slab.words[slot.reply_word + 2]:
            overflow_fd = self._process.receive_tensors()
        plans = version.reply_plans[call.index]
        try:
            return read_reply(slab, slot, overflow_fd, plans)
        finally:
            if overflow_fd is not None:
                os.close(overflow_fd)

    def _finish(self, task: InferenceTask, outcome: Outcome) -> None:
        """Delivers the outcome of a call; has it read on another thread first if that is slow."""
        if type(outcome) is not SlowReply:
            finish(task, outcome)
            return
        read = partial(_read_and_finish, self._version.who, task, outcome)
        try:
            self._options.executor.submit(read)
        except RuntimeError:  # the server is ending
            read()

    # One timer serves many calls. When it fires, it looks which calls run, and is set
    # for the one that is due first.

    def _first_due(self) -> _Call:
        return min(self._calls.values(), key=lambda call: call.begun_s + call.limit_s)

    def _arm_timer(self) -> None:
        call = self._first_due()
        when_s = call.begun_s + call.limit_s
        self._timer = self._loop.call_at(when_s, self._check_limits)

    def _check_limits(self) -> None:
        self._timer = None
        if not self._calls:
            return
        call = self._first_due()
        now_s = self._now()
        if now_s < call.begun_s + call.limit_s:
            self._arm_timer()
        elif self._asked is not call:
            self._asked = call
            self._on_hanging()
            self._timer = self._loop.call_at(now_s + _NOTICE_S, self._check_limits)
        else:
            text = f"was ended because a call took over {call.limit_s:.1f} s"
            self._on_unusable(f"{text} (--interpreter_call_timeout_s)")


def _deadline_ns(deadline_s: float | None, now_s: float) -> int:
    """Returns a deadline by the clock that all processes of this host share, or 0."""
    if deadline_s is None:
        return 0
    return int((time.monotonic() + deadline_s - now_s) * 1e9) or 1


def _read_and_finish(who: str, task: InferenceTask, reply: SlowReply) -> None:
    outcome: Outcome
    try:
        outcome = reply.read()
    except CorruptReply as error:
        log.error(
            "event=corrupt_reply servable=%s signature=%s error=%s",
            who,
            task.signature_name,
            error,
        )
        outcome = Internal(f"{who}: its interpreter answered nonsense: {error}")
    finish(task, outcome)
