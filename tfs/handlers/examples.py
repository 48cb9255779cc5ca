"""Classify, Regress and MultiInference: tf.Examples in, classes or values out.

All three turn the Examples into the inputs of a signature and run it; MultiInference
runs several signatures of one version over the same Examples. Requests that are not
small are decoded off the serving loop. This takes two steps, because only the signature
says which tensors the Examples become: the request is read, the version is found on the
loop, and then the tensors are made. (TensorFlow Serving:
servables/tensorflow/{classifier,regressor,multi_inference}.cc.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tfs.codec.example import tensors_of_examples
from tfs.codec.example_input import QUICK_EXAMPLE_BYTES
from tfs.codec.tensor import QUICK_VALUES
from tfs.core.call import Call, begin_trace, is_low_priority
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Signature
from tfs.handlers.decode_pool import (
    DecodePool,
    NeedsRoomError,
    Reserve,
    reserve_unasked,
)
from tfs.handlers.example_rpc import (
    ExampleQuestion,
    ExampleRpc,
    FoundTask,
    Write,
    find_tasks,
)
from tfs.handlers.limits.admission import Admission
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.limits.request_stats import RequestStats
from tfs.handlers.model_lookup import ModelLookup, NotResident

T = TypeVar("T")


class ExampleHandler:
    """Answers one of the three RPCs. Confined to the serving loop.

    Args:
        lookup: Finds the version.
        rpc: The RPC: Classify, Regress or MultiInference.
        gate: Limits and counts; by default nothing is limited.
        decode_pool: Where slow messages are decoded, and long answers written; by default
            on the loop.
        check_method: Whether a signature's method must be the one asked for.

    """

    def __init__(
        self,
        lookup: ModelLookup,
        rpc: ExampleRpc,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        check_method: bool = False,
    ) -> None:
        self._lookup = lookup
        self._rpc = rpc
        self._gate = gate or RequestGate()
        self._decode_pool = decode_pool or DecodePool()
        self._check_method = check_method

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        gate, rpc = self._gate, self._rpc
        begin_trace(call, rpc.name)
        if not gate.enter(call, rpc.name):
            return
        begun_s = gate.now()
        self._decode(
            call,
            lambda _: rpc.read(call.message),
            functools.partial(self._find, call, begun_s, rpc.write),
            functools.partial(gate.refuse, method=rpc.name, begun_s=begun_s),
            gate.leave,
        )

    def start(self, call: Call, question: ExampleQuestion, write: Write) -> None:
        """Starts a request that was decoded elsewhere.

        Args:
            call: Finished when the outcome is known.
            question: What is asked.
            write: Makes the reply.

        """
        begin_trace(call, self._rpc.name)
        if self._gate.enter(call, self._rpc.name):
            self._find(call, self._gate.now(), write, question)

    def _decode(
        self,
        call: Call,
        decode: Callable[[Reserve], T],
        done: Callable[[T], None],
        refuse: Callable[[Call, Exception], None],
        put_off: Callable[[], object],
    ) -> None:
        """Decodes on the loop or a thread, then calls ``done`` or ``refuse``.

        If there is no room for the request, it calls ``put_off`` instead.
        """

        def decoded(outcome: T | ServingError) -> None:
            if isinstance(outcome, ServingError):
                refuse(call, outcome)
            else:
                done(outcome)

        try:
            if len(call.message) > QUICK_EXAMPLE_BYTES:
                self._decode_pool.run(call, decode, decoded, put_off)
                return
            try:
                outcome = decode(reserve_unasked)
            except NeedsRoomError:
                self._decode_pool.run(call, decode, decoded, put_off)
                return
        except Exception as error:
            refuse(call, error)
            return
        done(outcome)

    def _find(
        self, call: Call, begun_s: float, write: Write, question: ExampleQuestion
    ) -> None:
        """Pins the version and finds the signatures."""
        gate, rpc = self._gate, self._rpc
        handle: ServableHandle[Servable] | None = None
        stats: RequestStats | None = None
        try:
            spec = question.model_spec
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, None, call
            )
            model = gate.model(handle.id.name)
            tasks = find_tasks(
                handle.servable.signatures,
                question.tasks,
                rpc.missing,
                check_method=self._check_method,
            )
            signature = tasks[0].signature if question.key else None
            stats = model.stats_of(rpc.name, handle.id.version, question.key, signature)
            if stats.answer_bytes and not call.take_room(
                stats.answer_bytes, is_all=True
            ):
                handle.release()
                gate.leave()  # it is handed over again when there is room
                return
            stats.begin()
            model.enter()
        except NotResident as absent:
            absent.then(
                call,
                lambda: self._find(call, begun_s, write, question),
                lambda error: gate.refuse(call, error, rpc.name, begun_s),
            )
            return
        except Exception as error:
            if handle is not None:
                handle.release()
            gate.refuse(call, error, rpc.name, begun_s, stats)
            return
        run = ExampleRun(
            write,
            call,
            question,
            Admission(handle, gate, model, stats, rpc.name, question.key, model.logs),
            tasks,
            begun_s,
            self._decode_pool,
        )
        self._decode(call, run.make_tasks, run.submit, run.refuse, run.put_off)


@dataclass(eq=False)
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

    _write: Write
    _call: Call
    _question: ExampleQuestion
    _admission: Admission
    _tasks: Sequence[FoundTask]
    _begun_s: float
    _decode_pool: DecodePool
    _done_s: float = 0.0

    def __post_init__(self) -> None:
        self._outcomes: list[Outcome | None] = [None] * len(self._tasks)
        # One number for each task, 0 first. The task that pops 0 is the last one, and
        # replies. Popping is atomic under the GIL.
        self._waiting = list(range(len(self._tasks)))

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
