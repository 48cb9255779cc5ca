"""A batched servable that sums rows, on a loop that the test steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from batching.batching_options import BatchingOptions, SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.tensors import floats, floats_of
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import (
    InvalidArgument,
    ServingError,
)
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import (
    CancelToken,
    InferenceTask,
    MakeInputs,
    OneByOne,
    Outcome,
    Tensors,
)
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile
from tfs.servables.joining.batched import BatchedServable
from tfs.testing.fake_clock import FakeClock

ID = ServableId("sums", 3)


def signature_of(
    inputs: Mapping[str, TensorSpec] | None = None, **more: Any
) -> Signature:
    return Signature(
        Method.PREDICT,
        inputs or {"x": TensorSpec(FLOAT32, (-1, 2))},
        {
            "sum": TensorSpec(FLOAT32, (-1,)),
            "name": TensorSpec(STRING, (-1,)),
        },
        **more,
    )


class Sums(OneByOne):
    """Sums the float inputs of each row, and names the row by its sum.

    Fails like a model would if any number is negative. Answers at once, or when told.
    """

    def __init__(
        self, signature: Signature | None = None, *, held: bool = False
    ) -> None:
        self.id = ID
        self.signatures = {DEFAULT_SIGNATURE: signature or signature_of()}
        self.held = held
        self.seen: list[InferenceTask] = []
        self.waiting: list[InferenceTask] = []

    def submit(self, task: InferenceTask) -> None:
        if task.cancel.error is not None:
            task.on_done(task.cancel.error)
            return
        self.seen.append(task)
        if self.held:
            self.waiting.append(task)
        else:
            task.on_done(self.compute(task))

    def finish(self) -> None:
        task = self.waiting.pop(0)
        task.on_done(self.compute(task))

    def compute(self, task: InferenceTask) -> Outcome:
        if task.inputs.keys() < self.signatures[DEFAULT_SIGNATURE].inputs.keys():
            return InvalidArgument("an input is missing")
        sums = [0.0] * task.num_rows
        for view in task.inputs.values():
            if view.dtype is not FLOAT32:
                continue
            numbers = floats_of(view)
            if any(number < 0 for number in numbers):
                return InvalidArgument("negative numbers are not summed")
            per_row = len(numbers) // max(1, task.num_rows)
            for row in range(task.num_rows):
                sums[row] += sum(numbers[row * per_row : (row + 1) * per_row])
        outputs = {
            "sum": floats((task.num_rows,), *sums),
            "name": TensorView(
                STRING, (task.num_rows,), tuple(b"%g" % number for number in sums)
            ),
        }
        names = task.output_filter or tuple(outputs)
        return {name: outputs[name] for name in names}


class PromptSums(Sums):
    """The same where it is asked for, unless it is busy."""

    is_busy = False

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        if self.is_busy:
            return None
        assert num_tasks == 1
        signature = self.signatures[signature_name]
        task = InferenceTask(signature_name, signature, make_inputs(), print, num_rows)
        self.seen.append(task)
        return self.compute(task)


UNPROVEN = BatchingOptions(batches_unproven=True)


def options_of(**queue: Any) -> BatchingOptions:
    return BatchingOptions(
        queue=BatchQueueOptions(**{"max_batch_rows": 4, **queue}),
        batches_unproven=True,
    )


class BatchedSums:
    """A batched servable on a loop that the test steps; the room's conftest closes it."""

    made: ClassVar[list[BatchedSums]] = []

    def __init__(
        self,
        inner: Sums | None = None,
        options: BatchingOptions | None = None,
        profile: ModelProfile | None = None,
        **scheduler: Any,
    ) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(**scheduler), self.clock)
        self.loop.add_round_hook(self.scheduler.step, Phase.SCHEDULE)
        self.loop.step()
        self.made.append(self)
        self.inner = inner or Sums()
        self.batched = BatchedServable(
            self.inner, self.scheduler, self.loop, options or options_of(), profile
        )

    def submit(
        self, inputs: Tensors, num_rows: int | None = None, **more: Any
    ) -> tuple[InferenceTask, list[Outcome]]:
        told: list[Outcome] = []
        if num_rows is None:
            num_rows = next(iter(inputs.values())).num_rows
        more.setdefault("cancel", CancelToken())
        task = InferenceTask(
            DEFAULT_SIGNATURE,
            self.batched.signatures[DEFAULT_SIGNATURE],
            inputs,
            told.append,
            num_rows=num_rows,
            **more,
        )
        self.batched.submit(task)
        return task, told

    def step(self) -> None:
        self.loop.step()


def outputs_of(told: list[Outcome]) -> Tensors:
    (outcome,) = told
    assert not isinstance(outcome, ServingError), outcome
    return outcome


def error_of(told: list[Outcome]) -> ServingError:
    (outcome,) = told
    assert isinstance(outcome, ServingError)
    return outcome
