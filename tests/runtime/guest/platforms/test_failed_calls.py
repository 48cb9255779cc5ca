"""What the log is told of calls that fail in a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tfs.core.dtype import FLOAT32
from tfs.core.errors import Internal, InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import seed_random
from tfs.runtime.guest.platforms.signature_call import FailedCalls
from tfs.runtime.guest.platforms.torch_callable import TorchCallable

SPEC = {"x": TensorSpec(FLOAT32, (-1,))}
SOURCE = ModelSource(
    ServableId("m", 1),
    "/m/1",
    "python",
    {},
    {"s": Signature(Method.PREDICT, SPEC, SPEC)},
)


class Picky(nn.Module):
    """Fails in a part of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.checked(x)

    def checked(self, x: Tensor) -> Tensor:
        raise ValueError("not this\none")


def test_the_log_says_once_where_a_model_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever sent the request is told what failed; paths and lines are the operator's."""
    model = TorchCallable(SOURCE, {"s": Picky().eval()})
    view = TensorView(FLOAT32, (1,), torch.ones(1).numpy().tobytes())
    for _ in range(2):
        with pytest.raises(Internal) as caught:
            model.call("s", {"x": view})
        assert caught.value.message == (
            "m/1, signature 's' failed: ValueError: not this one"
        )
    (message,) = caplog.messages
    assert "servable=m/1 signature=s error='ValueError: not this one'" in message
    forward, checked = message.partition(" at='")[2].split(" > ")
    assert __file__ in forward
    assert forward.endswith(" in forward")
    assert checked.endswith(" in checked'")


def test_a_request_without_rows_that_a_model_does_not_take_is_its_callers_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model is as well as before: nothing is logged, and nobody tries again."""
    model = TorchCallable(SOURCE, {"s": Picky().eval()})
    with pytest.raises(InvalidArgument, match="m/1, signature 's' takes no request"):
        model.call("s", {"x": TensorView(FLOAT32, (0,), b"")})
    assert caplog.messages == []


def test_who_calls_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Only the first few places where calls fail are logged."""
    failures = FailedCalls("m/1", "s")
    for index in range(100):
        failures.note(type(f"Error{index}", (Exception,), {})("text"))
    assert 1 < len(caplog.messages) < 20


def test_a_failure_of_a_measurement_alarms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Inputs that TFS makes up may be wrong for a model; what clients send is told as ever."""
    caplog.set_level("INFO")
    failures = FailedCalls("m/1", "s")
    seed_random(0)
    try:
        failures.note(ValueError("made up"))
    finally:
        seed_random()
    failures.note(ValueError("sent"))
    (probed, asked) = caplog.records
    assert (probed.levelname, asked.levelname) == ("INFO", "WARNING")
    assert "event=probe_call_failed servable=m/1" in probed.getMessage()
    assert "event=call_failed servable=m/1" in asked.getMessage()
