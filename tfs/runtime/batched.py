"""Batches a part of a model across requests that run at the same time.

For authors of Python models: the rest of a request's code (tokenizing, searching,
loops) runs by itself on a thread of its own, and only the wrapped part is computed for
several requests at once.

    from tfs.runtime.batched import batched

    class Servable:
        def load(self, version):
            self.net = build(version.weights)
            self.step = batched(self.net, max_batch_size=16)

        def predict(self, text):
            x = tokenize(text)                  # on its own
            return self.step(x)                 # together with others

There is no thread behind it: one of the waiting callers computes for all of them, so it
cannot deadlock however few threads there are. It uses ``tfs.core.batch.batch_queue``, as the
server's scheduler does.

Decode loops join and leave at each iteration (continuous batching). Inside ``with
step.session():`` a batch waits, for up to ``timeout_s``, until every session has
reached the part again, so that loops stay in step instead of overtaking each other.

A part may also be taken layer by layer (``tfs.runtime.layered``): calls that come while a
batch is computed join it between two layers, if that is predicted to pay.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.batch.batch_task import CURRENT
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken
from tfs.runtime.guest.layered.batched_values import (
    appended,
    check_rows,
    cut,
    describe,
)
from tfs.runtime.guest.layered.rules import FluidLookAhead
from tfs.runtime.guest.layered.stages import (
    Stage,
    StagedCall,
    Stages,
    shared_out,
)

_MAX_SHAPES = 64
_PENDING: Final = object()
"""The outcome of a call that is not computed yet."""

_RULE: Final = FluidLookAhead()


@dataclass(frozen=True, slots=True)
class PartStats:
    """What a batched part has done so far.

    Attributes:
        num_calls: How many calls were computed.
        num_batches: How many batches were computed, including those that were run
            again.
        num_joined: How many of these calls joined a running batch.

    """

    num_calls: int
    num_batches: int
    num_joined: int = 0


@dataclass(frozen=True, slots=True)
class _Raised:
    """Wraps what the part raised, because an error may also be a result."""

    error: BaseException


class PartCall(StagedCall):
    """One call that waits or is computed; a task of the queue."""

    cancel: CancelToken

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], num_rows: int
    ) -> None:
        cancel = CURRENT.cancel or CancelToken()
        # The queue writes when it came.
        super().__init__(args, kwargs, num_rows, 0.0, CURRENT.deadline_s, cancel)
        self.outcome: Any = _PENDING

    def on_done(self, outcome: Any) -> None:
        self.outcome = outcome

    def fail(self, error: BaseException) -> None:
        self.outcome = _Raised(error)


class BatchedPart:
    """A function or module that computes concurrent calls together. Thread-safe.

    Tensors are joined along dimension 0, which every result has to have too. Calls are
    computed together only if all their other arguments are equal. A result may be a
    tensor, or a tuple, list or dict of tensors.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: BatchQueueOptions,
        clock: Clock | None = None,
        layers: Sequence[Stage] = (),
    ) -> None:
        self._function = function
        self._options = options
        self._clock = clock or MonotonicClock()
        self._layers = tuple(layers)
        self._stages = Stages[PartCall](
            self._layers or (function,),
            options.max_batch_rows,
            self._clock,
            _share,
            options.next_allowed,
        )
        # Guards all fields below; leaf: the function is never called under it. Notified
        # when a call came, a batch ended, or a session began or ended.
        self._changed = threading.Condition()
        self._queues: dict[Hashable, BatchQueue[PartCall]] = {}
        self._leading = False
        self._num_sessions = 0
        self._num_calls = 0
        self._num_batches = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the call together with others; blocks until its result is there.

        A call with more rows than a batch may have is computed in several batches, in
        order. One that has no rows, or arguments that cannot be compared with those of
        others, is computed by itself.

        Raises:
            ServingError: The call was not admitted, or its request was cancelled or
                expired before it was computed.
            Exception: What the function raised for this call alone.

        """
        num_rows, key = describe(args, kwargs)
        most = self._options.max_batch_rows
        if num_rows > most:
            parts = [
                self(
                    *(cut(each, start, start + most) for each in args),
                    **{k: cut(each, start, start + most) for k, each in kwargs.items()},
                )
                for start in range(0, num_rows, most)
            ]
            return appended(parts)
        if key is None:
            return self._alone(args, kwargs)
        call = PartCall(args, kwargs, num_rows)
        with self._changed:
            self._queue_for(key).put(call, self._clock.now())
            self._changed.notify_all()
            while call.outcome is _PENDING:
                if self._leading:
                    self._clock.wait(self._changed)
                else:
                    self._lead_locked()
        outcome = call.outcome
        if isinstance(outcome, _Raised):
            raise outcome.error
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def __reduce__(self) -> tuple[object, ...]:
        """Lets a part be an attribute of a saved module; its state is not saved."""
        return BatchedPart, (self._function, self._options, None, self._layers)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Marks a loop around the part: batches wait for all loops, up to the timeout.

        The loop may end at any iteration, by returning or by an error.
        """
        with self._changed:
            self._num_sessions += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_sessions -= 1
                self._changed.notify_all()

    @property
    def stats(self) -> PartStats:
        """The counts so far."""
        with self._changed:
            num_joined = self._stages.num_joined
            return PartStats(self._num_calls, self._num_batches, num_joined)

    def measure(self, *args: Any, budget_s: float = 1.0, **kwargs: Any) -> None:
        """Measures the layers of a layered part, so that calls may join from the first on.

        For ``load``, when nobody calls yet; without it they are measured while they serve.
        Does nothing for a part without layers.

        Args:
            args: The arguments of one call; its first row stands for all.
            budget_s: How long it may take, apart from the sizes 1 and 2.
            kwargs: As ``args``.

        """
        if self._layers:
            self._stages.measure(args, kwargs, budget_s)

    def _alone(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Computes a call that no other can join, once nobody else computes."""
        with self._changed:
            while self._leading:
                self._clock.wait(self._changed)
            self._leading = True
        try:
            return self._function(*args, **kwargs)
        finally:
            with self._changed:
                self._leading = False
                self._num_calls += 1
                self._num_batches += 1
                self._changed.notify_all()

    def _queue_for(self, key: Hashable) -> BatchQueue[PartCall]:
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _MAX_SHAPES:
                self._queues = {k: q for k, q in self._queues.items() if len(q)}
            queue = self._queues[key] = BatchQueue(self._options)
        return queue

    def _lead_locked(self) -> None:
        """Computes one batch for the waiting callers, once one is due."""
        self._leading = True
        try:
            batch, queue = self._take_locked()
            if batch and queue is not None:
                self._changed.release()
                try:
                    num_runs = self._compute(batch, queue)
                finally:
                    self._changed.acquire()
                self._num_calls += len(batch)
                self._num_batches += num_runs
        finally:
            self._leading = False
            self._changed.notify_all()

    def _take_locked(self) -> tuple[list[PartCall], BatchQueue[PartCall] | None]:
        """Waits until a batch is due; returns it and its queue.

        The batch is empty if all that waited left.
        """
        while True:
            now_s = self._clock.now()
            waiting = [queue for queue in self._queues.values() if len(queue)]
            if not waiting:
                return [], None
            num_waiting = sum(map(len, waiting))
            everybody = 0 < self._num_sessions <= num_waiting
            # A full queue does not wait for the window of another, which is older.
            due = [queue for queue in waiting if _due_s(queue) <= now_s]
            if everybody or due:
                queue = min(due or waiting, key=lambda queue: queue.oldest_s)
                return queue.take(now_s)[0], queue
            self._clock.wait(self._changed, min(map(_due_s, waiting)))

    def _compute(self, batch: list[PartCall], queue: BatchQueue[PartCall]) -> int:
        """Computes a batch, and the calls that join it; returns the number of runs.

        Calls that join are added to the batch.
        """

        def take(rows_to_join: Callable[..., int]) -> list[PartCall]:
            if not queue.tasks:  # without the lock: a call that comes now joins later
                return []
            with self._changed:
                rows = rows_to_join(queue.tasks) if queue.tasks else 0
                joining = queue.take(self._clock.now(), rows)[0] if rows else []
            batch.extend(joining)
            return joining

        return self._stages.serve(batch, _RULE, take)


def _share(value: Any, batch: Sequence[PartCall]) -> None:
    """Gives each call of a batch its rows; the result of a lone one may be anything."""
    results = [value]
    if len(batch) > 1:
        check_rows(value, sum(call.num_rows for call in batch))
        results = shared_out(value, batch)
    for call, result in zip(batch, results, strict=True):
        call.outcome = result


def _due_s(queue: BatchQueue[PartCall]) -> float:
    """Returns when a batch of a queue has to go, or one of its calls expires."""
    return min(queue.due_s, queue.next_deadline_s)


def batched(
    function: Callable[..., Any],
    *,
    max_batch_size: int,
    timeout_s: float = 0.0,
    allowed_batch_sizes: Sequence[int] = (),
    max_waiting_rows: int | None = None,
    clock: Clock | None = None,
) -> BatchedPart:
    """Returns ``function``, computed for concurrent calls together.

    Args:
        function: A function or module of tensors whose dimension 0 is the batch and
            whose rows do not depend on each other.
        max_batch_size: Most rows at once.
        timeout_s: Longest that a call waits for others; with 0 it does not wait. Inside
            sessions, a batch goes as soon as all sessions wait.
        allowed_batch_sizes: Sizes that batches are padded to, ascending, the last one
            ``max_batch_size``; empty allows any size.
        max_waiting_rows: Calls beyond this many waiting rows fail with UNAVAILABLE;
            None means ten batches.
        clock: Measures time; tests pass their own.

    Raises:
        InvalidArgument: The sizes do not fit together.

    """
    options = BatchQueueOptions(
        name=getattr(function, "__name__", type(function).__name__),
        max_batch_rows=max_batch_size,
        max_rows=max_waiting_rows,
        timeout_s=timeout_s,
        allowed_rows=tuple(allowed_batch_sizes),
        low=None,
    )
    return BatchedPart(function, options, clock)
