"""The queues of one signature of a batched servable.

A queue holds requests that can be concatenated: those of one version, one signature,
one set of inputs and one shape of a row. Requests that fit no queue are handed to the
servable underneath unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from batching.batching_options import BatchingOptions
from batching.cost_table import CostTable
from batching.length_window import LengthWindow
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.errors import ServingError, Unavailable, serving_error
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import SignatureProfile, row_limit
from tfs.servables.joining.batch_runner import BatchRunner
from tfs.servables.joining.batching_loop import BatchingLoop
from tfs.servables.joining.batching_report import (
    ANY_LENGTH,
    BypassCount,
    QueueReport,
    report_queue,
    traits_of,
)
from tfs.servables.joining.large_request import LargeRequest, portion_rows
from tfs.servables.joining.part_outputs import PartOutputs
from tfs.servables.joining.tensor_join import element, is_shared

_MAX_SHAPES = 64
"""Most queues of a signature, whatever number of shapes a client invents."""

_UNMEASURED_ROWS = 32

_MAX_SHARED_BYTES = 1024
"""Largest input, in bytes, that is no rows and with which requests are joined. Such
inputs are compared byte by byte."""


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

    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        inner: Servable,
        scheduler: SharedBatchScheduler,
        loop: BatchingLoop,
        options: BatchingOptions,
        measured: SignatureProfile,
        *,
        takes_any_size: bool,
    ) -> None:
        # If no limit was configured there is none, as TensorFlow Serving takes requests
        # of any size unless batching is configured.
        self._max_task_rows = options.queue.task_rows_limit if takes_any_size else None
        self._bypass = BypassCount()
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
        self._groups: dict[object, BatchQueue[InferenceTask]] = {}
        self._input_names: dict[object, tuple[str, ...]] = {}
        # Kept for their numbers only: queues of the servable's earlier form, until a
        # queue takes them over, and queues of shapes that are no longer requested.
        self._inherited: dict[object, BatchQueue[InferenceTask]] = {}
        self._dropped: BatchQueue[InferenceTask] | None = None
        self._fillers = _fillers_of(signature, measured, options.pads_variable_length)
        self._padded = frozenset(
            name
            for name, spec in signature.outputs.items()
            if self._fillers and _has_free_inner(spec)
        )
        # If the signature fixes all sizes, all requests fit together, and looking at
        # their shapes again would only cost time.
        self._names = signature.inputs.keys()
        self._is_uniform = not signature.defaults and not any(
            map(_has_free_inner, signature.inputs.values())
        )
        self._alone: BatchRunner | None = None
        if self._is_uniform:
            self._alone = BatchRunner(name, self._label, signature, inner, loop, {}, {})

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
            self._bypass.note(rows)
            self._begin_large(task, portion, self._submit_portion)
            return
        limit = self._max_task_rows
        if limit is not None and task.num_rows > limit:
            portion = max(self._most_rows, limit // 4)
            self._begin_large(task, portion, self._queue_portion)
            return
        key: object = None
        if not self._is_uniform or task.inputs.keys() != self._names:
            key = self._key(task)
            if key is False:
                self._submit_past(task)
                return
        queue = self._groups.get(key)
        if queue is None:
            try:
                queue = self._add_group(key, task)
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
            if self._is_uniform:
                queue = self._groups.get(None)
            elif first.inputs:
                queue = self._groups.get(self._key(first))
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
        alone = self._alone
        queue = self._groups.get(None)
        if alone is None or queue is None or not 1 <= num_rows <= self._most_rows:
            return None
        begun_s = self._scheduler.begin_now(queue, num_rows)
        if begun_s is None:
            return None
        outcome = alone.compute_now(make_inputs, num_rows)
        if outcome is None:
            return None
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

    def queues(self) -> list[BatchQueue[InferenceTask]]:
        """Returns the present queues."""
        return list(self._groups.values())

    def counted(self) -> list[BatchQueue[InferenceTask]]:
        """Returns all queues whose numbers count, including those that are gone."""
        queues = [*self._groups.values(), *list(self._inherited.values())]
        if self._dropped is not None:
            queues.append(self._dropped)
        return queues

    def bypass(self) -> BypassCount:
        """Returns how many requests bypassed the queues so far. Thread-safe."""
        return self._bypass

    def report(self) -> list[QueueReport]:
        """Returns the numbers of the queues, and of earlier ones. Thread-safe."""
        return [
            report_queue(
                self._name,
                self._input_names.get(key, ()),
                traits_of(key, self._signature),
                queue,
            )
            for key, queue in [*self._groups.items(), *list(self._inherited.items())]
        ]

    def close(
        self, on_drained: Callable[[], None], heir: SignatureQueues | None
    ) -> None:
        """Refuses what comes from now on; see :meth:`.BatchedServable.close`."""
        self._closed = True
        groups = self._groups if heir is None else {**self._inherited, **self._groups}
        self._groups = {}
        left = [len(groups) + bool(self._num_beside)]

        def ended() -> None:
            left[0] -= 1
            if not left[0]:
                on_drained()

        def one_less(key: object, queue: BatchQueue[InferenceTask]) -> None:
            if heir is not None:
                heir.inherit(key, self._input_names.get(key, ()), queue)
            ended()

        self._on_none_beside = ended
        if heir is not None:
            heir._bypass.add(self._bypass)
            self._bypass = heir._bypass  # for the portions that are yet to come
            if self._dropped is not None:
                heir.drop(self._dropped)
        if not left[0]:
            on_drained()
        for key, queue in groups.items():
            self._scheduler.remove_queue(queue, partial(one_less, key, queue))

    def inherit(
        self, key: object, names: tuple[str, ...], queue: BatchQueue[InferenceTask]
    ) -> None:
        """Continues the counts of a drained queue of an earlier form of this servable."""
        mine = self._groups.get(key) or self._inherited.get(key)
        if mine is not None:
            mine.take_over(queue)
        elif len(self._inherited) < _MAX_SHAPES:
            self._inherited[key] = queue
            self._input_names[key] = names
        else:
            self.drop(queue)

    def drop(self, queue: BatchQueue[InferenceTask]) -> None:
        """Keeps the numbers of a queue that is gone."""
        if self._dropped is None:
            self._dropped = queue
        else:
            self._dropped.take_over(queue)

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
        """Returns what takes the outputs of a request that is computed in parts."""
        return PartOutputs(task.output_filter, padded=self._padded)

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
        self._bypass.note(task.num_rows)
        self._submit_portion(task)

    def _submit_portion(self, task: InferenceTask) -> None:
        self._bypass.num_calls += 1
        self._inner.submit(task)

    def _one_less_beside(self) -> None:
        self._num_beside -= 1
        if not self._num_beside and self._on_none_beside is not None:
            self._on_none_beside()

    def _key(self, task: InferenceTask) -> object:
        """Returns what must be equal for requests to be joined; False if they cannot be."""
        key: list[object] = []
        signature = self._signature
        for name, view in task.inputs.items():
            if name not in self._names:
                return False
            if view is signature.defaults.get(name):
                key.append((name, None))
            elif is_shared(signature, name, view):
                if view.size_bytes > _MAX_SHARED_BYTES:
                    return False
                key.append((name, view.shape, _bytes_of(view)))
            elif not view.shape or view.shape[0] != task.num_rows:
                return False
            elif name in self._fillers:
                key.append((name, self._lengths(name, view.shape)))
            elif name not in signature.defaults:
                key.append((name, view.shape[1:]))
            elif view.size_bytes > _MAX_SHARED_BYTES:
                return False
            else:
                # Nothing has shown that its rows may differ, because examples leave it
                # out.
                key.append((name, view.shape[1:], _row_of(view) or _bytes_of(view)))
        return frozenset(key)

    def _buckets(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the inner sizes, with padded ones rounded up to their bucket."""
        spec = self._signature.inputs[name]
        buckets = self._options.length_buckets
        return tuple(
            size if wanted != FREE else next((b for b in buckets if b >= size), 0)
            for size, wanted in zip(shape[1:], spec.shape[1:], strict=True)
        )

    def _lengths(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns what the inner sizes of requests must have in common to be joined.

        That is their bucket, if there are any. Otherwise requests of all lengths wait
        together, and a batch is made of those that cost least together.
        """
        return tuple(
            bucket or ANY_LENGTH
            for bucket, size in zip(self._buckets(name, shape), shape[1:], strict=True)
        )

    def _lengths_window(self) -> LengthWindow | None:
        """Returns what chooses batches by length; None if they are alike, or in buckets.

        The length of a request is that of its first input that is padded.
        """
        if not self._fillers or self._options.length_buckets:
            return None
        first = next(iter(self._fillers))
        free = [
            axis
            for axis, size in enumerate(self._signature.inputs[first].shape)
            if axis and size == FREE
        ]

        def sizes_of(task: InferenceTask) -> tuple[int, ...]:
            view = task.inputs.get(first)
            return (1,) if view is None else tuple(view.shape[axis] for axis in free)

        return LengthWindow(sizes_of, self._most_rows)

    def _add_group(
        self, key: object, task: InferenceTask
    ) -> BatchQueue[InferenceTask] | None:
        if len(self._groups) >= _MAX_SHAPES and not self._drop_idle():
            return None
        inner_sizes = {
            name: self._buckets(name, view.shape)
            for name, view in task.inputs.items()
            if name in self._fillers
        }
        runner = BatchRunner(
            self._name,
            self._label,
            self._signature,
            self._inner,
            self._loop,
            self._fillers,
            inner_sizes,
        )
        options = self._options
        queue = self._scheduler.add_queue(
            runner,
            replace(options.queue, name=self._label),
            options.policy,
            costs=CostTable(self._call_s),
            split=self._split,
            join=self._part_outputs,
            window=self._lengths_window(),
        )
        self._input_names[key] = tuple(task.inputs)
        before = self._inherited.pop(key, None)
        if before is not None:
            queue.take_over(before)
        self._groups[key] = queue
        return queue

    def _drop_idle(self) -> bool:
        """Removes the queues of shapes of which no request waits or runs."""
        idle = [key for key, queue in self._groups.items() if queue.is_idle]
        for key in idle:
            queue = self._groups.pop(key)
            self._scheduler.remove_queue(queue)
            self.drop(queue)
            del self._input_names[key]
        return bool(idle)

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


def _fillers_of(
    signature: Signature, measured: SignatureProfile, pads_variable_length: bool
) -> dict[str, bytes | None]:
    """Returns, by input, the value that fills up shorter rows; other inputs are not filled.

    None means the row's own first element.
    """
    masks = {spec.mask for spec in signature.inputs.values() if spec.mask}
    fillers: dict[str, bytes | None] = {}
    for name, spec in signature.inputs.items():
        if not _has_free_inner(spec) or (
            name in signature.defaults and name not in masks
        ):
            continue
        if measured.why_padding and (spec.pad is not None or name in masks):
            continue  # then only requests of equal lengths are joined
        if spec.pad is not None:
            fillers[name] = element(spec.dtype, spec.pad)
        elif name in masks:
            fillers[name] = element(spec.dtype, 0)
        elif pads_variable_length:
            fillers[name] = None
    return fillers


def _bytes_of(view: TensorView) -> bytes | tuple[bytes, ...]:
    """Returns the elements of a small tensor, for a comparison."""
    return view.data if isinstance(view.data, tuple) else bytes(view.data)


def _row_of(view: TensorView) -> bytes | tuple[bytes, ...] | None:
    """Returns the elements of one row of a small tensor; None if its rows differ."""
    num_rows = view.shape[0]
    data = _bytes_of(view)
    row = data[: len(data) // num_rows]
    return row if row * num_rows == data else None


def _has_free_inner(spec: TensorSpec) -> bool:
    return FREE in spec.shape[1:]
