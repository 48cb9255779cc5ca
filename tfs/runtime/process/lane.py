"""The calls of a worker: those that wait in front of it, and those that it has."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tfs.core.errors import FailedPrecondition, Internal, ServingError
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.loop.spin_backoff import SpinBackoff
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.tracing import TRACING
from tfs.runtime.guest.slab import REQUESTS, Slot
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.slab_call import (
    CorruptReply,
    SlowReply,
    read_reply,
    write_request,
)
from tfs.runtime.process.spilled_task import SpilledTask, why_not_handed_over
from tfs.runtime.task_outcome import finish, queue_full

log = logging.getLogger(__name__)

_NOTICE_S: Final = 0.05


class WorkerCall:
    """A task that a worker has, and what is needed to read its reply. Loop-confined.

    Attributes:
        model: The model that is called.
        task: What is computed.
        signature_index: Number of the signature among the model's.
        sequence: Its number among the requests written to this worker.
        begun_s: Since when the worker can have been in it, by the loop's clock.
        limit_s: How long it may take.

    """

    __slots__ = ("begun_s", "limit_s", "model", "sequence", "signature_index", "task")

    def __init__(
        self,
        model: ProcessModel,
        task: InferenceTask,
        signature_index: int,
        sequence: int,
        begun_s: float,
        limit_s: float,
    ) -> None:
        self.model = model
        self.task = task
        self.signature_index = signature_index
        self.sequence = sequence
        self.begun_s = begun_s
        self.limit_s = limit_s


class Lane:
    """Hands an interpreter's tasks to its worker, and answers them. Loop-confined.

    A task begins in its turn, when fewer calls of its model run than that takes at once;
    all models that take one share it. Behind a call that is short, one more may already
    lie in the slab; all others wait here, where they can be cancelled. If calls overlap, the worker is told their deadlines and who
    has gone, because a batched part asks for that in the middle of a call.

    Other threads may read ``num_pending`` and ``stats``.

    Args:
        loop: Watches for replies; its clock decides when a deadline has passed.
        options: How many tasks may wait, when a call counts as hung, and who reads
            replies that would take the loop too long.

    Attributes:
        others: Lanes of other interpreters. When its worker is idle, this lane takes
            over the oldest of the tasks that wait there, if it has their version too;
            otherwise a short call could wait for minutes behind a long one.

    """

    def __init__(self, loop: ServingLoop, options: ProcessOptions) -> None:
        self._loop = loop
        self._options = options
        self._now: Final = loop.clock.now
        self._spin_s = options.worker.spin_us / 1e6
        self._look_backoff = SpinBackoff()
        self._on_unusable: Callable[[str], None] = lambda _: None
        self._on_hanging: Callable[[], None] = lambda: None
        # With the time since when it waits.
        self._queue: deque[tuple[ProcessModel, InferenceTask, float]] = deque()
        self._calls: dict[int, WorkerCall] = {}  # by slot, the oldest first
        self._free: list[int] = []
        self._channel: CallChannel | None = None
        self._closed: ServingError | None = None
        self._overlaps = False  # whether the present worker runs several calls at once
        self._num_written = 0  # requests that the present worker was given
        self._num_read = 0
        self._timer: Timer | None = None  # checks whether a call hangs
        self._when_idle: list[Callable[[], None]] = []
        self._num_shown = -1  # calls that had ended when stacks were last asked for
        self._num_calls = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._busy_s = 0.0
        self.others: Sequence[Lane] = ()

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return len(self._queue) + len(self._calls)

    def stats(self) -> InterpreterStats:
        """Returns the counters of calls."""
        return InterpreterStats(
            num_queued=len(self._queue),
            num_calls=self._num_calls,
            num_dropped=self._num_dropped,
            num_failed=self._num_failed,
            busy_s=self._busy_s,
        )

    def open(
        self,
        channel: CallChannel,
        on_unusable: Callable[[str], None],
        on_hanging: Callable[[], None],
    ) -> None:
        """Starts handing tasks to a worker that is ready.

        Args:
            channel: Leads to the worker; owned from now on.
            on_unusable: Called with the reason when the worker hangs or answers
                nonsense, to have it killed.
            on_hanging: Called shortly before that if a call hangs, to have the worker
                say where.

        """
        self._channel = channel
        self._overlaps = channel.concurrency > 1
        self._on_unusable, self._on_hanging = on_unusable, on_hanging
        self._free = list(range(channel.slab.num_slots - 1, -1, -1))
        self._num_written = self._num_read = 0
        self._loop.watch(channel.reply_fd, lambda _: self.read_replies())
        self.pump()

    def close(self) -> list[WorkerCall]:
        """Stops handing out tasks: the worker is gone.

        Calls that it had finished are answered; those that it had not begun wait again.

        Returns:
            The calls that it was in, the oldest first; the caller answers them.

        """
        channel, self._channel = self._channel, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if channel is None:
            return []
        self._loop.unwatch(channel.reply_fd)
        done = self._take_replies(channel)
        num_started = channel.num_started()
        channel.close()
        calls, self._calls = [*self._calls.values()], {}
        for call in calls:
            call.task.cancel.on_cancel = None
        # In their order, before all others, and whatever else waits elsewhere.
        self._queue.extendleft(
            (call.model, call.task, 0.0)
            for call in reversed(calls)
            if call.sequence >= num_started
        )
        for task, outcome in done:
            self._finish(task, outcome)
        return [call for call in calls if call.sequence < num_started]

    def add(self, model: ProcessModel, task: InferenceTask) -> None:
        """Queues a task, or answers it; one with nothing before it goes to the worker now."""
        channel = self._channel
        if channel is not None and not self._calls and not self._queue:
            now_s = self._now()
            if (
                model.health.quarantine is None
                and not model.unloading
                and task.signature_name in model.signature_indexes
                and task.begin(now_s, model.who) is None
            ):
                self._write(channel, model, task, now_s)
                return
        refused = self._closed or model.refusal()
        if refused is not None:
            finish(task, refused)
        elif len(self._queue) >= self._options.max_queued:
            finish(task, queue_full(model.source.id, self._options.max_queued))
        elif task.signature_name not in model.signature_indexes:
            text = f"{model.who} has no signature {task.signature_name!r}"
            finish(task, FailedPrecondition(text))
        else:
            self._queue.append((model, task, self._now()))
            self.pump()

    def close_for_good(self, error: ServingError) -> None:
        """Answers all tasks that wait, and that will come, with ``error``."""
        self._closed = error
        self.refuse(error)

    def refuse(self, error: ServingError, model: ProcessModel | None = None) -> None:
        """Answers all tasks that wait (for ``model``, if given) with ``error``."""
        waiting, self._queue = self._queue, deque()
        refused: list[InferenceTask] = []
        for item in waiting:
            if model is None or item[0] is model:
                refused.append(item[1])
            else:
                self._queue.append(item)
        for task in refused:
            finish(task, error)

    def after_calls(
        self, then: Callable[[], None], model: ProcessModel | None = None
    ) -> None:
        """Runs ``then`` once the worker has no call (of ``model``, if given) any more."""

        def check() -> None:
            if any(model in (None, call.model) for call in self._calls.values()):
                self._when_idle.append(check)
            else:
                then()

        check()

    def tell_idle(self) -> None:
        """Runs what ``after_calls`` was given, if the calls it waits for are gone."""
        if self._when_idle:
            checks, self._when_idle = self._when_idle, []
            for check in checks:
                check()

    def pump(self) -> None:
        """Hands waiting tasks to the worker, from here or other lanes, while it takes them."""
        channel, calls = self._channel, self._calls
        while channel is not None:
            if calls:
                if not (self._free and self._queue and self._may_begin_beside(calls)):
                    return
            elif self.others:
                self._take_over()
            if not self._queue:
                return
            # Only one is looked at: a caller that is answered may add tasks and have
            # them handed over.
            now_s = self._now()
            model, task, _ = self._queue.popleft()
            refused = task.begin(now_s, model.who) or model.refusal()
            if refused is None:
                self._write(channel, model, task, now_s)
            else:
                self._num_dropped += 1
                finish(task, refused)
            if channel is not self._channel:
                return

    def read_replies(self) -> None:
        """Answers the calls that the worker has finished."""
        channel = self._channel
        if channel is None:
            return
        done = self._take_replies(channel)
        # The worker gets its next call first: it computes while answers are handed out.
        if self._queue or (self.others and not self._calls):
            self.pump()
        if not self._calls and self._spin_s:
            self._loop.look_until(0.0, self._look_backoff)
        for task, outcome in done:
            self._finish(task, outcome)
        self.tell_idle()

    # -- one call ------------------------------------------------------------------------

    def _may_begin_beside(self, calls: Mapping[int, WorkerCall]) -> bool:
        """Whether the next task may go to a worker that has these calls."""
        if self._overlaps:
            model = self._queue[0][0]
            alike = [
                each
                for each in calls.values()
                if each.model is model
                or each.model.concurrency == model.concurrency == 1
            ]
            return len(alike) < model.concurrency
        first = next(iter(calls.values()))
        return first.model.times.is_short(first.signature_index, first.task.num_rows)

    def _take_over(self) -> None:
        """Puts the oldest task of other lanes at the head of this one, if it is older."""
        oldest_s = self._queue[0][2] if self._queue else math.inf
        source: Lane | None = None
        for lane in self.others:
            if lane._queue:
                model, _, since_s = lane._queue[0]
                if since_s < oldest_s and self in model.health.loaded_in:
                    oldest_s, source = since_s, lane
        if source is not None:
            model, task, since_s = source._queue.popleft()
            self._queue.appendleft((model.health.loaded_in[self], task, since_s))

    def _write(
        self,
        channel: CallChannel,
        model: ProcessModel,
        task: InferenceTask,
        now_s: float,
    ) -> None:
        if type(task) is SpilledTask and task.handed_over_again():
            return
        slab, slot_index = channel.slab, self._free[-1]
        words, times = slab.words, model.times
        index = model.signature_indexes[task.signature_name]
        try:
            overflow_fd = write_request(
                slab,
                slab.slots[slot_index],
                model.model_id,
                index,
                task,
                model.request_plans[index],
            )
            if overflow_fd is not None:
                channel.send_tensors(overflow_fd)
        except Exception as error:
            finish(task, why_not_handed_over(model.who, error))
            return
        self._free.pop()
        sequence, num_rows = self._num_written, task.num_rows
        call = self._calls[slot_index] = WorkerCall(
            model,
            task,
            index,
            sequence,
            now_s,  # later, if another one runs before it
            times.limit_s(index, num_rows, self._options.call_timeout_s),
        )
        words[slab.request_ring + sequence % slab.num_slots] = slot_index
        if self._overlaps:
            words[slab.marks + slot_index] = 0
            words[slab.deadlines + slot_index] = _deadline_ns(task.deadline_s, now_s)
        if task.trace is not None:
            slab.write_span(slot_index, task.trace.context)
        elif TRACING.tracer is not None:
            slab.write_span(slot_index, None)
        self._num_written = words[REQUESTS] = sequence + 1
        channel.ring()
        if self._overlaps:
            self._pass_mark_on(call, slot_index)
        if self._timer is None:
            self._arm_timer()
        if self._spin_s and times.is_within(index, num_rows, self._spin_s):
            self._loop.look_until(now_s + self._spin_s, self._look_backoff)

    def _pass_mark_on(self, call: WorkerCall, slot_index: int) -> None:
        """Arranges that the worker is told when nobody waits for the call any more."""
        token = call.task.cancel

        def mark() -> None:
            channel, error = self._channel, token.error
            if channel is None or error is None:
                return
            if self._calls.get(slot_index) is call:
                channel.slab.words[channel.slab.marks + slot_index] = int(error.code)

        def on_cancel(_: ServingError) -> None:
            if self._loop.is_loop_thread:
                mark()
            else:
                self._loop.post(mark)

        token.on_cancel = on_cancel
        mark()  # the call may have been cancelled meanwhile

    def _take_replies(
        self, channel: CallChannel
    ) -> list[tuple[InferenceTask, Outcome]]:
        slab, calls = channel.slab, self._calls
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(channel.num_replies()):
            slot_index = slab.words[slab.reply_ring + self._num_read % slab.num_slots]
            call = calls.get(slot_index)
            try:
                if call is None:
                    raise CorruptReply("a reply without a call")
                outcome, call_s = _take_reply(channel, slab.slots[slot_index], call)
            except CorruptReply as error:
                self._on_unusable(f"was ended: it corrupted its memory ({error})")
                break
            self._num_read += 1
            del calls[slot_index]
            self._free.append(slot_index)
            if self._overlaps:
                call.task.cancel.on_cancel = None
            elif calls:
                next(iter(calls.values())).begun_s = self._now()
            self._num_calls += 1
            self._busy_s += call_s
            self._num_failed += isinstance(outcome, ServingError)
            done.append((call.task, outcome))
        return done

    def _finish(self, task: InferenceTask, outcome: Outcome) -> None:
        """Delivers the outcome of a call; has it read on another thread first if that is slow."""
        if type(outcome) is not SlowReply:
            finish(task, outcome)
            return
        read = partial(_read_and_finish, task, outcome)
        try:
            self._options.executor.submit(read)
        except RuntimeError:  # the server is ending
            read()

    # One timer serves many calls. When it fires, it looks which calls run, and is set
    # for the one that is due first.

    def _first_due(self) -> WorkerCall:
        return min(self._calls.values(), key=lambda call: call.begun_s + call.limit_s)

    def _arm_timer(self) -> None:
        call = self._first_due()
        when_s = call.begun_s + call.limit_s
        if self._num_shown != self._num_calls:
            when_s -= _notice_s(call.limit_s)
        self._timer = self._loop.call_at(when_s, self._check_limits)

    def _check_limits(self) -> None:
        self._timer = None
        if not self._calls:
            return
        call = self._first_due()
        left_s = call.begun_s + call.limit_s - self._now()
        if left_s > 0.0:
            if self._num_shown != self._num_calls and left_s <= _notice_s(call.limit_s):
                self._num_shown = self._num_calls
                self._on_hanging()
            self._arm_timer()
        else:
            text = f"was ended because a call took over {call.limit_s:.1f} s"
            self._on_unusable(text)


def _take_reply(
    channel: CallChannel, slot: Slot, call: WorkerCall
) -> tuple[Outcome, float]:
    """Reads the reply in a call's slot; records with the model how long the call took.

    Returns:
        The outcome, and the seconds that the call took in the worker.

    Raises:
        CorruptReply: The worker wrote nonsense; it must not be used any more.

    """
    model, index = call.model, call.signature_index
    overflow_fd: int | None = None
    try:
        if channel.slab.words[slot.reply_word + 2]:
            overflow_fd = channel.receive_tensors()
        outcome, call_s = read_reply(
            channel.slab,
            slot,
            model.who,
            call.task.signature,
            overflow_fd,
            model.reply_plans[index],
        )
    finally:
        if overflow_fd is not None:
            os.close(overflow_fd)
    if not isinstance(outcome, ServingError):
        model.times.observe(index, call.task.num_rows, call_s)
        model.last_call_s = call_s
    return outcome, call_s


def _notice_s(limit_s: float) -> float:
    """Returns how long before its end a worker is asked where it hangs.

    Writing that takes milliseconds. A call that ends just then is as good as any.
    """
    return min(_NOTICE_S, limit_s / 4)


def _deadline_ns(deadline_s: float | None, now_s: float) -> int:
    """Returns a deadline by the clock that all processes of this host share, or 0."""
    if deadline_s is None:
        return 0
    return int((time.monotonic() + deadline_s - now_s) * 1e9) or 1


def _read_and_finish(task: InferenceTask, reply: SlowReply) -> None:
    outcome: Outcome
    try:
        outcome = reply.read()
    except CorruptReply as error:
        log.error(
            "event=corrupt_reply signature=%s error=%s", task.signature_name, error
        )
        outcome = Internal(f"its interpreter answered nonsense: {error}")
    finish(task, outcome)
