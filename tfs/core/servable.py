"""What a request and a loaded model say to each other.

The layers stack: handler -> BatchedServable -> platform servable -> interpreter.
Each is a :class:`Servable`, and each works without the one in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from tfs.core.dtype import DType
from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView

Tensors: TypeAlias = Mapping[str, TensorView]
Outcome: TypeAlias = Tensors | ServingError
"""How a task ends: the named outputs, or why there are none."""

MakeInputs: TypeAlias = Callable[[], Tensors]
"""Makes the inputs of a call. Not called where there turns out to be no call."""


class CancelToken:
    """A mark that nobody waits for the result any more. Thread-safe.

    Attributes:
        error: None while somebody waits; then why nobody does (CANCELLED or
            DEADLINE_EXCEEDED). Set once, read anywhere.
        on_cancel: Called with the reason by whoever marks the task; for a holder that
            must pass the mark on. Set it, then look at ``error``. Quick, does not raise.

    """

    __slots__ = ("error", "on_cancel")

    def __init__(self) -> None:
        self.error: ServingError | None = None
        self.on_cancel: Callable[[ServingError], None] | None = None

    def cancel(self, error: ServingError) -> None:
        """Marks the task; the first reason stays."""
        if self.error is None:
            self.error = error
            if self.on_cancel is not None:
                self.on_cancel(error)


class _NeverCancelled(CancelToken):
    """The token that all tasks share which nobody can cancel."""

    __slots__ = ()

    @property
    def on_cancel(self) -> Callable[[ServingError], None] | None:
        return None

    @on_cancel.setter
    def on_cancel(self, on_cancel: Callable[[ServingError], None] | None) -> None:
        pass  # it would never be called

    def cancel(self, error: ServingError) -> None:
        raise RuntimeError("a task that was made without a token cannot be cancelled")


_NEVER_CANCELLED: Final = _NeverCancelled()


class TaskForm(Protocol):
    """What tasks have in common if they differ in nothing but their elements.

    Many tasks of one form can be computed together by joining their ``elements``,
    without looking at the inputs of each, and be ended by one call. Forms are compared by
    identity. Implementors promise:

    1. ``inputs`` are those of every task of the form, in the order of its
       ``elements``; none of them is a string, and all were checked;
    2. ``end_all`` does what each task's ``on_done`` would do with its own rows;
    3. a task whose ``on_done`` somebody replaces has no form any more.
    """

    @property
    def inputs(self) -> Sequence[tuple[str, DType, tuple[int, ...]]]:
        """Name, dtype and shape of each."""
        ...

    def end_all(self, tasks: Sequence[InferenceTask], outputs: Tensors) -> None:
        """Ends tasks of this form, once each, on the loop; does not raise.

        Args:
            tasks: All that were computed together, or some of them.
            outputs: Outputs of these tasks, in order; only padding may follow.

        """
        ...


class InferenceTask:
    """One request for one signature of one version. Owned by whoever holds it last.

    Attributes:
        signature_name: The key the caller asked for, or the default key.
        signature: That signature; ``inputs`` were checked against it.
        inputs: Named tensors; dimension 0 is the batch unless the signature says
            ``batched: false``. Their buffers stay valid until ``on_done`` ran; those
            that are writable memoryviews are given away.
        output_filter: Names of the outputs wanted, in the caller's order; empty
            means all. A servable may return more than these.
        num_rows: Size of dimension 0 of the inputs, 1 if there is none.
        deadline_s: Monotonic; None for none.
        cancel: Marked when nobody waits any more. A marked task leaves its queue
            before any compute; a batch that already runs is not interrupted. A task
            made without one cannot be cancelled.
        on_done: Takes the outcome; see :class:`Servable`.
        is_low: Whether it gives way to others where they are computed together or
            share a device.
        arrived_s: Set by the batch queue it waits in.
        form: What it has in common with tasks like it; None: nothing known.
        elements: What is its own, if it has a form: the elements of each input.

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
    )

    def __init__(
        self,
        signature_name: str,
        signature: Signature,
        inputs: Tensors,
        on_done: Callable[[Outcome], None],
        # By position where one is made per request: keywords take as long again.
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
        self.cancel = _NEVER_CANCELLED if cancel is None else cancel
        self.is_low = is_low
        self.form: TaskForm | None = None
        self.elements: tuple[Buffer, ...] = ()


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
    5. the input buffers are neither written to nor kept after ``on_done``, but for
       those given away (:class:`~tfs.core.tensor_view.TensorView`): outputs may lie in
       these.

    ``on_done`` itself must be quick and must not raise. A servable that has nothing
    better than ``submit`` derives from :class:`OneByOne`.
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
        """As ``submit`` with each in turn, of tasks of one form and priority.

        From the serving loop.
        """
        ...

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes requests here and now. From the serving loop; does not raise.

        Returns None, with nothing done, if that is not possible, if others would have
        to wait for it, or if it failed and it must be found out whose fault that is. The
        caller submits them then.

        Args:
            signature_name: Key of a signature that the servable has.
            make_inputs: Returns the inputs of all of them, checked; called if needed.
            num_rows: The rows of all of them.
            num_tasks: How many there are; somebody waits for each, and is in time. A
                servable that does not know whether they may be joined takes one at most.

        """
        ...


class OneByOne:
    """The other methods of a servable that has only ``submit``."""

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
