"""How to answer requests that differ from an earlier one only in their elements.

Usually the requests of one client differ only in the elements of their tensors. What
their bytes have in common is a :class:`~tfs.codec.request_template.RequestTemplate`; a plan says
how one version answers such requests. It settles decoding, signature, checks, gate and
counters once, so that requests that arrive together are pinned, queued, answered and
counted together.

A plan contains nothing that could change. It belongs to one handle, that is to one
loaded version, and to one model gate, and both are looked up again each time the plan
is used. If a label moves, or a version is swapped, rolled back or unloaded, there is
another handle, and so another plan. Whatever a plan does not cover takes the ordinary
way, errors included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from tfs.core.call import BurstCall
from tfs.core.dtype import DType
from tfs.core.servable import InferenceTask, Outcome, TaskForm, Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView, join_elements
from tfs.core.trace import Trace
from tfs.handlers.predict_answers import PredictAnswers


class RequestPlan:
    """How a version answers requests that differ only in their elements.

    A :class:`~tfs.core.servable.TaskForm`. Immutable.

    Attributes:
        inputs: Name, dtype and shape of each tensor.
        num_rows: Rows of each request.
        signature: The signature that they ask for and fit; it has no defaults.
        signature_name: Key of the signature.
        answers: How their tasks end.

    """

    __slots__ = ("answers", "inputs", "num_rows", "signature", "signature_name")

    def __init__(
        self,
        inputs: Sequence[tuple[str, DType, tuple[int, ...]]],
        signature_name: str,
        signature: Signature,
        answers: PredictAnswers,
    ) -> None:
        """Checks the inputs against the signature.

        Raises:
            InvalidArgument: They do not fit.

        """
        self.inputs = inputs
        self.num_rows = signature.check_inputs(
            {name: TensorView(dtype, shape, b"") for name, dtype, shape in inputs}
        )
        self.signature = signature
        self.signature_name = signature_name
        self.answers = answers

    def inputs_of(self, elements: tuple[Buffer, ...]) -> Tensors:
        """Returns the inputs of a request with these elements."""
        return {
            name: TensorView(dtype, shape, data)
            for (name, dtype, shape), data in zip(self.inputs, elements, strict=True)
        }

    def joined(self, elements: Sequence[tuple[Buffer, ...]]) -> Tensors:
        """Returns the inputs of requests with these elements, one after the other."""
        if len(elements) == 1:
            return self.inputs_of(elements[0])
        return join_elements(self.inputs, elements, len(elements) * self.num_rows)

    def tasks(
        self,
        calls: Sequence[BurstCall],
        elements: Sequence[tuple[Buffer, ...]],
        begun_s: float,
    ) -> list[PlannedTask]:
        """Returns a task for each call with its elements."""
        return [
            PlannedTask(self, call, own, begun_s)
            for call, own in zip(calls, elements, strict=True)
        ]

    def end_all(self, tasks: Sequence[InferenceTask], outputs: Tensors) -> None:
        """Ends tasks made by this plan; see ``TaskForm``."""
        planned = cast("Sequence[PlannedTask]", tasks)  # nothing else has this form
        self.answers.end_all(planned, outputs, self.num_rows)


class PlannedTask(InferenceTask):
    """One request of a plan. Its tensor views are made only if somebody looks at them."""

    __slots__ = ("_inputs", "_on_done", "begun_s", "call", "plan")

    # Other tasks may have these; planned tasks always do.
    output_filter: tuple[str, ...] = ()
    is_low: bool = False
    trace: Trace | None = None

    def __init__(
        self,
        plan: RequestPlan,
        call: BurstCall,
        elements: tuple[Buffer, ...],
        begun_s: float,
    ) -> None:
        # This replaces super().__init__, because there is one task per request.
        self.plan = plan
        self.form: TaskForm | None = plan
        self.call = call
        self.elements = elements
        self.begun_s = begun_s
        self.deadline_s = call.deadline_s
        self.cancel = call.cancel
        self.num_rows = plan.num_rows
        self.signature_name = plan.signature_name
        self.signature = plan.signature
        self._inputs: Tensors | None = None
        self._on_done: Callable[[Outcome], None] | None = None

    @property
    def inputs(self) -> Tensors:
        """Named tensors over ``elements``."""
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = self.plan.inputs_of(self.elements)
        return inputs

    @inputs.setter
    def inputs(self, inputs: Tensors) -> None:
        self._inputs = inputs
        self.form = None  # the form described the old elements

    @property
    def on_done(self) -> Callable[[Outcome], None]:
        """Takes the outcome of this task alone.

        It does not refer to the task. Whoever wraps it and sets the wrapper would close
        a cycle, and the request would stay in memory until the collector comes by.
        """
        return self._on_done or partial(
            self.plan.answers.end, self.call, self.begun_s, ()
        )

    @on_done.setter
    def on_done(self, on_done: Callable[[Outcome], None]) -> None:
        self._on_done = on_done
        self.form = None  # from here on the task ends by itself
