"""Joins the tensors of a batch, has them computed, and splits the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batching.batch import Batch, FaultyTasks
from tfs.core.call import TRACING
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidItems,
    ServingError,
    serving_error,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Servable,
    TaskForm,
    Tensors,
    Trace,
)
from tfs.core.signature import FREE, Signature
from tfs.core.tensor_view import TensorView, join_elements
from tfs.servables.joining.tensor_join import (
    cut_inner,
    fill_inner,
    is_shared,
    join_rows,
    largest_inner,
    mask_of,
)


class BatchRunner:
    """Computes the batches of one queue with the inner servable. Loop-confined.

    Args:
        name: The signature's key.
        label: The version and the signature, for errors.
        inner: Computes the joined batch; may answer on any thread.
        fillers: By input, the value that pads variable lengths; None means the row's
            first element. Inputs that are not in it have equal shapes.
        inner_sizes: The least sizes that these inputs are padded to.

    """

    def __init__(
        self,
        name: str,
        label: str,
        signature: Signature,
        inner: Servable,
        loop: ServingLoop,
        fillers: Mapping[str, bytes | None],
        inner_sizes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.name = name
        self.label = label
        self._signature = signature
        self._inner = inner
        self.loop = loop
        self._fillers = fillers
        self._inner_sizes = inner_sizes
        self.cuts = {
            name: spec.length_of
            for name, spec in signature.outputs.items()
            if spec.length_of in fillers
        }

    def run(self, batch: Batch[InferenceTask]) -> None:
        """Starts computing ``batch``, which ends on the loop. Does not block."""
        tasks = batch.tasks
        form = _common_form(tasks)
        inputs = self.inputs_of(batch, form)
        end = _BatchEnd(self, batch, form)
        trace = None if TRACING.tracer is None else _trace_of(batch)
        outcome = None
        if trace is None:  # a task carries its trace
            outcome = self._inner.compute_now(
                self.name, lambda: inputs, batch.padded_rows, 1
            )
        if outcome is not None:
            for task in tasks:
                task.cancel.begun_s = batch.started_s
            end.end(outcome)
            return
        if len(tasks) == 1:
            first = tasks[0]
            joined = InferenceTask(
                self.name,
                first.signature,
                inputs,
                end.on_done,
                batch.padded_rows,
                first.output_filter,
                first.deadline_s,
                first.cancel,
            )
        else:
            joined = _JoinedTask(self, batch, form, inputs, end)
        joined.trace = trace
        self._inner.submit(joined)

    def inputs_of(self, batch: Batch[InferenceTask], form: TaskForm | None) -> Tensors:
        """Returns the inputs of all tasks of a batch, joined and padded."""
        tasks = batch.tasks
        if self._inner_sizes:
            return self._join(tasks, batch.padded_rows)
        if len(tasks) == 1 and batch.padded_rows == batch.num_rows:
            return tasks[0].inputs
        if form is not None:
            elements = [task.elements for task in tasks]
            return join_elements(form.inputs, elements, batch.padded_rows)
        return self._join(tasks, batch.padded_rows)

    def end_dead(
        self, batch: Batch[InferenceTask], dead: Sequence[InferenceTask]
    ) -> None:
        """Ends tasks that were left out of a batch when it began. On any thread."""
        self.loop.post(lambda: batch.queue.end_dead(dead))

    def _join(self, tasks: Sequence[InferenceTask], num_rows: int) -> Tensors:
        joined: dict[str, TensorView] = {}
        masks: dict[str, TensorView] = {}
        signature = self._signature
        for name, view in tasks[0].inputs.items():
            if is_shared(signature, name, view):
                joined[name] = view
                continue
            views = [task.inputs[name] for task in tasks]
            if name in self._fillers:
                views = self._fill(name, views, masks)
            joined[name] = join_rows(views, num_rows)
        for name, mask in masks.items():
            # A default mask would not show what was padded here.
            if name not in joined or joined[name] is signature.defaults.get(name):
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


class _JoinedTask(InferenceTask):
    """The tasks of a batch on their way to the model.

    When the model begins, tasks for which nobody waits any more are left out: a batch
    may have waited behind another for longer than its callers did.
    """

    __slots__ = ("_batch", "_form", "_runner")

    def __init__(
        self,
        runner: BatchRunner,
        batch: Batch[InferenceTask],
        form: TaskForm | None,
        inputs: Tensors,
        end: _BatchEnd,
    ) -> None:
        tasks = batch.tasks
        super().__init__(
            runner.name,
            tasks[0].signature,
            inputs,
            end.on_done,
            batch.padded_rows,
            _union(tasks),
            _latest_deadline_s(tasks),
        )
        self._runner = runner
        self._batch = batch
        self._form = form

    def begin(self, now_s: float, who: str) -> ServingError | None:
        batch = self._batch
        alive, dead = [], []
        for task in batch.tasks:
            deadline_s = task.deadline_s
            if task.cancel.error is not None or (
                deadline_s is not None and deadline_s <= now_s
            ):
                dead.append(task)
            else:
                alive.append(task)
                task.cancel.begun_s = now_s
        if self.trace is not None:
            self.trace.compute(who, now_s)
        if not dead:
            return None
        if not alive:  # the batch ends with all of them
            first = dead[0]
            return first.cancel.error or first.begin(now_s, who)
        batch.keep(alive)
        self._runner.end_dead(batch, dead)
        try:
            self.inputs = self._runner.inputs_of(batch, self._form)
        except Exception as error:  # there may be no memory to join them in
            return serving_error(error, who)
        self.num_rows = batch.padded_rows
        return None


class _BatchEnd:
    __slots__ = ("_batch", "_form", "_runner")

    def __init__(
        self, runner: BatchRunner, batch: Batch[InferenceTask], form: TaskForm | None
    ) -> None:
        self._runner = runner
        self._batch = batch
        self._form = form

    def on_done(self, outcome: Outcome) -> None:
        """Runs on any thread; the batch ends on the loop."""
        if self._runner.loop.is_loop_thread:
            self.end(outcome)
        else:
            self._runner.loop.post(lambda: self.end(outcome))

    def end(self, outcome: Outcome) -> None:
        """Ends the batch. On the loop."""
        batch, label = self._batch, self._runner.label
        if isinstance(outcome, ServingError):
            batch.done(self._attributed(outcome))
            return
        error = misfit(label, outcome, batch.padded_rows, _union(batch.tasks))
        if error is not None:
            batch.done(error)
            return
        tasks = batch.tasks
        cuts = self._runner.cuts
        if len(tasks) == 1 and batch.padded_rows == batch.num_rows and not cuts:
            batch.done([outcome])
            return
        form = self._form
        if form is not None and not cuts:
            batch.done(lambda tasks: form.end_all(tasks, outcome))
            return
        parts: list[Outcome] = []
        start = 0
        for task in tasks:
            stop = start + task.num_rows
            wanted = task.output_filter
            if wanted and not outcome.keys() >= set(wanted):
                # Others asked for all outputs, whichever these are.
                parts.append(_missing(label, outcome, wanted))
            else:
                names = wanted or outcome
                part = {name: outcome[name].rows(start, stop) for name in names}
                for name in cuts.keys() & part.keys():
                    part[name] = _cut_to_length(part[name], task, name, cuts[name])
                parts.append(part)
            start = stop
        batch.done(parts)

    def _attributed(self, error: ServingError) -> ServingError:
        """Returns the error; if it names the rows at fault, as one error per task."""
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


def _cut_to_length(
    view: TensorView, task: InferenceTask, name: str, length_of: str | None
) -> TensorView:
    """Returns an output with the free inner sizes of one of its request's inputs."""
    given = task.inputs.get(length_of or "")
    if given is None:
        return view
    inputs, outputs = task.signature.inputs, task.signature.outputs
    lengths = iter(_free(given.shape, inputs[length_of or ""].shape))
    inner = tuple(
        min(next(lengths, size), size) if wanted == FREE else size
        for size, wanted in zip(view.shape[1:], outputs[name].shape[1:], strict=True)
    )
    return cut_inner(view, inner)


def _free(shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    return [
        size for size, each in zip(shape[1:], wanted[1:], strict=True) if each == FREE
    ]


def _trace_of(batch: Batch[InferenceTask]) -> Trace | None:
    """Begins the spans of a batch, if one of its requests is traced."""
    traces = [task.trace for task in batch.tasks if task.trace is not None]
    if not traces:
        return None
    return traces[0].join(traces[1:], batch.num_rows, batch.started_s)


def misfit(
    label: str, outputs: Tensors, num_rows: int, wanted: Sequence[str] = ()
) -> ServingError | None:
    """Returns what is wrong with the outputs of a batch; None if nothing is."""
    if not outputs.keys() >= set(wanted):
        return _missing(label, outputs, wanted)
    for name, view in outputs.items():
        if not view.shape:
            return FailedPrecondition(
                f"{label}: Batched output tensor has 0 dimensions: {name!r}"
            )
        if view.shape[0] != num_rows:
            return FailedPrecondition(
                f"{label}: Batched output tensor's 0th dimension does not equal the "
                f"sum of the 0th dimension sizes of the input tensors: {name!r} has "
                f"{view.shape[0]} rows, the batch {num_rows}"
            )
    return None


def _missing(label: str, outputs: Tensors, wanted: Sequence[str]) -> Internal:
    name = next(name for name in wanted if name not in outputs)
    return Internal(f"{label}: output {name!r} is missing")


def _common_form(tasks: Sequence[InferenceTask]) -> TaskForm | None:
    """Returns the form that all tasks share; None if they have different ones."""
    form = tasks[0].form
    if form is not None:
        for task in tasks:
            if task.form is not form:
                return None
    return form


def _union(tasks: Sequence[InferenceTask]) -> tuple[str, ...]:
    """Returns the names of outputs that at least one task wants; empty means all."""
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
