"""The queues of one signature of a batched servable.

A queue holds requests that can be concatenated: those of one version, one signature,
one set of inputs and one shape of a row. Requests that fit no queue are handed to the
servable underneath unchanged.

Batches of a small model are small, because beyond some thirty rows joining gains nothing.
To a request of ten thousand rows the overhead of so many batches matters: it took a hundred
times as long as in one call. So it is computed in portions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from batching.batching_options import BatchingOptions
from batching.cost_table import CostTable
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.batch.queue_stats import SignatureCounts
from tfs.core.errors import (
    InvalidItems,
    ServingError,
    Unavailable,
    forget_frames,
    serving_error,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable, Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView, concatenate
from tfs.core.version.model_profile import SignatureProfile, row_limit
from tfs.servables.joining.batch_runner import BatchRunner, misfit
from tfs.servables.joining.tensor_join import JoinKeys, cut_inner, is_shared

CALL_S: Final = 1e-3
"""Seconds that the call of one portion should take, for which others wait for their
turn."""

_MOST_BATCHES: Final = 32  # in a portion, because only small calls were measured


def portion_rows(batch_rows: int, batch_s: float) -> int | None:
    """Returns the rows of a portion where batches take ``batch_s`` seconds.

    Returns None if that is not known, or if portions would be hardly larger than
    batches: then the request is better spread over batches, which others can share.
    """
    if batch_s <= 0 or 2 * batch_s > CALL_S:
        return None
    return int(batch_rows * min(CALL_S / batch_s, _MOST_BATCHES))


class LargeRequest:
    """A request larger than a queue or a batch holds, submitted portion by portion.

    Portions are submitted one at a time, so that others get their turns in between and
    the queue never fills. The request ends with its last portion, or with the first
    that fails. Loop-confined, except that portions end on any thread.

    Args:
        task: The request.
        num_rows: Rows of each portion.
        split: Makes a portion.
        submit: Takes a portion.
        loop: The loop on which the next portion is submitted.
        outputs: Takes the outputs of the portions.
        on_end: Called once, after the request has ended, on any thread.

    """

    def __init__(
        self,
        task: InferenceTask,
        num_rows: int,
        split: Callable[
            [InferenceTask, int, int, Callable[[Outcome], None]], InferenceTask
        ],
        submit: Callable[[InferenceTask], None],
        loop: ServingLoop,
        outputs: PartOutputs,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task
        self._num_rows = num_rows
        self._split = split
        self._submit = submit
        self._loop = loop
        self._on_end = on_end
        self._start = 0
        self._stop = 0
        self._outputs = outputs

    def go_on(self) -> None:
        """Submits the next portion."""
        task = self._task
        error = task.cancel.error
        if error is not None and self._start:
            self._end(error)  # nobody waits for the remaining portions
            return
        try:
            self._stop = min(self._start + self._num_rows, task.num_rows)
            portion = self._split(task, self._start, self._stop, self._done)
        except Exception as failure:
            self._end(serving_error(failure, "splitting a request failed"))
            return
        self._submit(portion)

    def _done(self, outcome: Outcome) -> None:
        if isinstance(outcome, ServingError):
            if isinstance(outcome, InvalidItems):
                outcome = outcome.after(self._start)
            self._end(outcome)
            return
        try:
            self._outputs.add(self._start, outcome)
            self._start = self._stop
            if self._start < self._task.num_rows:
                self._loop.post(self.go_on)
                return
            outcome = self._outputs.whole()
        except Exception as error:
            outcome = serving_error(error, "joining the portions failed")
            forget_frames(outcome)  # they refer to all portions
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        try:
            self._task.on_done(outcome)
        finally:
            self._on_end()


class PartOutputs:
    """Takes the outputs of a request's parts, in any order. Confined to one thread at a time.

    Args:
        wanted: Names of the outputs that the request asked for; empty means all. Parts
            may come with further ones, and not all with the same.
        padded: Names of the outputs whose inner sizes depend on the batch in which a part
            was computed. What some parts answer beyond the others is for padding, and is
            cut off.

    """

    __slots__ = ("_padded", "_parts", "_wanted")

    def __init__(
        self, wanted: Sequence[str] = (), *, padded: Container[str] = ()
    ) -> None:
        self._wanted = tuple(wanted)
        self._padded = padded
        self._parts: dict[int, Tensors] = {}

    def add(self, start: int, outputs: Tensors) -> None:
        """Takes the outputs of the part whose first row is ``start``.

        Raises:
            KeyError: An output is missing that was asked for, or that another part has.

        """
        names = self._wanted = self._wanted or tuple(outputs)
        self._parts[start] = {name: outputs[name] for name in names}

    def whole(self) -> Tensors:
        """Returns the outputs of the request, once all parts were taken.

        Raises:
            ValueError: Outputs do not fit together.

        """
        parts = [self._parts[start] for start in sorted(self._parts)]
        return {name: self._joined(name, parts) for name in self._wanted}

    def _joined(self, name: str, parts: list[Tensors]) -> TensorView:
        views = [part[name] for part in parts]
        inner = [view.shape[1:] for view in views]
        if name in self._padded and len({len(each) for each in inner}) == 1:
            smallest = tuple(map(min, zip(*inner, strict=True)))
            views = [cut_inner(view, smallest) for view in views]
        return concatenate(views)


_UNMEASURED_ROWS = 32


class SignatureQueues:
    """Batches one signature: decides which requests go together. Loop-confined.

    Args:
        name: The signature's key.
        inner: Computes the batches, and single requests that cannot be joined.
        scheduler: Takes the queues, and forms batches of what they hold.
        options: Options of the queues, and how their batches are formed.
        measured: What was measured of the signature: time per batch size, whether
            padding is safe.
        takes_any_size: Whether requests that are larger than a queue are computed in
            portions, and those larger than a batch in larger portions; otherwise they
            are refused.

    Attributes:
        by_key: The present queues, by what their requests have in common.
        counts: What is counted of the requests.
        keys: Tells what that is.

    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        inner: Servable,
        scheduler: SharedBatchScheduler,
        loop: ServingLoop,
        options: BatchingOptions,
        measured: SignatureProfile,
        *,
        takes_any_size: bool,
    ) -> None:
        # If no limit was configured there is none, as TensorFlow Serving takes requests
        # of any size unless batching is configured.
        self._max_task_rows = options.queue.task_rows_limit if takes_any_size else None
        self.by_key: dict[object, BatchQueue[InferenceTask]] = {}
        self.counts = SignatureCounts()
        self.keys = JoinKeys(signature, measured, options)
        self._name = name
        self._signature = signature
        self._inner = inner
        self._scheduler = scheduler
        self._loop = loop
        self._call_s = measured.call_s_by_rows
        self._options = options
        self._label = f"{inner.id.slashed}, signature {name!r}"
        self._most_rows = options.queue.max_batch_rows
        self._max_lone_rows = options.max_lone_rows
        # If no limit was configured, requests larger than a batch bypass the queues,
        # provided that a call may be much larger than a batch.
        self._portion_rows: int | None = None
        if takes_any_size:
            batch_s = CostTable(self._call_s).predict_s(self._most_rows)
            limit = row_limit(signature, measured)
            self._portion_rows = limit or portion_rows(self._most_rows, batch_s)
        self._num_beside = 0  # requests that are under way in such portions
        self._on_none_beside: Callable[[], None] | None = None
        self._closed = False

    def submit(self, task: InferenceTask) -> None:
        """Queues the task if it can be joined, or hands it on; never raises."""
        if self._closed:
            task.on_done(Unavailable(f"{self._label}: the version is being unloaded"))
            return
        rows = task.num_rows
        if rows < 1 or not task.inputs or self._most_rows < rows <= self._max_lone_rows:
            self._submit_past(task)
            return
        portion = self._portion_rows
        if rows > self._most_rows and portion is not None and not task.is_low:
            self.counts.note_past(rows)
            self._begin_large(task, portion, self._submit_portion)
            return
        limit = self._max_task_rows
        if limit is not None and task.num_rows > limit:
            portion = max(self._most_rows, limit // 4)
            self._begin_large(task, portion, self._queue_portion)
            return
        key = self.keys.of(task)
        if key is False:
            self._submit_past(task)
            return
        queue = self.by_key.get(key)
        if queue is None:
            try:
                queue = self._add_queue(key, task)
            except Exception as error:  # otherwise nobody would answer the task
                task.on_done(serving_error(error, f"{self._label}: batch queue"))
                return
            if queue is None:
                self._submit_past(task)
                return
        self._scheduler.submit(queue, task, task.is_low)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Does :meth:`submit` for tasks of one form, looking at the first of them."""
        # What holds for one of them holds for all.
        first = tasks[0]
        queue = None
        if (
            not self._closed
            and first.form is not None
            # Larger ones are handled one by one.
            and 1 <= first.num_rows <= self._most_rows
        ):
            if self.keys.is_uniform:
                queue = self.by_key.get(None)
            elif first.inputs:
                queue = self.by_key.get(self.keys.of(first))
        if queue is None:
            for task in tasks:  # the first of them makes the queue, if one is allowed
                self.submit(task)
        else:
            self._scheduler.submit_all(queue, tasks)

    def compute_now(
        self, make_inputs: MakeInputs, num_rows: int, num_tasks: int
    ) -> Outcome | None:
        """Computes requests as a batch if they need not wait for anything.

        They are counted as the batch that they would have been. Returns None, with
        nothing done, if they have to be queued. That is so for the first request, which
        makes the queue, and for a batch that failed, because the queue finds out whose
        fault it was.
        """
        queue = self.by_key.get(None)
        if queue is None or not 1 <= num_rows <= self._most_rows:
            return None
        begun_s = self._scheduler.begin_now(queue, num_rows)
        if begun_s is None:
            return None
        outcome = self._inner.compute_now(self._name, make_inputs, num_rows, 1)
        if outcome is None:
            return None
        if isinstance(outcome, InvalidItems):
            outcome = outcome.within(0, num_rows) or outcome
        elif not isinstance(outcome, ServingError):
            outcome = misfit(self._label, outcome, num_rows) or outcome
        failed = isinstance(outcome, ServingError)
        if failed and num_tasks > 1:
            return None
        self._scheduler.end_now(queue, num_tasks, num_rows, begun_s, failed=failed)
        return outcome

    @property
    def queue_options(self) -> BatchQueueOptions:
        """The options of each queue."""
        return self._options.queue

    @property
    def in_stages(self) -> bool:
        """Whether requests are to join batches that are computed."""
        return self._options.in_stages

    @property
    def worthwhile_rows(self) -> int:
        """The smallest batch with the best rows per second, as far as that is known."""
        return CostTable(self._call_s).best_batch_rows() or _UNMEASURED_ROWS

    def close(self, on_drained: Callable[[], None]) -> None:
        """Refuses what comes from now on; see :meth:`.BatchedServable.close`."""
        self._closed = True
        queues = list(self.by_key.values())
        self.by_key.clear()
        num_left = len(queues) + bool(self._num_beside)

        def ended() -> None:
            nonlocal num_left
            num_left -= 1
            if not num_left:
                on_drained()

        self._on_none_beside = ended
        if not num_left:
            on_drained()
        for queue in queues:
            self._scheduler.remove_queue(queue, ended)

    def _begin_large(
        self,
        task: InferenceTask,
        num_rows: int,
        submit: Callable[[InferenceTask], None],
    ) -> None:
        """Begins a request that is computed in portions, which ``submit`` takes."""
        self._num_beside += 1
        LargeRequest(
            task,
            num_rows,
            self._split,
            submit,
            self._loop,
            self._part_outputs(task),
            partial(self._loop.post, self._one_less_beside),
        ).go_on()

    def _part_outputs(self, task: InferenceTask) -> PartOutputs:
        return PartOutputs(task.output_filter, padded=self.keys.padded_outputs)

    def _queue_portion(self, task: InferenceTask) -> None:
        """Queues a portion; past the queues once they are closed.

        Its request was accepted before, and the servable stays until it has ended.
        """
        if self._closed:
            self._submit_portion(task)
        else:
            self.submit(task)

    def _submit_past(self, task: InferenceTask) -> None:
        """Hands a task to the servable unchanged, past the queues."""
        self.counts.note_past(task.num_rows)
        self._submit_portion(task)

    def _submit_portion(self, task: InferenceTask) -> None:
        self.counts.num_past_calls += 1
        self._inner.submit(task)

    def _one_less_beside(self) -> None:
        self._num_beside -= 1
        if not self._num_beside and self._on_none_beside is not None:
            self._on_none_beside()

    def _add_queue(
        self, key: object, task: InferenceTask
    ) -> BatchQueue[InferenceTask] | None:
        if len(self.counts.by_key) >= MAX_KEYS and not self._drop_idle():
            return None
        runner = BatchRunner(
            self._name,
            self._label,
            self._signature,
            self._inner,
            self._loop,
            self.keys.fillers,
            self.keys.least_sizes(task),
        )
        options = self._options
        queue = self.by_key[key] = self._scheduler.add_queue(
            runner,
            replace(options.queue, name=self._label),
            options.policy,
            costs=CostTable(self._call_s),
            split=self._split,
            join=self._part_outputs,
            window=self.keys.window(),
            stats=self.counts.stats_of(key),
        )
        return queue

    def _drop_idle(self) -> bool:
        """Drops shapes of which no request waits or runs; returns whether there is room."""
        for key, queue in list(self.by_key.items()):
            if queue.is_idle:
                del self.by_key[key]
                self._scheduler.remove_queue(queue)
        for key in self.counts.by_key.keys() - self.by_key.keys():
            self.counts.drop(key)
        return len(self.by_key) < MAX_KEYS

    def _split(
        self,
        task: InferenceTask,
        start: int,
        stop: int,
        on_done: Callable[[Outcome], None],
    ) -> InferenceTask:
        signature = self._signature
        inputs = {
            name: view if is_shared(signature, name, view) else view.rows(start, stop)
            for name, view in task.inputs.items()
        }
        part = InferenceTask(
            task.signature_name,
            task.signature,
            inputs,
            on_done,
            num_rows=stop - start,
            output_filter=task.output_filter,
            deadline_s=task.deadline_s,
            cancel=task.cancel,
            is_low=task.is_low,
        )
        part.trace = task.trace
        return part


MAX_KEYS = 64
"""Most queues of a signature, whatever number of shapes a client invents."""
