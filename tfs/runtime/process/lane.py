"""What all lanes of calls have in common: a queue in front of a worker."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.core.errors import FailedPrecondition, Internal, ServingError
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.slab_call import CorruptReply, SlowReply
from tfs.runtime.process.worker_call import WorkerCall
from tfs.runtime.task_outcome import finish, queue_full

log = logging.getLogger(__name__)


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

    """

    loop: ServingLoop
    max_queued: int
    call_timeout_s: float
    on_unusable: Callable[[str], None]
    on_hanging: Callable[[], None] = lambda: None
    executor: Executor = field(default_factory=InlineExecutor)


class Lane(ABC):
    """Queues tasks, and answers those that cannot run. Loop-confined.

    How calls are handed to the worker and its replies are read is up to the subclass.
    Other threads may read ``num_queued``, ``num_pending`` and ``stats``.
    """

    def __init__(self, terms: LaneTerms) -> None:
        self._loop = terms.loop
        self._now: Final = terms.loop.clock.now
        self._max_queued = terms.max_queued
        self._call_timeout_s = terms.call_timeout_s
        self._on_unusable = terms.on_unusable
        self._on_hanging = terms.on_hanging
        self._executor = terms.executor
        # With the time since when it waits.
        self._queue: deque[tuple[ProcessModel, InferenceTask, float]] = deque()
        self._timer: Timer | None = None  # checks whether a call hangs
        self._when_idle: list[Callable[[], None]] = []
        self._num_shown = -1  # calls that had ended when stacks were last asked for
        self._num_calls = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._busy_s = 0.0

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Calls that the worker has."""

    @abstractmethod
    def _pump(self) -> None:
        """Hands waiting tasks to the worker for as long as it takes them."""

    @abstractmethod
    def _calls_of(self, model: ProcessModel | None) -> bool:
        """Whether the worker has a call (of ``model``, if given)."""

    @property
    def num_queued(self) -> int:
        """Tasks that wait."""
        return len(self._queue)

    @property
    def num_pending(self) -> int:
        """Tasks that wait or run."""
        return len(self._queue) + self.num_running

    def stats(self) -> InterpreterStats:
        """Returns the counters of calls."""
        return InterpreterStats(
            num_queued=len(self._queue),
            num_calls=self._num_calls,
            num_dropped=self._num_dropped,
            num_failed=self._num_failed,
            busy_s=self._busy_s,
        )

    def add(self, model: ProcessModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once."""
        refused = model.refusal()
        if refused is not None:
            finish(task, refused)
        elif len(self._queue) >= self._max_queued:
            finish(task, queue_full(model.source.id, self._max_queued))
        elif task.signature_name not in model.signature_indexes:
            text = f"{model.who} has no signature {task.signature_name!r}"
            finish(task, FailedPrecondition(text))
        else:
            self._queue.append((model, task, self._now()))
            self._pump()

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
            if self._calls_of(model):
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

    def _next(self, now_s: float) -> tuple[ProcessModel, InferenceTask] | None:
        """Takes a waiting task; None if it should not run any more and was answered.

        It looks at only one task, because a caller that is answered may add tasks and
        have them handed over.
        """
        model, task, _ = self._queue.popleft()
        refused = task.begin(now_s, model.who) or model.refusal()
        if refused is None:
            return model, task
        self._num_dropped += 1
        finish(task, refused)
        return None

    def _put_back(self, calls: Iterable[WorkerCall]) -> None:
        """Puts calls that the worker had not begun back into the queue, in their order."""
        self._queue.extendleft(
            (call.model, call.task, 0.0) for call in reversed([*calls])
        )

    def _finish(self, task: InferenceTask, outcome: Outcome) -> None:
        """Delivers the outcome of a call; has it read on another thread first if that is slow."""
        if type(outcome) is not SlowReply:
            finish(task, outcome)
            return
        read = partial(_read_and_finish, task, outcome)
        try:
            self._executor.submit(read)
        except RuntimeError:  # the server is ending
            read()

    def _count(self, outcome: Outcome, call_s: float) -> None:
        self._num_calls += 1
        self._busy_s += call_s
        self._num_failed += isinstance(outcome, ServingError)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
