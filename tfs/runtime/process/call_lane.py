"""The calls of one interpreter: those that wait, and those that its worker has."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from tfs.core.servable import InferenceTask, Outcome
from tfs.core.spin_backoff import SpinBackoff
from tfs.runtime.guest.slab import NUM_SLOTS, REQUESTS
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.lane import Lane, LaneTerms
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.slab_call import CorruptReply
from tfs.runtime.process.worker_call import WorkerCall, send_request, take_reply
from tfs.runtime.task_outcome import finish

_NOTICE_S: Final = 0.05


class CallLane(Lane):
    """Hands tasks to a worker one after the other. Loop-confined.

    Args:
        terms: What all lanes have in common.
        spin_s: If a reply is due within so many seconds, the loop looks for it instead
            of sleeping.

    Attributes:
        channel: Leads to the worker that takes calls; None while there is none.
        others: Lanes of other interpreters. When its worker is idle, this lane takes
            over the oldest of the tasks that wait there, if it has their version too;
            otherwise a short call could wait for minutes behind a long one.

    """

    def __init__(self, terms: LaneTerms, spin_s: float) -> None:
        super().__init__(terms)
        self._spin_s = spin_s
        self._look_backoff = SpinBackoff()
        self._calls: deque[WorkerCall] = deque()
        self._sequence = 0  # how many requests the present worker was given
        self._head_begun_s = 0.0
        self.channel: CallChannel | None = None
        self.others: Sequence[CallLane] = ()

    @property
    def num_running(self) -> int:
        return len(self._calls)

    @property
    def num_pending(self) -> int:
        return len(self._queue) + len(self._calls)

    def add(self, model: ProcessModel, task: InferenceTask) -> None:
        """Queues a task, or answers it; one with nothing before it goes to the worker now."""
        channel = self.channel
        if channel is not None and not self._calls and not self._queue:
            now_s = self._now()
            if (
                model.health.quarantine is None
                and task.signature_name in model.signature_indexes
                and task.begin(now_s, model.who) is None
            ):
                self._write(channel, model, task, now_s)
                return
        super().add(model, task)

    def open(self, channel: CallChannel) -> None:
        """Starts handing tasks to a new worker."""
        self.channel = channel
        self._sequence = channel.num_written
        self._pump()

    def read_replies(self, channel: CallChannel, _events: int = 0) -> None:
        """Answers all calls that a worker has finished, the oldest first."""
        num_replies = channel.num_replies()
        if channel is not self.channel:
            return  # the worker is not ready yet
        calls = self._calls
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(num_replies):
            if not calls:
                break
            call = calls[0]
            slot = channel.slab.slots[call.sequence % NUM_SLOTS]
            try:
                outcome, call_s = take_reply(channel, slot, call)
            except CorruptReply as error:
                self._on_unusable(f"was ended: it corrupted its memory ({error})")
                break
            calls.popleft()
            self._count(outcome, call_s)
            done.append((call.task, outcome))
            if calls:
                self._head_begun_s = self._now()
        # The worker gets its next call first: it computes while answers are handed out.
        if self._queue or (self.others and not calls):
            self._pump()
        if not calls and self._spin_s:
            self._loop.look_until(0.0, self._look_backoff)
        for task, outcome in done:
            self._finish(task, outcome)
        if self._when_idle:
            self.tell_idle()

    def close(self, num_started: int) -> list[WorkerCall]:
        """Stops handing out tasks: the worker is gone.

        Calls that it had not begun go back to their place in the queue.

        Args:
            num_started: How many calls it said that it had begun.

        Returns:
            The calls that it was in, oldest first; the caller answers them.

        """
        if self.channel is not None:
            self.channel.num_written = self._sequence
        self.channel = None
        self._cancel_timer()
        failed: list[WorkerCall] = []
        while self._calls:
            # Calls run in order. The first may have been running even if the worker did
            # not say so; the others were running only if it did.
            if failed and self._calls[0].sequence >= num_started:
                break
            call = self._calls.popleft()
            call.has_begun = call.sequence < num_started
            failed.append(call)
        self._put_back(self._calls)
        self._calls.clear()
        return failed

    def _calls_of(self, model: ProcessModel | None) -> bool:
        return any(model is None or call.model is model for call in self._calls)

    def _pump(self) -> None:
        channel, calls = self.channel, self._calls
        while channel is not None:
            if calls:
                if len(calls) >= NUM_SLOTS or not self._head_is_short():
                    return
            elif self.others:
                self._take_over()
            if not self._queue:
                return
            now_s = self._now()
            following = self._next(now_s)
            if following is not None:
                self._write(channel, *following, now_s)

    def pump(self) -> None:
        """Looks for tasks that the worker could have, here and in other lanes."""
        self._pump()

    def _take_over(self) -> None:
        """Puts the oldest task of other lanes at the head of this one, if it is older."""
        oldest_s = self._queue[0][2] if self._queue else math.inf
        source: CallLane | None = None
        for lane in self.others:
            if lane._queue:
                model, _, since_s = lane._queue[0]
                if since_s < oldest_s and self in model.health.loaded_in:
                    oldest_s, source = since_s, lane
        if source is not None:
            model, task, since_s = source._queue.popleft()
            self._queue.appendleft((model.health.loaded_in[self], task, since_s))

    def _head_is_short(self) -> bool:
        head = self._calls[0]
        return head.model.times.is_short(head.signature_index, head.task.num_rows)

    def _write(
        self,
        channel: CallChannel,
        model: ProcessModel,
        task: InferenceTask,
        now_s: float,
    ) -> None:
        index = model.signature_indexes[task.signature_name]
        sequence = self._sequence
        slot = channel.slab.slots[sequence % NUM_SLOTS]
        error = send_request(channel, slot, model, index, task)
        if error is not None:
            finish(task, error)
            return
        self._calls.append(WorkerCall(model, task, index, sequence))
        self._sequence = sequence = sequence + 1
        channel.slab.words[REQUESTS] = sequence
        channel.ring()
        if len(self._calls) == 1:
            self._head_begun_s = now_s
            if self._timer is None:
                self._arm_timer()
        if self._spin_s and model.times.is_within(index, task.num_rows, self._spin_s):
            self._loop.look_until(now_s + self._spin_s, self._look_backoff)

    # One timer serves many calls. When it fires, it looks which call runs, and is set
    # for that one.

    def _arm_timer(self) -> None:
        limit_s = self._head_limit_s()
        when_s = self._head_begun_s + limit_s
        if self._num_shown != self._num_calls:
            when_s -= _notice_s(limit_s)
        self._timer = self._loop.call_at(when_s, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        if not self._calls:
            return
        limit_s = self._head_limit_s()
        left_s = self._head_begun_s + limit_s - self._now()
        if left_s > 0.0:
            if self._num_shown != self._num_calls and left_s <= _notice_s(limit_s):
                self._num_shown = self._num_calls
                self._on_hanging()
            self._arm_timer()
        else:
            self._on_unusable(f"was ended because a call took over {limit_s:.1f} s")

    def _head_limit_s(self) -> float:
        head = self._calls[0]
        return head.model.times.limit_s(
            head.signature_index, head.task.num_rows, self._call_timeout_s
        )


def _notice_s(limit_s: float) -> float:
    """Returns how long before its end a worker is asked where it hangs.

    Writing that takes milliseconds. A call that ends just then is as good as any.
    """
    return min(_NOTICE_S, limit_s / 4)
