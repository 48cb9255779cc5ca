"""tfs.handlers.predict."""

from __future__ import annotations

import struct

import pytest

from tests.handlers.served import OneModel
from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_response import Answerer
from tfs.core.call import Metadata
from tfs.core.dtype import FLOAT32
from tfs.core.errors import (
    Code,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_format import PredictFormat
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.fake_call import FakeCall


def request(
    *, model: str = "m", signature: str = "", outputs: tuple[str, ...] = ()
) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest(output_filter=outputs)
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    tensor = message.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (2, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = struct.pack("<4f", 1, 2, 3, 4)
    return message


def predict(
    served: OneModel, message: predict_pb2.PredictRequest, *, content: bool = False
) -> FakeCall:
    call = FakeCall(message.SerializeToString(), deadline_s=12.5)
    PredictHandler(served, form=PredictFormat(content))(call)
    return call


def read(call: FakeCall) -> predict_pb2.PredictResponse:
    return predict_pb2.PredictResponse.FromString(call.reply_bytes())


def test_outputs_come_back_by_name_with_who_answered() -> None:
    """The reply holds every output, and the model, version and signature."""
    served = OneModel()
    response = read(predict(served, request()))
    assert sorted(response.outputs) == ["n", "y"]
    assert list(response.outputs["y"].float_val) == [1, 2, 3, 4]
    assert list(response.outputs["n"].int64_val) == [0, 1]
    spec = response.model_spec
    assert (spec.name, spec.version.value) == ("m", 3)
    assert spec.signature_name == "serving_default"
    assert served.handle.num_pins == 0


def test_the_task_carries_deadline_cancel_rows_and_defaults() -> None:
    """What the servable needs of the call travels with the task."""
    served = OneModel()
    call = predict(served, request())
    (task,) = served.servable.tasks
    assert task.deadline_s == 12.5
    assert task.cancel is call.cancel
    assert task.num_rows == 2
    assert sorted(task.inputs) == ["scale", "x"]


@pytest.mark.parametrize(
    ("metadata", "is_low"),
    [
        ((), False),
        ((("user-agent", "x"), ("tfs-priority", "low")), True),
        ((("tfs-priority", "high"),), False),
    ],
)
def test_a_caller_may_let_others_go_first(metadata: Metadata, is_low: bool) -> None:
    """Metadata say so, as callers of TensorFlow Serving's API have no other place."""
    served = OneModel()
    call = FakeCall(request().SerializeToString(), metadata=metadata)
    PredictHandler(served)(call)
    (task,) = served.servable.tasks
    assert task.is_low is is_low


def test_the_pin_is_held_until_the_servable_is_done() -> None:
    """A version cannot go away while it computes for a request."""
    served = OneModel()
    served.servable.is_paused = True
    call = predict(served, request())
    assert served.handle.num_pins == 1
    assert not call.is_finished
    served.servable.answer(served.servable.tasks[0])
    assert served.handle.num_pins == 0
    assert call.num_finishes == 1


def test_a_filter_chooses_outputs() -> None:
    """Only the outputs asked for are sent."""
    response = read(predict(OneModel(), request(outputs=("n",))))
    assert list(response.outputs) == ["n"]


def test_the_client_id_is_the_routing_key() -> None:
    """What keeps a caller on one side of a split reaches the look-up."""
    served = OneModel()
    message = request()
    message.client_id = b"me"
    predict(served, message)
    assert served.keys == [b"me"]


def test_a_servables_error_is_the_calls() -> None:
    """Failure is passed on with its code, and the pin is let go."""
    served = OneModel()
    served.servable.error = Internal("m/3: broken")
    call = predict(served, request())
    assert call.error() is served.servable.error
    assert served.handle.num_pins == 0


def _no_spec(message: predict_pb2.PredictRequest) -> None:
    message.ClearField("model_spec")


def _empty_spec(message: predict_pb2.PredictRequest) -> None:
    message.model_spec.Clear()
    message.model_spec.SetInParent()


def _unknown(message: predict_pb2.PredictRequest) -> None:
    message.model_spec.name = "unknown"


def _bad_label(message: predict_pb2.PredictRequest) -> None:
    message.model_spec.version_label = "stable"


def _missing(message: predict_pb2.PredictRequest) -> None:
    del message.inputs["x"]


def _extra(message: predict_pb2.PredictRequest) -> None:
    message.inputs["z"].CopyFrom(message.inputs["x"])


def _dtype(message: predict_pb2.PredictRequest) -> None:
    message.inputs["x"].dtype = types_pb2.DT_STRING
    message.inputs["x"].ClearField("tensor_content")
    message.inputs["x"].string_val.extend([b"a"] * 4)


def _invalid(message: predict_pb2.PredictRequest) -> None:
    message.inputs["x"].dtype = types_pb2.DT_INVALID


def _bytes(message: predict_pb2.PredictRequest) -> None:
    message.inputs["x"].tensor_content = b"123"


def _shape(message: predict_pb2.PredictRequest) -> None:
    message.inputs["x"].tensor_shape.dim.add(size=1)


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (_no_spec, InvalidArgument, "Missing ModelSpec"),
        (_empty_spec, NotFound, "Latest()"),
        (_unknown, NotFound, "Latest(unknown)"),
        (_bad_label, InvalidArgument, "stable"),
        (_missing, InvalidArgument, "Missing but required: {x}"),
        (_extra, InvalidArgument, "request inputs: x, request input: x,z"),
        (_dtype, InvalidArgument, "to be float but string is provided"),
        (_invalid, InvalidArgument, "tensor parsing error: x"),
        (_bytes, InvalidArgument, "tensor parsing error: x"),
        (_shape, InvalidArgument, "'x'"),
    ],
)
def test_a_bad_request_never_reaches_the_servable(
    spoil: object, kind: type[ServingError], words: str
) -> None:
    """What is wrong is said, nothing stays pinned, nothing is computed.

    predict_util MissingOrEmptyModelSpec, EmptyInputList, PredictionInvalidTensor,
    InputTensorsHaveWrongType.
    """
    served = OneModel()
    message = request()
    spoil(message)  # type: ignore[operator]
    error = predict(served, message).error()
    assert isinstance(error, kind)
    assert words in error.message
    assert served.servable.tasks == []
    assert served.handle.num_pins == 0


def test_garbage_is_refused() -> None:
    """Bytes that are no request are the caller's mistake."""
    call = FakeCall(b"\xff\xff\xff")
    PredictHandler(OneModel())(call)
    assert call.error().code is Code.INVALID_ARGUMENT


class Told:
    """Writes what it is told, in words of its own."""

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> bytes | None:
        return None if self.is_long else self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> bytes:
        return "{}/{} {} {}".format(*answerer, sorted(outputs)).encode()

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> None:
        return None

    is_long = False


@pytest.mark.parametrize("is_long", [False, True])
def test_a_request_decoded_elsewhere_takes_the_same_way(is_long: bool) -> None:
    """It is checked, limited and counted as others are, and its writer answers it."""
    served, gate = OneModel(), RequestGate(1)
    handler, writer, call = PredictHandler(served, gate), Told(), FakeCall(b"{}")
    writer.is_long = is_long
    x = TensorView(FLOAT32, (1, 2), bytes(8))
    seen: list[Signature] = []

    def read(signature: Signature) -> tuple[Tensors, tuple[str, ...]]:
        seen.append(signature)
        assert gate.in_flight.num_taken == 1
        return {"x": x}, ("y",)

    handler.start(call, ModelSpec("m"), read, writer)
    assert call.reply_bytes() == b"m/3 serving_default ['y']"
    assert seen == [served.servable.signatures["serving_default"]]
    assert gate.in_flight.num_taken == 0
    assert served.handle.num_pins == 0


def test_what_cannot_be_read_elsewhere_fails_its_call() -> None:
    """The reader's error is the caller's; nothing is left taken."""
    served, gate, call = OneModel(), RequestGate(1), FakeCall(b"{}")

    def read(_signature: Signature) -> tuple[Tensors, tuple[str, ...]]:
        raise InvalidArgument("not rectangular")

    PredictHandler(served, gate).start(call, ModelSpec("m"), read, Told())
    assert call.error().message == "not rectangular"
    assert gate.in_flight.num_taken == 0
    assert served.handle.num_pins == 0
