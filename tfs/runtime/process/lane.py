"""The calls of a worker: those that wait in front of it, and those that it has."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.core.errors import FailedPrecondition, Internal, ServingError
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.core.spin_backoff import SpinBackoff
from tfs.runtime.guest.slab import REQUESTS
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.slab_call import CorruptReply, SlowReply
from tfs.runtime.process.worker_call import WorkerCall, send_request, take_reply
from tfs.runtime.task_outcome import finish, queue_full

log = logging.getLogger(__name__)

_NOTICE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """What all lanes of an interpreter have in common. Immutable.

    Attributes:
        loop: Watches for replies; its clock decides when a deadline has passed.
        max_queued: Tasks that may wait in a lane.
        call_timeout_s: When a call counts as hung, see ``CallTimes.limit_s``.
        on_unusable: Called with the reason when the worker hangs or answers nonsense,
            to have it killed.
        on_hanging: Called shortly before that if a call hangs, to have the worker say
            where.
        executor: Reads replies that would take the loop too long.
        spin_s: If a reply is due within so many seconds, the loop looks for it instead
            of sleeping.

    """

    loop: ServingLoop
    max_queued: int
    call_timeout_s: float
    on_unusable: Callable[[str], None]
    on_hanging: Callable[[], None] = lambda: None
    executor: Executor = field(default_factory=InlineExecutor)
    spin_s: float = 0.0


class Lane:
    """Hands tasks to a worker, and answers them. Loop-confined.

    The worker begins calls in their order, ``num_at_once`` of them at a time. Behind
    calls that are short, one more may already lie in the slab, if there is a slot; all
    others wait here, where they can be cancelled. If calls overlap, the worker is told
    their deadlines and who has gone, because a batched part asks for that in the middle
    of a call.

    Other threads may read ``num_pending`` and ``stats``.

    Args:
        terms: What all lanes have in common.
        num_at_once: How many calls the worker runs at the same time.

    Attributes:
        others: Lanes of other interpreters. When its worker is idle, this lane takes
            over the oldest of the tasks that wait there, if it has their version too;
            otherwise a short call could wait for minutes behind a long one.

    """

    def __init__(self, terms: LaneTerms, num_at_once: int = 1) -> None:
        self._terms = terms
        self._loop = terms.loop
        self._now: Final = terms.loop.clock.now
        self._num_at_once = num_at_once
        self._look_backoff = SpinBackoff()
        # With the time since when it waits.
        self._queue: deque[tuple[ProcessModel, InferenceTask, float]] = deque()
        self._calls: dict[int, WorkerCall] = {}  # by slot, the oldest first
        self._free: list[int] = []
        self._channel: CallChannel | None = None
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

    def open(self, channel: CallChannel) -> None:
        """Starts handing tasks to a worker that is ready; owns the channel from now on."""
        self._channel = channel
        self._free = list(range(channel.slab.num_slots - 1, -1, -1))
        self._num_written = self._num_read = 0
        self._loop.watch(channel.reply_fd, lambda _: self.read_replies())
        self.pump()

    def close(self) -> list[WorkerCall]:
        """Stops handing out tasks: the worker is gone, or unloads the model.

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
                and task.signature_name in model.signature_indexes
                and task.begin(now_s, model.who) is None
            ):
                self._write(channel, model, task, now_s)
                return
        refused = model.refusal()
        if refused is not None:
            finish(task, refused)
        elif len(self._queue) >= self._terms.max_queued:
            finish(task, queue_full(model.source.id, self._terms.max_queued))
        elif task.signature_name not in model.signature_indexes:
            text = f"{model.who} has no signature {task.signature_name!r}"
            finish(task, FailedPrecondition(text))
        else:
            self._queue.append((model, task, self._now()))
            self.pump()

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
                if not self._free:
                    return
                if len(calls) >= self._num_at_once and not self._head_is_short():
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
        if not self._calls and self._terms.spin_s:
            self._loop.look_until(0.0, self._look_backoff)
        for task, outcome in done:
            self._finish(task, outcome)
        self.tell_idle()

    # -- one call ------------------------------------------------------------------------

    def _head_is_short(self) -> bool:
        head = next(iter(self._calls.values()))
        return head.model.times.is_short(head.signature_index, head.task.num_rows)

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
        slab, slot_index = channel.slab, self._free[-1]
        index = model.signature_indexes[task.signature_name]
        error = send_request(channel, slab.slots[slot_index], model, index, task)
        if error is not None:
            finish(task, error)
            return
        self._free.pop()
        words, sequence, terms = slab.words, self._num_written, self._terms
        call = WorkerCall(model, task, index, sequence)
        call.limit_s = model.times.limit_s(index, task.num_rows, terms.call_timeout_s)
        call.begun_s = now_s  # later, if another one runs before it
        self._calls[slot_index] = call
        words[slab.request_ring + sequence % slab.num_slots] = slot_index
        if self._num_at_once > 1:
            words[slab.marks + slot_index] = 0
            words[slab.deadlines + slot_index] = _deadline_ns(task.deadline_s, now_s)
        self._num_written = words[REQUESTS] = sequence + 1
        channel.ring()
        if self._num_at_once > 1:
            self._pass_mark_on(call, slot_index)
        if self._timer is None:
            self._arm_timer()
        if terms.spin_s and model.times.is_within(index, task.num_rows, terms.spin_s):
            self._loop.look_until(now_s + terms.spin_s, self._look_backoff)

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
                outcome, call_s = take_reply(channel, slab.slots[slot_index], call)
            except CorruptReply as error:
                self._terms.on_unusable(f"was ended: it corrupted its memory ({error})")
                break
            self._num_read += 1
            del calls[slot_index]
            self._free.append(slot_index)
            if self._num_at_once > 1:
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
            self._terms.executor.submit(read)
        except RuntimeError:  # the server is ending
            read()

    # One timer serves many calls. When it fires, it looks which calls run, and is set
    # for the one that is due first.

    def _first_due(self) -> WorkerCall:
        if self._num_at_once == 1:
            return next(iter(self._calls.values()))
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
                self._terms.on_hanging()
            self._arm_timer()
        else:
            text = f"was ended because a call took over {call.limit_s:.1f} s"
            self._terms.on_unusable(text)


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
