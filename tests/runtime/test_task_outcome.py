"""tfs.runtime.task_outcome."""

from __future__ import annotations

from tfs.core.dtype import FLOAT32
from tfs.core.errors import Cancelled, DeadlineExceeded
from tfs.core.servable import CancelToken, InferenceTask
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.runtime.task_outcome import why_not_run

ID = ServableId("digits", 3)
SPEC = TensorSpec(FLOAT32, (-1,))
SIGNATURE = Signature(Method.PREDICT, {"x": SPEC}, {"y": SPEC})


def waiting(
    deadline_s: float | None = None, cancel: CancelToken | None = None
) -> InferenceTask:
    """Returns a task that waits, and whose outcome nobody takes."""
    return InferenceTask(
        "serving_default",
        SIGNATURE,
        {},
        lambda _: None,
        deadline_s=deadline_s,
        cancel=cancel,
    )


def test_a_task_is_computed_until_its_deadline() -> None:
    """The instant of the deadline is too late, and any before it is not."""
    assert why_not_run(waiting(), ID, 1e9) is None
    assert why_not_run(waiting(deadline_s=5.0), ID, 4.9) is None
    assert isinstance(why_not_run(waiting(deadline_s=5.0), ID, 5.0), DeadlineExceeded)


def test_who_is_told_of_a_deadline_is_told_the_model() -> None:
    """A caller of several models has to know which of them was too slow."""
    late = why_not_run(waiting(deadline_s=5.0), ID, 6.0)
    assert late is not None
    assert late.message == "digits/3: the deadline passed before the model could run"


def test_a_task_that_nobody_waits_for_is_not_computed() -> None:
    """What cancelled it comes before its deadline: that is what happened first."""
    cancel = CancelToken()
    gone = Cancelled("the client is gone")
    cancel.cancel(gone)
    assert why_not_run(waiting(deadline_s=5.0, cancel=cancel), ID, 6.0) is gone
