"""The waiting and running calls of one model that takes several at once."""

from __future__ import annotations

import time

from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.runtime.guest.slab import REQUESTS
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.lane import Lane, LaneTerms
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.slab_call import CorruptReply
from tfs.runtime.process.worker_call import WorkerCall, send_request, take_reply
from tfs.runtime.task_outcome import finish


class OverlappingLane(Lane):
    """Hands tasks of one model to a worker that runs each on a thread of its own.

    Unlike :class:`~tfs.runtime.process.call_lane.CallLane`, which runs one call after
    the other and is quicker, replies come in any order here. The worker is also told
    when a caller has gone, because a batched part asks for that in the middle of a
    call.

    Loop-confined. It watches for replies itself.
    """

    def __init__(self, terms: LaneTerms) -> None:
        super().__init__(terms)
        self._calls: dict[int, _Overlapping] = {}  # by slot
        self._free: list[int] = []
        self._num_written = 0  # requests that the present worker was given
        self._num_read = 0
        self._channel: CallChannel | None = None

    @property
    def num_running(self) -> int:
        return len(self._calls)

    def open(self, channel: CallChannel) -> None:
        """Starts handing tasks to a new worker; owns the channel from now on."""
        self._channel = channel
        self._free = list(range(channel.slab.num_slots - 1, -1, -1))
        self._num_written = self._num_read = 0
        self._loop.watch(channel.reply_fd, lambda _: self.read_replies())
        self._pump()

    def read_replies(self) -> None:
        """Answers the calls that the worker has finished."""
        channel = self._channel
        if channel is None:
            return
        done = self._take_all(channel)
        # The worker gets its next calls first: it computes while answers are handed out.
        self._pump()
        for task, outcome in done:
            self._finish(task, outcome)
        self.tell_idle()

    def close(self) -> list[WorkerCall]:
        """Stops handing out tasks: the worker is gone, or unloads the model.

        Calls that it had finished are answered; those that it had not begun wait again.

        Returns:
            The calls that it was in; the caller answers them.

        """
        channel, self._channel = self._channel, None
        self._cancel_timer()
        if channel is None:
            return []
        done = self._take_all(channel)
        num_started = channel.num_started()
        self._loop.unwatch(channel.reply_fd)
        channel.close()
        calls = sorted(self._calls.values(), key=lambda call: call.sequence)
        self._calls = {}
        for call in calls:
            call.task.cancel.on_cancel = None
        self._put_back(call for call in calls if call.sequence >= num_started)
        for task, outcome in done:
            self._finish(task, outcome)
        return [call for call in calls if call.sequence < num_started]

    def _calls_of(self, model: ProcessModel | None) -> bool:
        return bool(self._calls)  # the lane has calls of one model only

    def _pump(self) -> None:
        channel = self._channel
        while self._queue and self._free and channel is not None:
            now_s = self._now()
            following = self._next(now_s)
            if following is not None:
                self._write(channel, *following, now_s)

    def _write(
        self,
        channel: CallChannel,
        model: ProcessModel,
        task: InferenceTask,
        now_s: float,
    ) -> None:
        slab = channel.slab
        signature_index = model.signature_indexes[task.signature_name]
        slot_index = self._free[-1]
        slot = slab.slots[slot_index]
        error = send_request(channel, slot, model, signature_index, task)
        if error is not None:
            finish(task, error)
            return
        self._free.pop()
        call = _Overlapping(model, task, signature_index, self._num_written)
        call.limit_s = now_s + model.times.limit_s(
            signature_index, task.num_rows, self._call_timeout_s
        )
        self._calls[slot_index] = call
        slab.words[slab.marks + slot_index] = 0
        slab.words[slab.deadlines + slot_index] = _deadline_ns(task.deadline_s, now_s)
        slab.words[slab.request_ring + self._num_written % slab.num_slots] = slot_index
        self._num_written += 1
        slab.words[REQUESTS] = self._num_written
        channel.ring()
        self._pass_mark_on(call, slot_index)
        if self._timer is None:
            self._timer = self._loop.call_at(call.limit_s, self._check_limits)

    def _pass_mark_on(self, call: _Overlapping, slot_index: int) -> None:
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

    def _take_all(self, channel: CallChannel) -> list[tuple[InferenceTask, Outcome]]:
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(channel.num_replies()):
            try:
                done.append(self._take(channel))
            except CorruptReply as error:
                self._on_unusable(f"was ended: it corrupted its memory ({error})")
                break
        return done

    def _take(self, channel: CallChannel) -> tuple[InferenceTask, Outcome]:
        slab = channel.slab
        slot_index = slab.words[slab.reply_ring + self._num_read % slab.num_slots]
        call = self._calls.get(slot_index)
        if call is None:
            raise CorruptReply("a reply without a call")
        outcome, call_s = take_reply(channel, slab.slots[slot_index], call)
        self._num_read += 1
        del self._calls[slot_index]
        self._free.append(slot_index)
        call.task.cancel.on_cancel = None
        self._count(outcome, call_s)
        return call.task, outcome

    def _check_limits(self) -> None:
        """Ends the worker if a call is over its time; otherwise looks again later.

        One timer serves many calls: it is set again only when it fires.
        """
        self._timer = None
        if not self._calls:
            return
        first_s = min(call.limit_s for call in self._calls.values())
        if self._now() < first_s:
            self._timer = self._loop.call_at(first_s, self._check_limits)
        else:
            limit_s = self._call_timeout_s
            self._on_unusable(f"was ended because a call took over {limit_s:.1f} s")


class _Overlapping(WorkerCall):
    """A call with the time at which its worker counts as hung."""

    __slots__ = ("limit_s",)

    limit_s: float


def _deadline_ns(deadline_s: float | None, now_s: float) -> int:
    """Returns a deadline by the clock that all processes of this host share, or 0."""
    if deadline_s is None:
        return 0
    return int((time.monotonic() + deadline_s - now_s) * 1e9) or 1
