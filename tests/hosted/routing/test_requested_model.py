"""Which model a request names, by its bytes."""

from __future__ import annotations

import pytest

from tfs.codec import wire
from tfs.core.errors import InvalidArgument
from tfs.handlers.oip.service import INFER
from tfs.hosted.routing.requested_model import MULTI_INFERENCE, requested_model
from tfs.proto.inference import open_inference_grpc_pb2 as oip_pb2
from tfs.proto.tensorflow_serving.apis import inference_pb2, predict_pb2

PREDICT = "/tensorflow.serving.PredictionService/Predict"


def test_the_name_is_found_wherever_the_model_spec_stands() -> None:
    """Fields may come in any order, and a message in parts, as protobuf allows."""
    request = predict_pb2.PredictRequest()
    request.inputs["x"].tensor_content = b"\0" * 1000
    request.model_spec.name = "digits"
    message = request.SerializeToString()
    assert requested_model(PREDICT, memoryview(message)) == "digits"
    spec = wire.delimited(1, wire.delimited(1, b"late"))
    assert requested_model(PREDICT, message + spec) == "late"


def test_multi_inference_names_it_in_its_tasks() -> None:
    """Its model spec lies one level deeper."""
    request = inference_pb2.MultiInferenceRequest()
    request.tasks.add().model_spec.name = "digits"
    request.tasks.add().model_spec.name = "digits"
    assert requested_model(MULTI_INFERENCE, request.SerializeToString()) == "digits"


def test_the_open_inference_protocol_names_it_itself() -> None:
    """The name is a field of the request, not of a model spec in it."""
    request = oip_pb2.ModelInferRequest(model_name="digits")
    request.raw_input_contents.append(b"\0" * 1000)
    assert requested_model(INFER, request.SerializeToString()) == "digits"


@pytest.mark.parametrize("message", [b"", b"\x0a", b"\x0a\x05\x0a", b"\xff\xff"])
@pytest.mark.parametrize("method", [PREDICT, MULTI_INFERENCE, INFER])
def test_what_names_no_model_is_refused(method: str, message: bytes) -> None:
    """No request is sent on whose model is not known."""
    with pytest.raises(InvalidArgument):
        requested_model(method, message)
