"""Joins concurrent requests for a servable into batches.

The one place where batching meets tensors. A queue holds what can be concatenated:
one version, one signature, one set of inputs, one shape of a row. Whatever cannot be
batched goes to the servable underneath as it came: unbatched signatures, rows that
depend on their neighbours, requests without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from batching.batch import Batch, FaultyTasks
from batching.batching_options import BatchingOptions, recommended_options
from batching.cost_table import CostTable
from batching.shared_queue import SharedQueue
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch_queue_options import BatchQueueOptions
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidItems,
    ServingError,
    Unavailable,
    serving_error,
)
from tfs.core.model_profile import ModelProfile, SignatureProfile
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Servable,
    TaskForm,
    Tensors,
    submit_all,
)
from tfs.core.servable_id import ServableId
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.stats import Stats
from tfs.core.tensor_view import LARGE_BYTES, Buffer, TensorView, concatenate
from tfs.servables.batching_report import BatchingStats, QueueReport, report_queue
from tfs.servables.tensor_join import (
    element,
    fill_inner,
    join_rows,
    largest_inner,
    mask_of,
    with_joining,
)

_MAX_SHAPES = 64
"""Queues per signature; a client that invents shapes gets no more of them."""

_MAX_SHARED_BYTES = 1024
"""Inputs that are not rows are compared byte by byte; larger ones are not joined."""


class Loop(Protocol):
    """The thread the scheduler belongs to; :class:`tfs.core.serving_loop.ServingLoop`."""

    @property
    def is_loop_thread(self) -> bool:
        """Whether the caller runs on it."""
        ...

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on it, followed by a step of the scheduler."""
        ...


class BatchedServable:
    """A servable that computes requests together. Thread-safe; a ``Servable``.

    Args:
        inner: Computes the batches; keeps the promises of a servable.
        scheduler: Of the device that ``inner`` runs on, confined to ``loop``.
        loop: The thread that steps the scheduler.
        options: How to batch; None: as recommended by the measurements, per
            signature.
        profile: What was measured of this version; None: nothing.
        stats: Where to publish counts; None: nowhere.
        max_in_flight: Most batches of a queue handed to ``inner`` at a time, where the
            options do not say; None: as many as the scheduler's device takes.

    Attributes:
        unbatched: Why a signature is not batched, by key; for the version's status.
        reserves: What to know of a signature that is batched, by key: that only equal
            lengths are joined, that nothing showed its rows to be independent.

    """

    def __init__(
        self,
        inner: Servable,
        scheduler: SharedBatchScheduler,
        loop: Loop,
        options: BatchingOptions | None = None,
        profile: ModelProfile | None = None,
        stats: Stats | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        self._inner = inner
        self._loop = loop
        measured = profile.signatures if profile is not None else {}
        batches_unproven = options is not None and options.batches_unproven
        unbatched: dict[str, str] = {}
        self._plans: dict[str, _Plan] = {}
        for name, signature in inner.signatures.items():
            found = measured.get(name, SignatureProfile())
            why = _why_not(signature, found, batches_unproven)
            if why:
                unbatched[name] = why
            else:
                self._plans[name] = _Plan(
                    name,
                    signature,
                    inner,
                    scheduler,
                    loop,
                    _bounded(
                        options
                        or recommended_options(
                            CostTable(with_joining(found.call_s_by_rows, signature))
                        ),
                        max_in_flight,
                    ),
                    found,
                    takes_any_size=options is None,
                )
        self.unbatched: Mapping[str, str] = unbatched
        self.reserves: Mapping[str, str] = {
            name: reserve
            for name in self._plans
            if (reserve := _reserve(measured.get(name, SignatureProfile())))
        }
        self._stats = stats
        self._numbers = BatchingStats(
            inner.id, {name: plan.counted for name, plan in self._plans.items()}
        )
        if stats is not None:
            stats.add_source(self._numbers)

    @property
    def id(self) -> ServableId:
        """The version."""
        return self._inner.id

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._inner.signatures

    def submit(self, task: InferenceTask) -> None:
        """Queues the task, or hands it on if it cannot be batched."""
        plan = self._plans.get(task.signature_name)
        if plan is None:
            self._inner.submit(task)
        elif self._loop.is_loop_thread:
            plan.submit(task)
        else:
            self._loop.post(lambda: plan.submit(task))

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Queues tasks of one form at once. On the loop."""
        plan = self._plans.get(tasks[0].signature_name)
        if plan is None:
            submit_all(self._inner, tasks)
        else:
            plan.submit_all(tasks)

    @property
    def queue_options(self) -> Mapping[str, BatchQueueOptions]:
        """What each queue of a signature is made with, by signature."""
        return {name: plan.queue_options for name, plan in self._plans.items()}

    def queues(self) -> Sequence[SharedQueue[InferenceTask]]:
        """Returns the queues there are now; their stats may be read anywhere."""
        return [queue for plan in self._plans.values() for queue in plan.queues()]

    def report(self) -> Sequence[QueueReport]:
        """Returns the numbers of the queues there are now. Thread-safe."""
        return [each for plan in self._plans.values() for each in plan.report()]

    def close(
        self,
        on_drained: Callable[[], None] | None = None,
        heir: BatchedServable | None = None,
    ) -> None:
        """Answers what comes from now on UNAVAILABLE and computes what waits.

        ``on_drained`` runs on the loop when nothing of this is left there. Returns at
        once; idempotent but for the callback. Its numbers are published no more;
        ``heir``, which answers for the version from now on, counts on from them.
        """
        heirs = {} if heir is None else heir._plans
        if self._stats is not None:
            self._stats.remove_source(self._numbers)

        def drain() -> None:
            plans = list(self._plans.values())
            left = [len(plans)]

            def one_less() -> None:
                left[0] -= 1
                if not left[0] and on_drained is not None:
                    on_drained()

            if not plans and on_drained is not None:
                on_drained()
            for name, plan in self._plans.items():
                plan.close(one_less, heirs.get(name))

        if self._loop.is_loop_thread:
            drain()
        else:
            self._loop.post(drain)

    def __repr__(self) -> str:
        return f"<BatchedServable {self.id.slashed}>"


def _why_not(
    signature: Signature, measured: SignatureProfile, batches_unproven: bool
) -> str:
    """Returns why a signature must not be batched; empty if it may."""
    if not signature.batched:
        return "the signature says batched: false"
    if measured.rows_independent is False:
        why = measured.why_dependent or "they changed with their neighbours"
        return f"its rows depend on each other: {why}"
    if measured.rows_independent is None and not batches_unproven:
        why = measured.why_dependent
        return "its rows were not shown to be independent" + (why and f": {why}")
    return ""


def _reserve(measured: SignatureProfile) -> str:
    """Returns what to know of a signature although it is batched; mostly nothing."""
    if measured.rows_independent is None:
        return (
            "as its own parameters ask; nothing showed its rows to be independent, for "
            "nothing is measured"
        )
    if measured.why_padding:
        return f"only equal lengths are joined: padded, {measured.why_padding}"
    return ""


def _bounded(options: BatchingOptions, max_in_flight: int | None) -> BatchingOptions:
    """Returns options whose queues keep to the bounds on batches in flight."""
    if options.policy.max_in_flight is not None:
        return options
    bounds = [n for n in (options.num_batch_threads, max_in_flight) if n is not None]
    if not bounds:
        return options
    return replace(options, policy=replace(options.policy, max_in_flight=min(bounds)))


class _Plan:
    """How one signature is batched: which requests go together. Loop-confined."""

    def __init__(
        self,
        name: str,
        signature: Signature,
        inner: Servable,
        scheduler: SharedBatchScheduler,
        loop: Loop,
        options: BatchingOptions,
        measured: SignatureProfile,
        *,
        takes_any_size: bool,
    ) -> None:
        # Where nobody set a limit there is none: TensorFlow Serving takes requests of
        # any size unless batching was configured.
        self._max_task_rows = options.queue.task_rows_limit if takes_any_size else None
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
        self._closed = False
        self._groups: dict[object, SharedQueue[InferenceTask]] = {}
        self._input_names: dict[object, tuple[str, ...]] = {}
        # For their numbers alone: of the form before this, until a queue takes them
        # over, and of shapes that are asked for no more.
        self._inherited: dict[object, SharedQueue[InferenceTask]] = {}
        self._dropped: SharedQueue[InferenceTask] | None = None
        masks = {spec.mask for spec in signature.inputs.values() if spec.mask}
        self._fillers: dict[str, bytes | None] = {}
        for key, spec in signature.inputs.items():
            if not _has_free_inner(spec):
                continue
            if measured.why_padding and (spec.pad is not None or key in masks):
                continue  # then only equal lengths are joined
            if spec.pad is not None:
                self._fillers[key] = element(spec.dtype, spec.pad)
            elif key in masks:
                self._fillers[key] = element(spec.dtype, 0)
            elif self._options.pads_variable_length:
                self._fillers[key] = None
        # With sizes given by the signature all requests fit together, and looking at
        # their shapes again would only cost time.
        self._names = signature.inputs.keys()
        self._is_uniform = not signature.defaults and not any(
            map(_has_free_inner, signature.inputs.values())
        )

    def submit(self, task: InferenceTask) -> None:
        if self._closed:
            task.on_done(Unavailable(f"{self._label}: the version is being unloaded"))
            return
        rows = task.num_rows
        if rows < 1 or not task.inputs or self._most_rows < rows <= self._max_lone_rows:
            self._inner.submit(task)
            return
        limit = self._max_task_rows
        if limit is not None and task.num_rows > limit:
            portion = max(self._options.queue.max_batch_rows, limit // 4)
            _InPortions(task, portion, self._split, self.submit, self._loop).go_on()
            return
        key: object = None
        if not self._is_uniform or task.inputs.keys() != self._names:
            key = self._key(task)
            if key is False:
                self._inner.submit(task)
                return
        queue = self._groups.get(key)
        if queue is None:
            try:
                queue = self._add_group(key, task)
            except Exception as error:  # nobody else would answer the task
                task.on_done(serving_error(error, f"{self._label}: batch queue"))
                return
            if queue is None:
                self._inner.submit(task)
                return
        self._scheduler.submit(queue, task, task.is_low)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        # What is true of one is true of all.
        first = tasks[0]
        queue = None
        if (
            not self._closed
            and first.form is not None
            and 1 <= first.num_rows <= self._most_rows  # larger ones go their own ways
        ):
            if self._is_uniform:
                queue = self._groups.get(None)
            elif first.inputs:
                queue = self._groups.get(self._key(first))
        if queue is None:
            for task in tasks:  # the first of them makes the queue, if there may be one
                self.submit(task)
        else:
            self._scheduler.submit_all(queue, tasks)

    @property
    def queue_options(self) -> BatchQueueOptions:
        return self._options.queue

    def queues(self) -> list[SharedQueue[InferenceTask]]:
        return list(self._groups.values())

    def counted(self) -> list[SharedQueue[InferenceTask]]:
        """Returns all whose numbers count, also queues that are no more."""
        queues = [*self._groups.values(), *list(self._inherited.values())]
        if self._dropped is not None:
            queues.append(self._dropped)
        return queues

    def report(self) -> list[QueueReport]:
        return [
            report_queue(self._name, self._input_names.get(key, ()), queue)
            for key, queue in [*self._groups.items(), *list(self._inherited.items())]
        ]

    def close(self, on_drained: Callable[[], None], heir: _Plan | None) -> None:
        self._closed = True
        groups = self._groups if heir is None else {**self._inherited, **self._groups}
        self._groups = {}
        left = [len(groups)]

        def one_less(key: object, queue: SharedQueue[InferenceTask]) -> None:
            if heir is not None:
                heir.inherit(key, self._input_names.get(key, ()), queue)
            left[0] -= 1
            if not left[0]:
                on_drained()

        if heir is not None and self._dropped is not None:
            heir.drop(self._dropped)
        if not groups:
            on_drained()
        for key, queue in groups.items():
            self._scheduler.remove_queue(queue, partial(one_less, key, queue))

    def inherit(
        self, key: object, names: tuple[str, ...], queue: SharedQueue[InferenceTask]
    ) -> None:
        """Counts on from a queue of the form before this, which has drained."""
        mine = self._groups.get(key) or self._inherited.get(key)
        if mine is not None:
            mine.take_over(queue)
        elif len(self._inherited) < _MAX_SHAPES:
            self._inherited[key] = queue
            self._input_names[key] = names
        else:
            self.drop(queue)

    def drop(self, queue: SharedQueue[InferenceTask]) -> None:
        """Keeps the numbers of a queue that is no more."""
        if self._dropped is None:
            self._dropped = queue
        else:
            self._dropped.take_over(queue)

    def _key(self, task: InferenceTask) -> object:
        """Returns what must be equal for requests to be joined; False: nothing is."""
        key: list[object] = []
        defaults = self._signature.defaults
        for name, view in task.inputs.items():
            if name not in self._names:
                return False
            if name in defaults:
                if view.size_bytes > _MAX_SHARED_BYTES:
                    return False
                data = view.data if isinstance(view.data, tuple) else bytes(view.data)
                key.append((name, view.shape, data))
            elif not view.shape or view.shape[0] != task.num_rows:
                return False
            elif name in self._fillers:
                key.append((name, self._buckets(name, view.shape)))
            else:
                key.append((name, view.shape[1:]))
        return frozenset(key)

    def _buckets(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the inner sizes, those that are padded rounded up to their bucket."""
        spec = self._signature.inputs[name]
        buckets = self._options.length_buckets
        return tuple(
            size if wanted != FREE else next((b for b in buckets if b >= size), 0)
            for size, wanted in zip(shape[1:], spec.shape[1:], strict=True)
        )

    def _add_group(
        self, key: object, task: InferenceTask
    ) -> SharedQueue[InferenceTask] | None:
        if len(self._groups) >= _MAX_SHAPES and not self._drop_idle():
            return None
        inner_sizes = {
            name: self._buckets(name, view.shape)
            for name, view in task.inputs.items()
            if name in self._fillers
        }
        runner = _BatchRunner(
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
            join=_join_parts,
        )
        self._input_names[key] = tuple(task.inputs)
        before = self._inherited.pop(key, None)
        if before is not None:
            queue.take_over(before)
        self._groups[key] = queue
        return queue

    def _drop_idle(self) -> bool:
        """Removes the queues of shapes that nobody asks for now."""
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
        shared = self._signature.defaults
        inputs = {
            name: view if name in shared else view.rows(start, stop)
            for name, view in task.inputs.items()
        }
        return InferenceTask(
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


class _InPortions:
    """A request larger than a queue holds, submitted portion by portion.

    One at a time, so that others get their turns between them and the queue never
    fills. The request ends with its last portion, or with the first that fails.
    Loop-confined, except that portions end on any thread.
    """

    def __init__(
        self,
        task: InferenceTask,
        num_rows: int,
        split: Callable[
            [InferenceTask, int, int, Callable[[Outcome], None]], InferenceTask
        ],
        submit: Callable[[InferenceTask], None],
        loop: Loop,
    ) -> None:
        self._task = task
        self._num_rows = num_rows
        self._split = split
        self._submit = submit
        self._loop = loop
        self._start = 0
        self._outcomes: list[Tensors] = []

    def go_on(self) -> None:
        """Submits the next portion."""
        task = self._task
        try:
            stop = min(self._start + self._num_rows, task.num_rows)
            portion = self._split(task, self._start, stop, self._done)
        except Exception as error:
            task.on_done(serving_error(error, "splitting a request failed"))
            return
        self._submit(portion)

    def _done(self, outcome: Outcome) -> None:
        task = self._task
        if isinstance(outcome, ServingError):
            if isinstance(outcome, InvalidItems):
                outcome = outcome.after(self._start)
            task.on_done(outcome)
            return
        self._outcomes.append(outcome)
        self._start += self._num_rows
        if self._start < task.num_rows:
            self._loop.post(self.go_on)
            return
        try:
            outcome = _join_parts(task, self._outcomes)
        except Exception as error:
            task.on_done(serving_error(error, "joining the portions failed"))
            return
        task.on_done(outcome)


def _join_parts(task: InferenceTask, outcomes: Sequence[Tensors]) -> Tensors:
    return {
        name: concatenate([outcome[name] for outcome in outcomes])
        for name in outcomes[0]
    }


def _has_free_inner(spec: TensorSpec) -> bool:
    return FREE in spec.shape[1:]


class _BatchRunner:
    """Computes the batches of one queue with the inner servable. Loop-confined."""

    def __init__(
        self,
        label: str,
        signature: Signature,
        inner: Servable,
        loop: Loop,
        fillers: Mapping[str, bytes | None],
        inner_sizes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._label = label
        self._signature = signature
        self._inner = inner
        self._loop = loop
        self._fillers = fillers
        self._inner_sizes = inner_sizes

    def run(self, batch: Batch[InferenceTask]) -> None:
        tasks = batch.tasks
        first = tasks[0]
        alone = len(tasks) == 1
        form = _common_form(tasks)
        if alone and batch.padded_rows == batch.num_rows and not self._inner_sizes:
            inputs = first.inputs
        elif form is not None and not self._inner_sizes:
            inputs = _join_elements(form, tasks, batch.padded_rows)
        else:
            inputs = self._join(tasks, batch.padded_rows)
        joined = InferenceTask(
            first.signature_name,
            first.signature,
            inputs,
            _BatchEnd(batch, form, self._label, self._loop).on_done,
            batch.padded_rows,
            first.output_filter if alone else _union(tasks),
            first.deadline_s if alone else _latest_deadline_s(tasks),
            # A batch is not interrupted for one of several; alone it may be.
            first.cancel if alone else None,
        )
        self._inner.submit(joined)

    def _join(self, tasks: Sequence[InferenceTask], num_rows: int) -> Tensors:
        joined: dict[str, TensorView] = {}
        masks: dict[str, TensorView] = {}
        shared = self._signature.defaults
        for name, view in tasks[0].inputs.items():
            if name in shared:
                joined[name] = view
                continue
            views = [task.inputs[name] for task in tasks]
            if name in self._fillers:
                views = self._fill(name, views, masks)
            joined[name] = join_rows(views, num_rows)
        for name, mask in masks.items():
            if name not in joined:
                joined[name] = join_rows([mask], num_rows)
        return joined

    def _fill(
        self, name: str, views: list[TensorView], masks: dict[str, TensorView]
    ) -> list[TensorView]:
        """Returns the views of one input with equal inner sizes."""
        largest = largest_inner(views)
        inner = tuple(map(max, largest, self._inner_sizes[name]))
        filler = self._fillers[name]
        filled = [fill_inner(view, inner, filler) for view in views]
        mask = self._signature.inputs[name].mask
        if mask is not None and any(view.shape[1:] != inner for view in views):
            spec = self._signature.inputs[mask]
            masks[mask] = mask_of(views, inner, spec.dtype, len(spec.shape))
        return filled


class _BatchEnd:
    """Takes the outcome of a batch apart. Made per batch."""

    __slots__ = ("_batch", "_form", "_label", "_loop")

    def __init__(
        self,
        batch: Batch[InferenceTask],
        form: TaskForm | None,
        label: str,
        loop: Loop,
    ) -> None:
        self._batch = batch
        self._form = form
        self._label = label
        self._loop = loop

    def on_done(self, outcome: Outcome) -> None:
        """Runs on any thread; the batch ends on the loop."""
        if self._loop.is_loop_thread:
            self._end(outcome)
        else:
            self._loop.post(lambda: self._end(outcome))

    def _end(self, outcome: Outcome) -> None:
        batch = self._batch
        if isinstance(outcome, ServingError):
            batch.done(self._attributed(outcome))
            return
        error = self._misfit(outcome)
        if error is not None:
            batch.done(error)
            return
        tasks = batch.tasks
        if len(tasks) == 1 and batch.padded_rows == batch.num_rows:
            batch.done([outcome])
            return
        form = self._form
        if form is not None:
            batch.done(lambda tasks: form.end_all(tasks, outcome))
            return
        parts: list[Tensors] = []
        start = 0
        for task in tasks:
            stop = start + task.num_rows
            names = task.output_filter or outcome
            parts.append({name: outcome[name].rows(start, stop) for name in names})
            start = stop
        batch.done(parts)

    def _attributed(self, error: ServingError) -> ServingError:
        """Returns the error, told apart by task if it names the rows at fault."""
        if not isinstance(error, InvalidItems):
            return error
        errors: dict[int, ServingError] = {}
        start = 0
        for index, task in enumerate(self._batch.tasks):
            own = error.within(start, start + task.num_rows)
            if own is not None:
                errors[index] = own
            start += task.num_rows
        return FaultyTasks(errors) if errors else error

    def _misfit(self, outputs: Tensors) -> ServingError | None:
        num_rows = self._batch.padded_rows
        for name in _union(self._batch.tasks):
            if name not in outputs:
                return Internal(f"{self._label}: output {name!r} is missing")
        for name, view in outputs.items():
            if not view.shape:
                return FailedPrecondition(
                    f"{self._label}: Batched output tensor has 0 dimensions: {name!r}"
                )
            if view.shape[0] != num_rows:
                return FailedPrecondition(
                    f"{self._label}: Batched output tensor's 0th dimension does not "
                    "equal the sum of the 0th dimension sizes of the input tensors: "
                    f"{name!r} has {view.shape[0]} rows, the batch {num_rows}"
                )
        return None


def _common_form(tasks: Sequence[InferenceTask]) -> TaskForm | None:
    """Returns the form that all tasks have, None if they have different ones."""
    form = tasks[0].form
    if form is not None:
        for task in tasks:
            if task.form is not form:
                return None
    return form


def _join_elements(
    form: TaskForm, tasks: Sequence[InferenceTask], num_rows: int
) -> Tensors:
    """Returns the inputs of tasks of one form, joined; copies their elements once.

    The first row is repeated until there are ``num_rows``. Many elements are given
    away, as :func:`~tfs.core.tensor_view.concatenate` does.
    """
    joined: dict[str, TensorView] = {}
    for index, (name, dtype, shape) in enumerate(form.inputs):
        parts = [task.elements[index] for task in tasks]
        row_bytes = len(parts[0]) // shape[0]
        missing = num_rows - len(tasks) * shape[0]
        if missing:
            parts += [parts[0][:row_bytes]] * missing
        data: Buffer
        if row_bytes * num_rows < LARGE_BYTES:
            data = b"".join(parts)
        else:
            data = memoryview(bytearray().join(parts))
        joined[name] = TensorView(dtype, (num_rows, *shape[1:]), data)
    return joined


def _union(tasks: Sequence[InferenceTask]) -> tuple[str, ...]:
    """Returns the outputs that any of the tasks wants; empty means all."""
    names: dict[str, None] = {}
    for task in tasks:
        if not task.output_filter:
            return ()
        names.update(dict.fromkeys(task.output_filter))
    return tuple(names)


def _latest_deadline_s(tasks: Sequence[InferenceTask]) -> float | None:
    latest_s = 0.0
    for task in tasks:
        deadline_s = task.deadline_s
        if deadline_s is None:
            return None
        if deadline_s > latest_s:
            latest_s = deadline_s
    return latest_s
