"""A request over tf.Examples whose version is pinned, until it is answered."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tfs.codec.example import tensors_of_examples
from tfs.codec.tensor import QUICK_VALUES
from tfs.core.call import Call, is_low_priority
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.signature import Signature
from tfs.handlers.decode_pool import DecodePool, Reserve
from tfs.handlers.examples.example_rpc import ExampleQuestion, FoundTask, Write
from tfs.handlers.limits.admission import Admission


class ExampleRun:
    """Runs a request's tasks, and replies after the last.

    Owns the pin and the places until it has given them back, once. ``make_tasks`` may
    run on a decode thread; the tasks may end on any thread.

    Args:
        write: Makes the reply.
        call: The request.
        question: What the request asks.
        admission: What the request has taken.
        tasks: What to run.
        begun_s: When the request came, by the gate's clock.
        decode_pool: Where long answers are written.

    """

    def __init__(
        self,
        write: Write,
        call: Call,
        question: ExampleQuestion,
        admission: Admission,
        tasks: Sequence[FoundTask],
        begun_s: float,
        decode_pool: DecodePool,
    ) -> None:
        self._decode_pool = decode_pool
        self._write = write
        self._call = call
        self._question = question
        self._admission = admission
        self._tasks = tasks
        self._begun_s = begun_s
        self._done_s = begun_s
        self._outcomes: list[Outcome | None] = [None] * len(tasks)
        # One number for each task, 0 first. The task that pops 0 is the last one, and
        # replies. Popping is atomic under the GIL.
        self._waiting = list(range(len(tasks)))

    def make_tasks(self, reserve: Reserve) -> list[InferenceTask]:
        """Returns the tasks to submit, one for each signature.

        Raises:
            ServingError: The tensors cannot be made.
            NeedsRoomError: Its call has to be asked for room, and its tensors have to be
                made again.

        """
        tasks = [
            self._task(index, task.model_spec.signature_key, task.signature)
            for index, task in enumerate(self._tasks)
        ]
        reserve(sum(map(_tensor_bytes, tasks)) - len(self._call.message))
        return tasks

    def submit(self, tasks: Sequence[InferenceTask]) -> None:
        """Starts every task."""
        self._admission.model.examples.add(self._question.num_rows)
        for task in tasks:
            self._admission.handle.servable.submit(task)

    def refuse(self, call: Call, error: Exception) -> None:
        """Ends the request before anything was submitted."""
        at = self._admission
        at.model.leave()
        at.handle.release()
        at.gate.refuse(call, error, at.method, self._begun_s, at.stats)

    def put_off(self) -> None:
        """Forgets the request, which is handed over again when there is room for it."""
        self._admission.stats.take_back()
        self._admission.leave()
        self._admission.handle.release()

    def _task(self, index: int, key: str, signature: Signature) -> InferenceTask:
        rows = self._question.rows
        inputs = signature.with_defaults(tensors_of_examples(rows, signature))
        task = InferenceTask(
            key,
            signature,
            inputs,
            functools.partial(self._done, index),
            num_rows=signature.check_inputs(inputs),
            deadline_s=self._call.deadline_s,
            cancel=self._call.cancel,
            is_low=is_low_priority(self._call.metadata),
        )
        if task.cancel.trace is not None:
            task.trace = task.cancel.trace
            task.trace.name(self._admission.handle.id, key)
        return task

    def _done(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if self._waiting.pop() == 0:
            self._end()

    def _end(self) -> None:
        """Ends the request; on another thread, if its answer is long."""
        self._done_s = self._admission.gate.now()
        num_values = sum(
            view.num_elements
            for outcome in self._outcomes
            if not isinstance(outcome, ServingError)
            for view in (outcome or {}).values()
        )
        if num_values > QUICK_VALUES:
            self._decode_pool.write(self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        at, answer = self._admission, self._answer()
        message = self._call.message
        at.finish(
            self._call,
            self._begun_s,
            self._done_s,
            answer,
            lambda reply: (message, reply),
        )

    def _answer(self) -> bytes | ServingError:
        """Returns the reply, or the error of the first task that failed."""
        outputs = []
        for outcome in self._outcomes:
            if isinstance(outcome, ServingError):
                return outcome
            if outcome is not None:
                outputs.append(outcome)
        at = self._admission
        try:
            return self._write(at.handle.id, self._question, self._tasks, outputs)
        except Exception as error:
            return at.failure_of(error)


def _tensor_bytes(task: InferenceTask) -> int:
    """Returns how many bytes a task's inputs take; strings count as references."""
    return sum(
        len(view.data) * (8 if isinstance(view.data, tuple) else 1)
        for view in task.inputs.values()
    )
