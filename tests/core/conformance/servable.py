"""What every :class:`tfs.core.servable.Servable` promises."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from tests.threads import run_together
from tfs.core.dtype import BOOL, FLOAT32, FLOAT64, STRING
from tfs.core.errors import Cancelled, ServingError
from tfs.core.servable import CancelToken, InferenceTask, Outcome, Servable, Tensors
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView, concatenate
from tfs.testing.patience import PATIENCE_S

MakeServable = Callable[[], Servable]
MakeInputs = Callable[[Signature, int], Tensors]
ServableCheck = Callable[[MakeServable, MakeInputs], None]
"""Takes the maker of a loaded servable and of its inputs (signature, number of rows).

The maker's caller frees the servable; checks only use it.
"""


def example_inputs(signature: Signature, num_rows: int) -> dict[str, TensorView]:
    """Returns inputs that fit the signature, every row different, free sizes 2."""
    return {
        name: _example(spec, num_rows if signature.batched else None)
        for name, spec in signature.inputs.items()
    }


def _example(spec: TensorSpec, num_rows: int | None) -> TensorView:
    shape = tuple(2 if size == FREE else size for size in spec.shape)
    if num_rows is not None:
        shape = (num_rows, *shape[1:])
    num = math.prod(shape)
    if spec.dtype is STRING:
        return TensorView(STRING, shape, tuple(b"s%d" % i for i in range(num)))
    if spec.dtype is FLOAT32 or spec.dtype is FLOAT64:
        code = "f" if spec.dtype is FLOAT32 else "d"
        data = array(code, [((i * 7) % 13) / 13 for i in range(num)]).tobytes()
    elif spec.dtype is BOOL:
        data = bytes(i % 2 for i in range(num))
    elif spec.dtype.name.startswith(("int", "uint")):
        item = spec.dtype.item_bytes
        data = b"".join((i % 2).to_bytes(item, "little") for i in range(num))
    else:
        data = bytes(num * spec.dtype.item_bytes)
    return TensorView(spec.dtype, shape, data)


class Outcomes:
    """Collects what ``on_done`` is told. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._told: list[Outcome] = []

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self._told.append(outcome)
            self._changed.notify_all()

    def wait(self, num: int = 1) -> list[Outcome]:
        """Blocks for ``num`` outcomes; returns all there are."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._told) >= num, PATIENCE_S)
            return list(self._told)


def run_task(
    servable: Servable, name: str, inputs: Tensors, cancel: CancelToken | None = None
) -> Outcome:
    """Submits one task and blocks for its outcome."""
    outcomes = Outcomes()
    servable.submit(_task(servable, name, inputs, outcomes, cancel))
    return outcomes.wait()[0]


def _task(
    servable: Servable,
    name: str,
    inputs: Tensors,
    on_done: Callable[[Outcome], None],
    cancel: CancelToken | None = None,
) -> InferenceTask:
    signature = servable.signatures[name]
    num_rows = 1
    if signature.batched and inputs:
        num_rows = next(iter(inputs.values())).num_rows
    return InferenceTask(
        name, signature, inputs, on_done, num_rows=num_rows, cancel=cancel
    )


def _outputs(outcome: Outcome) -> Tensors:
    assert not isinstance(outcome, ServingError), outcome
    return outcome


def every_signature_answers(make: MakeServable, inputs: MakeInputs) -> None:
    """Outputs have the signature's names, dtypes and ranks, and the task's rows."""
    servable = make()
    assert servable.signatures
    for name, signature in servable.signatures.items():
        for num_rows in (1, 3) if signature.batched else (1,):
            outcome = run_task(servable, name, inputs(signature, num_rows))
            outputs = _outputs(outcome)
            assert outputs.keys() == signature.outputs.keys()
            for key, view in outputs.items():
                spec = signature.outputs[key]
                assert view.dtype is spec.dtype
                assert len(view.shape) == len(spec.shape)
                if signature.batched:
                    assert view.shape[0] == num_rows
                # Rebuilding checks that the buffer fits dtype and shape.
                TensorView.checked(view.dtype, view.shape, view.data)


def rows_come_back_in_order(make: MakeServable, inputs: MakeInputs) -> None:
    """Each row of a task's answer is the answer to that row."""
    servable = make()
    for name, signature in servable.signatures.items():
        if not signature.batched:
            continue
        whole = inputs(signature, 3)
        outputs = _outputs(run_task(servable, name, whole))
        parts = [
            _outputs(
                run_task(
                    servable, name, {k: v.rows(i, i + 1) for k, v in whole.items()}
                )
            )
            for i in range(3)
        ]
        for key, view in outputs.items():
            _assert_close(concatenate([part[key] for part in parts]), view)


def _assert_close(left: TensorView, right: TensorView) -> None:
    assert left.shape == right.shape
    if left.dtype is FLOAT32 or left.dtype is FLOAT64:
        code = "f" if left.dtype is FLOAT32 else "d"
        ours, theirs = array(code), array(code)
        ours.frombytes(bytes(left.data))  # type: ignore[arg-type]
        theirs.frombytes(bytes(right.data))  # type: ignore[arg-type]
        # A kernel may sum in another order for another batch size.
        assert list(ours) == pytest.approx(list(theirs), rel=1e-3, abs=1e-5)
    else:
        assert left == right


def on_done_runs_once_for_every_task(make: MakeServable, inputs: MakeInputs) -> None:
    """Tasks from several threads are each answered once."""
    servable = make()
    name, signature = next(iter(servable.signatures.items()))
    outcomes = [Outcomes() for _ in range(40)]

    def submit(part: list[Outcomes]) -> None:
        for each in part:
            servable.submit(_task(servable, name, inputs(signature, 1), each))

    run_together(*(partial(submit, outcomes[i::4]) for i in range(4)))
    for each in outcomes:
        _outputs(each.wait()[0])
    # Another task through the same servable: whatever would come twice has come.
    _outputs(run_task(servable, name, inputs(signature, 1)))
    assert [len(each.wait()) for each in outcomes] == [1] * 40


def a_cancelled_task_is_answered_with_its_error(
    make: MakeServable, inputs: MakeInputs
) -> None:
    """Who is marked before it is computed costs no compute and gets the mark."""
    servable = make()
    name, signature = next(iter(servable.signatures.items()))
    cancel = CancelToken()
    error = Cancelled("the caller is gone")
    cancel.cancel(error)
    assert run_task(servable, name, inputs(signature, 1), cancel) is error


def a_task_that_cannot_be_computed_is_an_outcome(
    make: MakeServable, inputs: MakeInputs
) -> None:
    """Whatever is wrong, ``submit`` does not raise, and the next task is fine."""
    servable = make()
    name, signature = next(iter(servable.signatures.items()))
    if signature.inputs:
        absent: Mapping[str, TensorView] = {}
        assert isinstance(run_task(servable, name, absent), ServingError)
    _outputs(run_task(servable, name, inputs(signature, 1)))


def inputs_are_left_alone(make: MakeServable, inputs: MakeInputs) -> None:
    """Buffers are not written to, and not looked at once the task is done."""
    servable = make()
    name, signature = next(iter(servable.signatures.items()))
    given = inputs(signature, 2 if signature.batched else 1)
    buffers = {
        key: bytearray(view.data)
        for key, view in given.items()
        if not isinstance(view.data, tuple)
    }
    before = {key: bytes(buffer) for key, buffer in buffers.items()}
    borrowed = {
        key: TensorView(view.dtype, view.shape, memoryview(buffers[key]).toreadonly())
        if key in buffers
        else view
        for key, view in given.items()
    }
    outputs = _outputs(run_task(servable, name, borrowed))
    copies = {key: _copy(view) for key, view in outputs.items()}
    assert {key: bytes(buffer) for key, buffer in buffers.items()} == before
    for buffer in buffers.values():
        buffer[:] = bytes(len(buffer))
    assert {key: _copy(view) for key, view in outputs.items()} == copies


def _copy(view: TensorView) -> bytes | tuple[bytes, ...]:
    return view.data if isinstance(view.data, tuple) else bytes(view.data)


def what_a_servable_says_of_itself_stays(
    make: MakeServable, inputs: MakeInputs
) -> None:
    """Id and signatures are the same before and after use."""
    servable = make()
    before = (servable.id, dict(servable.signatures))
    name, signature = next(iter(servable.signatures.items()))
    _outputs(run_task(servable, name, inputs(signature, 1)))
    assert (servable.id, dict(servable.signatures)) == before


SERVABLE_CHECKS: tuple[ServableCheck, ...] = (
    every_signature_answers,
    rows_come_back_in_order,
    on_done_runs_once_for_every_task,
    a_cancelled_task_is_answered_with_its_error,
    a_task_that_cannot_be_computed_is_an_outcome,
    inputs_are_left_alone,
    what_a_servable_says_of_itself_stays,
)


def check_servable(make: MakeServable, inputs: MakeInputs = example_inputs) -> None:
    """Runs every check of a servable; ``make`` may return the same one each time."""
    for check in SERVABLE_CHECKS:
        check(make, inputs)
