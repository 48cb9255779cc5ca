"""The seam between requests and loaded models: tasks, and servables that answer them.

The layers stack: handler -> LoadedVersion -> BatchedServable -> PlacedModel -> interpreter.
Each is a :class:`Servable`, and each works without the one in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tfs.core.dtype import DType
from tfs.core.errors import Code, DeadlineExceeded, ServingError
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView


class TraceContext(NamedTuple):
    """What W3C's ``traceparent`` names: a span of a trace."""

    trace_id: int
    span_id: int


class Trace(Protocol):
    """Spans of one request, or of a batch of several. Thread-safe; quick; never raises."""

    @property
    def context(self) -> TraceContext:
        """The innermost span that has begun."""
        ...

    def join(self, others: Sequence[Trace], num_rows: int, begun_s: float) -> Trace:
        """Begins the span of a batch that computes this request and the others."""
        ...

    def compute(self, who: str, now_s: float) -> None:
        """Begins the span of the interpreter; the first call counts."""
        ...

    def end(self, code: Code, begun_s: float, done_s: float, now_s: float) -> None:
        """Ends all its spans; the first call counts.

        Args:
            code: How the request or the batch ended.
            begun_s: When the handler began, monotonic.
            done_s: When the outputs were there.
            now_s: When the answer was handed over.

        """
        ...

    def name(self, servable_id: ServableId, signature: str) -> None:
        """Notes which version answers, and by which signature."""
        ...


Tensors: TypeAlias = Mapping[str, TensorView]
Outcome: TypeAlias = Tensors | ServingError
"""How a task ends: the named outputs, or why there are none."""

MakeInputs: TypeAlias = Callable[[], Tensors]
"""Makes the inputs of a call. Not called where there turns out to be no call."""


class CancelToken:
    """A mark that nobody waits for the result any more. Thread-safe.

    Attributes:
        error: None while somebody waits; afterwards the reason why nobody does
            (CANCELLED or DEADLINE_EXCEEDED). Set once, read anywhere.
        begun_s: When a model began to compute the result, monotonic; None before.
        trace: The spans of the request; None if it is not traced.
        on_cancel: Called with that reason when the task is marked, on the marking
            thread; for a holder that must pass the mark on. Set it first, then look at
            ``error``. It must be quick and must not raise.

    """

    __slots__ = ("begun_s", "error", "on_cancel", "trace")

    def __init__(self) -> None:
        self.error: ServingError | None = None
        self.begun_s: float | None = None
        self.trace: Trace | None = None
        self.on_cancel: Callable[[ServingError], None] | None = None

    def cancel(self, error: ServingError) -> None:
        """Marks the task; the first reason stays."""
        if self.error is None:
            self.error = error
            if self.on_cancel is not None:
                self.on_cancel(error)


class TaskForm(Protocol):
    """What tasks have in common that differ only in the elements of their inputs.

    Tasks of one form can be computed together by joining their ``elements``, without
    looking at the inputs of each one, and ended by one call. Forms are compared by
    identity. Implementors promise:

    1. every task of the form has these ``inputs``, in the order of its ``elements``;
       none of them is a string, and all have been checked;
    2. ``end_all`` does what each task's ``on_done`` would do with its own rows;
    3. a task whose ``on_done`` is replaced no longer has a form.
    """

    @property
    def inputs(self) -> Sequence[tuple[str, DType, tuple[int, ...]]]:
        """Name, dtype and shape of each."""
        ...

    def end_all(self, tasks: Sequence[InferenceTask], outputs: Tensors) -> None:
        """Ends tasks of this form, each once, on the serving loop; does not raise.

        Args:
            tasks: All tasks that were computed together, or some of them.
            outputs: The outputs of these tasks, in order; only padding may follow.

        """
        ...


class InferenceTask:
    """One request for one signature of one version. Owned by whoever holds it last.

    Attributes:
        signature_name: The key the caller asked for, or the default key.
        signature: That signature; ``inputs`` were checked against it.
        inputs: Named tensors; dimension 0 is the batch unless the signature says
            ``batched: false``. Their buffers stay valid until ``on_done`` has run.
            Buffers that are writable memoryviews are given away: the model may use them
            as its own.
        output_filter: Names of the outputs wanted, in the caller's order; empty
            means all. A servable may return more than these.
        num_rows: Size of dimension 0 of the inputs, 1 if there is none.
        deadline_s: Monotonic; None for none.
        cancel: Marked when nobody waits any more. A marked task leaves its queue
            before any compute; a batch that already runs is not interrupted.
        on_done: Takes the outcome; see :class:`Servable`.
        is_low: Whether the task has low priority in batch queues and on shared devices.
        arrived_s: Set by the batch queue it waits in.
        form: What it has in common with similar tasks; None if nothing is known.
        trace: The spans under which it is computed; None if it is not traced.
        elements: If it has a form, what is its own: the elements of each input.

    """

    arrived_s: float

    __slots__ = (
        "arrived_s",
        "cancel",
        "deadline_s",
        "elements",
        "form",
        "inputs",
        "is_low",
        "num_rows",
        "on_done",
        "output_filter",
        "signature",
        "signature_name",
        "trace",
    )

    def __init__(
        self,
        signature_name: str,
        signature: Signature,
        inputs: Tensors,
        on_done: Callable[[Outcome], None],
        # Arguments are positional where a task is made per request, because keywords
        # take twice as long.
        num_rows: int = 1,
        output_filter: tuple[str, ...] = (),
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
        is_low: bool = False,
    ) -> None:
        self.signature_name = signature_name
        self.signature = signature
        self.inputs = inputs
        self.on_done = on_done
        self.num_rows = num_rows
        self.output_filter = output_filter
        self.deadline_s = deadline_s
        self.cancel = CancelToken() if cancel is None else cancel
        self.is_low = is_low
        self.form: TaskForm | None = None
        self.trace: Trace | None = None
        self.elements: tuple[Buffer, ...] = ()

    def begin(self, now_s: float, who: str) -> ServingError | None:
        """Says that computing begins; returns why there is nothing to compute, if so.

        Whoever runs a task calls it last, on any thread, however long the task waited.

        Args:
            now_s: The time, by the clock of ``deadline_s``.
            who: Names the version in the error.

        """
        error = self.cancel.error
        if error is None and self.deadline_s is not None and now_s >= self.deadline_s:
            error = DeadlineExceeded(
                f"{who}: the deadline passed before the model could run"
            )
        self.cancel.begun_s = now_s
        if self.trace is not None:
            self.trace.compute(who, now_s)
        return error


class Servable(Protocol):
    """A loaded model version that answers tasks. Thread-safe.

    Implementors promise:

    1. ``submit`` never blocks and never raises, whatever is wrong with the task or
       the model: failure is an outcome;
    2. ``on_done`` runs exactly once, on any thread, possibly before ``submit``
       returns, and only when nothing computes for the task any more, so that a pin
       released in it outlives every use of the model;
    3. a task whose ``cancel`` is marked before it is computed is answered with that
       error and costs no compute;
    4. every output has the signature's dtype and rank, and for a batched signature
       as many rows as the task, in the task's order;
    5. input buffers are neither written to nor kept after ``on_done``, except those
       given away (see :class:`~tfs.core.tensor_view.TensorView`), which outputs may
       even lie in.

    ``on_done`` itself must be quick and must not raise. A servable that implements only
    ``submit`` derives from :class:`OneByOne`.
    """

    @property
    def id(self) -> ServableId:
        """The version."""
        ...

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key; the default key is ``serving_default``. Never changes."""
        ...

    def submit(self, task: InferenceTask) -> None:
        """Starts the task; the outcome comes through ``task.on_done``."""
        ...

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Does as ``submit`` for each in turn; all have the same form and priority.

        Called on the serving loop.
        """
        ...

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes requests at once. Called on the serving loop; does not raise.

        Returns None, with nothing done, if that is not possible or would keep other
        requests waiting, and also if computing failed and it is not known for which
        request. The caller then submits them one by one.

        Args:
            signature_name: Key of a signature that the servable has.
            make_inputs: Returns the checked inputs of all requests together; called if
                needed.
            num_rows: The rows of all requests together.
            num_tasks: The number of requests. Somebody still waits for each, and none
                has passed its deadline. A servable that does not know whether they may
                be joined takes one at most.

        """
        ...


class OneByOne:
    """Implements the other methods for a servable that has only ``submit``."""

    __slots__ = ()

    def submit(self, task: InferenceTask) -> None:
        """See :class:`Servable`."""
        raise NotImplementedError

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Submits each."""
        for task in tasks:
            self.submit(task)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Returns None: the caller submits them."""
        return None
