"""The calls of one interpreter: those that wait, and those its worker has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.call import Call, send_request, take_reply
from tfs.runtime.call_channel import CallChannel
from tfs.runtime.guest.slab import NUM_SLOTS, REQUESTS
from tfs.runtime.process_model import ProcessModel
from tfs.runtime.slab_call import CorruptReply
from tfs.runtime.task_outcome import finish, queue_full, why_not_run


class CallLane:
    """Hands tasks to a worker one after the other. Loop-confined.

    Args:
        loop: Whose clock deadlines go by.
        max_queued: Tasks that may wait.
        call_timeout_s: When a call counts as hung, see ``CallTimes.limit_s``.
        on_unusable: Called with the reason when the worker hangs or answers nonsense;
            it is to be killed.

    Attributes:
        channel: The worker that takes calls, None while none does.
        num_calls: Replies read so far; likewise the other counters.

    """

    def __init__(
        self,
        loop: ServingLoop,
        max_queued: int,
        call_timeout_s: float,
        on_unusable: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._max_queued = max_queued
        self._call_timeout_s = call_timeout_s
        self._on_unusable = on_unusable
        self._queue: deque[tuple[ProcessModel, InferenceTask]] = deque()
        self._calls: deque[Call] = deque()
        self._sequence = 0  # requests written to the present worker
        self._head_begun_s = 0.0
        self._timer: Timer | None = None
        self._when_idle: list[Callable[[], None]] = []
        self.channel: CallChannel | None = None
        self.num_calls = 0
        self.num_dropped = 0
        self.num_failed = 0
        self.busy_s = 0.0

    @property
    def num_queued(self) -> int:
        """Tasks that wait."""
        return len(self._queue)

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return len(self._queue) + len(self._calls)

    def open(self, channel: CallChannel) -> None:
        """Starts handing tasks to a new worker."""
        self.channel = channel
        self._sequence = 0
        self.pump()

    def add(self, model: ProcessModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once."""
        who = model.source.id
        refused = model.refusal()
        if refused is not None:
            finish(task, refused)
        elif len(self._queue) >= self._max_queued:
            finish(task, queue_full(who, self._max_queued))
        elif task.signature_name not in model.signature_indexes:
            text = f"{who.slashed} has no signature {task.signature_name!r}"
            finish(task, FailedPrecondition(text))
        else:
            self._queue.append((model, task))
            self.pump()

    def pump(self) -> None:
        """Hands waiting tasks to the worker as long as it takes them."""
        channel, calls = self.channel, self._calls
        while self._queue and channel is not None:
            if calls and (len(calls) >= NUM_SLOTS or not self._head_is_short()):
                return
            model, task = self._queue.popleft()
            refused = why_not_run(task, self._loop.clock.now()) or model.refusal()
            if refused is not None:
                self.num_dropped += 1
                finish(task, refused)
            else:
                self._write(channel, model, task)

    def read_replies(self, num_replies: int) -> None:
        """Answers as many calls as the worker has, the oldest first."""
        channel = self.channel
        if channel is None:
            return
        done: list[tuple[InferenceTask, Outcome]] = []
        for _ in range(num_replies):
            if not self._calls:
                break
            call = self._calls.popleft()
            try:
                outcome = self._read(channel, call)
            except CorruptReply as error:
                self._calls.appendleft(call)
                self._on_unusable(f"was ended: it corrupted its memory ({error})")
                break
            done.append((call.task, outcome))
            if self._calls:
                self._head_begun_s = self._loop.clock.now()
        # The worker first: it computes while the answers are handed out.
        self.pump()
        for task, outcome in done:
            finish(task, outcome)
        self.tell_idle()

    def close(self, num_started: int) -> list[Call]:
        """Stops handing out tasks: the worker is gone.

        Calls it had not begun wait again, in their place.

        Args:
            num_started: How many calls it said it had begun.

        Returns:
            Those it was in, oldest first; the caller answers them.

        """
        self.channel = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed: list[Call] = []
        while self._calls:
            # Calls run in order: the first may have been running whatever the worker
            # said, the next only if it said so.
            if failed and self._calls[0].sequence >= num_started:
                break
            failed.append(self._calls.popleft())
        while self._calls:
            call = self._calls.pop()
            self._queue.appendleft((call.model, call.task))
        return failed

    def refuse(self, error: ServingError, model: ProcessModel | None = None) -> None:
        """Answers what waits (for ``model``) with ``error``."""
        kept: deque[tuple[ProcessModel, InferenceTask]] = deque()
        refused: list[InferenceTask] = []
        for item in self._queue:
            if model is None or item[0] is model:
                refused.append(item[1])
            else:
                kept.append(item)
        self._queue = kept
        for task in refused:
            finish(task, error)

    def after_calls(
        self, then: Callable[[], None], model: ProcessModel | None = None
    ) -> None:
        """Runs ``then`` once no call (of ``model``) is with the worker."""

        def check() -> None:
            if any(model is None or call.model is model for call in self._calls):
                self._when_idle.append(check)
            else:
                then()

        check()

    def tell_idle(self) -> None:
        """Looks whether somebody waits for calls that are gone."""
        if self._when_idle:
            checks, self._when_idle = self._when_idle, []
            for check in checks:
                check()

    def _head_is_short(self) -> bool:
        head = self._calls[0]
        return head.model.times.is_short(head.signature_index, head.task.num_rows)

    def _write(
        self, channel: CallChannel, model: ProcessModel, task: InferenceTask
    ) -> None:
        index = model.signature_indexes[task.signature_name]
        slot = channel.slab.slots[self._sequence % NUM_SLOTS]
        error = send_request(channel, slot, model, index, task)
        if error is not None:
            finish(task, error)
            return
        self._calls.append(Call(model, task, index, self._sequence))
        self._sequence += 1
        channel.slab.words[REQUESTS] = self._sequence
        if len(self._calls) == 1:
            self._head_begun_s = self._loop.clock.now()
            if self._timer is None:
                self._arm_timer()
        channel.ring()

    def _read(self, channel: CallChannel, call: Call) -> Outcome:
        slot = channel.slab.slots[call.sequence % NUM_SLOTS]
        outcome, call_s = take_reply(channel, slot, call)
        self.num_calls += 1
        self.busy_s += call_s
        self.num_failed += isinstance(outcome, ServingError)
        return outcome

    # One timer serves many calls: it is armed anew only when it fires, and looks then
    # which call runs.

    def _arm_timer(self) -> None:
        when_s = self._head_begun_s + self._head_limit_s()
        self._timer = self._loop.call_at(when_s, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        if not self._calls:
            return
        limit_s = self._head_limit_s()
        if self._loop.clock.now() < self._head_begun_s + limit_s:
            self._arm_timer()
        else:
            self._on_unusable(f"was ended because a call took over {limit_s:.1f} s")

    def _head_limit_s(self) -> float:
        head = self._calls[0]
        return head.model.times.limit_s(
            head.signature_index, head.task.num_rows, self._call_timeout_s
        )
