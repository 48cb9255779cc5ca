"""Tasks that begin: whether there is anything to compute."""

from __future__ import annotations

from tfs.core.dtype import FLOAT32
from tfs.core.errors import Cancelled, DeadlineExceeded
from tfs.core.servable import CancelToken, InferenceTask
from tfs.core.signature import Method, Signature, TensorSpec

WHO = "digits/3"
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
    assert waiting().begin(1e9, WHO) is None
    assert waiting(deadline_s=5.0).begin(4.9, WHO) is None
    assert isinstance(waiting(deadline_s=5.0).begin(5.0, WHO), DeadlineExceeded)


def test_who_is_told_of_a_deadline_is_told_the_model() -> None:
    """A caller of several models has to know which of them was too slow."""
    late = waiting(deadline_s=5.0).begin(6.0, WHO)
    assert late is not None
    assert late.message == "digits/3: the deadline passed before the model could run"


def test_a_task_that_nobody_waits_for_is_not_computed() -> None:
    """What cancelled it comes before its deadline: that is what happened first."""
    cancel = CancelToken()
    gone = Cancelled("the client is gone")
    cancel.cancel(gone)
    assert waiting(deadline_s=5.0, cancel=cancel).begin(6.0, WHO) is gone
