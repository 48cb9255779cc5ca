"""A request over tf.Examples whose version is pinned, until it is answered."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tfs.codec.example import tensors_of_examples
from tfs.codec.tensor import QUICK_VALUES
from tfs.core.call import Call, is_low_priority
from tfs.core.errors import Code, ServingError
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Signature
from tfs.handlers.decode_pool import DecodePool, Reserve
from tfs.handlers.examples.example_question import ExampleQuestion, FoundTask
from tfs.handlers.examples.example_rpc import Write
from tfs.handlers.failures import fail_call
from tfs.handlers.limits.model_gate import ModelGate, log_answered
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.limits.request_stats import RequestStats


class ExampleRun:
    """Runs a request's tasks, and replies after the last.

    Owns the pin and the places until it has given them back, once. ``make_tasks`` may
    run on a decode thread; the tasks may end on any thread.

    Args:
        method: The RPC's name in counters and logs.
        write: Makes the reply.
        gate: The server's gate, which the request has entered.
        call: The request.
        question: What the request asks.
        handle: The pinned version that answers.
        tasks: What to run.
        model: The model's gate, which the request has entered as well.
        stats: Counts how the request ended.
        begun_s: When the request came, by the gate's clock.
        decode_pool: Where long answers are written.

    """

    def __init__(
        self,
        method: str,
        write: Write,
        gate: RequestGate,
        call: Call,
        question: ExampleQuestion,
        handle: ServableHandle[Servable],
        tasks: Sequence[FoundTask],
        model: ModelGate,
        stats: RequestStats,
        begun_s: float,
        decode_pool: DecodePool,
    ) -> None:
        self._decode_pool = decode_pool
        self._method = method
        self._write = write
        self._gate = gate
        self._call = call
        self._question = question
        self._handle = handle
        self._tasks = tasks
        self._model = model
        self._stats = stats
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
        self._model.examples.add(self._question.num_rows)
        for task in tasks:
            self._handle.servable.submit(task)

    def refuse(self, call: Call, error: Exception) -> None:
        """Ends the request before anything was submitted."""
        self._model.leave()
        self._handle.release()
        self._gate.refuse(call, error, self._method, self._begun_s, self._stats)

    def put_off(self) -> None:
        """Forgets the request, which is handed over again when there is room for it."""
        self._stats.take_back()
        self._model.leave()
        self._handle.release()
        self._gate.leave()

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
            task.trace.name(self._handle.id, key)
        return task

    def _done(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if self._waiting.pop() == 0:
            self._end()

    def _end(self) -> None:
        """Ends the request; on another thread, if its answer is long."""
        self._done_s = self._gate.now()
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
        call, method, servable_id = self._call, self._method, self._handle.id
        code = Code.OK
        self._model.leave()
        self._gate.leave()
        try:
            outputs = []
            for outcome in self._outcomes:
                if isinstance(outcome, ServingError):
                    code = outcome.code
                    call.fail(outcome)
                    return
                if outcome is not None:
                    outputs.append(outcome)
            response = self._write(servable_id, self._question, self._tasks, outputs)
            log_answered(
                self._model.logs,
                method,
                servable_id,
                self._question.key,
                lambda: (call.message, response),
            )
            call.reply(response)
        except Exception as error:
            code = fail_call(call, error, f"{servable_id.slashed}: {method}")
        finally:
            cancel = call.cancel
            if cancel.error is not None:
                code = cancel.error.code
            if code is Code.OK:
                self._stats.end_answered(
                    call.opened_s, self._begun_s, cancel.begun_s, self._done_s
                )
            else:
                self._stats.end(code, self._begun_s)
            if cancel.trace is not None:
                cancel.trace.end(code, self._begun_s, self._done_s, self._gate.now())
            self._handle.release()


def _tensor_bytes(task: InferenceTask) -> int:
    """Returns how many bytes a task's inputs take; strings count as references."""
    return sum(
        len(view.data) * (8 if isinstance(view.data, tuple) else 1)
        for view in task.inputs.values()
    )
