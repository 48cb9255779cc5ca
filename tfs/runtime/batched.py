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
cannot deadlock however few threads there are. It uses ``tfs.core.batch_queue``, as the
server's scheduler does.

Decode loops join and leave at each iteration (continuous batching). Inside ``with
step.session():`` a batch waits, for up to ``timeout_s``, until every session has
reached the part again, so that loops stay in step instead of overtaking each other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tfs.core.batch_queue import BatchQueue
from tfs.core.batch_queue_options import BatchQueueOptions
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError
from tfs.core.request_scope import CURRENT
from tfs.core.servable import CancelToken
from tfs.runtime.batched_values import (
    appended,
    check_rows,
    cut,
    describe,
    joined,
    rows_of,
)

_PENDING: Final = object()
_MAX_SHAPES = 64


class _Call:
    """One call that waits or is computed; a task of the queue."""

    __slots__ = (
        "args",
        "arrived_s",
        "cancel",
        "deadline_s",
        "kwargs",
        "num_rows",
        "outcome",
    )

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], num_rows: int
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self.num_rows = num_rows
        self.deadline_s = CURRENT.deadline_s
        self.cancel = CURRENT.cancel or CancelToken()
        self.outcome: Any = _PENDING
        self.arrived_s = 0.0  # the queue's to write

    def on_done(self, outcome: Any) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class _Raised:
    """Wraps what the part raised, because an error may also be a result."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class PartStats:
    """What a batched part has done so far.

    Attributes:
        num_calls: Calls computed.
        num_batches: Batches computed, those run again included.

    """

    num_calls: int
    num_batches: int


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
    ) -> None:
        self._function = function
        self._options = options
        self._clock = clock or MonotonicClock()
        # Guards all below; leaf: the function is never called under it. Notified when
        # a call came, a batch ended, or a session began or ended.
        self._changed = threading.Condition()
        self._queues: dict[Hashable, BatchQueue[_Call]] = {}
        self._leading = False
        self._num_sessions = 0
        self._num_calls = 0
        self._num_batches = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the call together with others; blocks until its result is there.

        A call with more rows than a batch may have is computed in several batches, in
        order.

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
        call = _Call(args, kwargs, num_rows)
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
        """Lets a part be an attribute of a module that is saved; its state is not saved."""
        return BatchedPart, (self._function, self._options)

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
        """What was computed so far."""
        with self._changed:
            return PartStats(self._num_calls, self._num_batches)

    def _queue_for(self, key: Hashable) -> BatchQueue[_Call]:
        queue = self._queues.get(key)
        if queue is None:
            if len(self._queues) >= _MAX_SHAPES:
                self._queues = {k: q for k, q in self._queues.items() if len(q)}
            queue = self._queues[key] = BatchQueue(self._options)
        return queue

    def _lead_locked(self) -> None:
        """Computes one batch for whoever waits, once one is due."""
        self._leading = True
        try:
            batch = self._take_locked()
            if batch:
                self._changed.release()
                try:
                    num_runs = self._compute(batch, 4 * len(batch).bit_length())
                finally:
                    self._changed.acquire()
                self._num_calls += len(batch)
                self._num_batches += num_runs
        finally:
            self._leading = False
            self._changed.notify_all()

    def _take_locked(self) -> list[_Call]:
        """Waits until a batch is due; returns it, or none if all that waited left."""
        while True:
            now_s = self._clock.now()
            waiting = [queue for queue in self._queues.values() if len(queue)]
            if not waiting:
                return []
            queue = min(waiting, key=lambda queue: queue.oldest_s)
            num_waiting = sum(map(len, waiting))
            everybody = 0 < self._num_sessions <= num_waiting
            due_s = min(queue.due_s, queue.next_deadline_s)
            if everybody or due_s <= now_s:
                return queue.take(now_s)[0]
            self._clock.wait(self._changed, due_s)

    def _compute(self, batch: Sequence[_Call], runs_left: int) -> int:
        """Computes a batch, in halves if that fails; returns the number of runs."""
        try:
            results = self._run(batch)
        except BaseException as error:  # its callers must not wait for ever
            hopeless = not isinstance(error, Exception)
            if hopeless or len(batch) == 1 or runs_left < 2:
                for call in batch:
                    call.outcome = _Raised(error)
                return 1
            half = len(batch) // 2
            runs = self._compute(batch[:half], runs_left - 2)
            return 1 + runs + self._compute(batch[half:], runs_left - 1 - runs)
        for call, result in zip(batch, results, strict=True):
            call.outcome = result
        return 1

    def _run(self, batch: Sequence[_Call]) -> list[Any]:
        if len(batch) == 1 and not self._options.allowed_rows:
            return [self._function(*batch[0].args, **batch[0].kwargs)]
        num_rows = sum(call.num_rows for call in batch)
        missing = self._options.next_allowed(num_rows) - num_rows
        first = batch[0]
        args = [
            joined([call.args[index] for call in batch], missing)
            for index in range(len(first.args))
        ]
        kwargs = {
            name: joined([call.kwargs[name] for call in batch], missing)
            for name in first.kwargs
        }
        result = self._function(*args, **kwargs)
        check_rows(result, num_rows + missing)
        parts = []
        start = 0
        for call in batch:
            parts.append(rows_of(result, start, start + call.num_rows))
            start += call.num_rows
        return parts


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
        timeout_s: Longest that a call waits for others; 0: it does not wait. Inside
            sessions, a batch goes as soon as all sessions wait.
        allowed_batch_sizes: Sizes that batches are padded to, ascending, the last one
            ``max_batch_size``; empty: any.
        max_waiting_rows: Calls beyond this many waiting rows fail with UNAVAILABLE;
            None: ten batches.
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
