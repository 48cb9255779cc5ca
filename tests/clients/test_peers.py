"""What the clients' check makes of a missing tool, and of a wrong answer."""

from __future__ import annotations

import shutil
import struct

import pytest

from tests.clients import peers
from tfs.proto.tensorflow_serving.apis import predict_pb2

SERVER = peers.Server(
    "127.0.0.1:1",
    {"model": "small", "inputs": [[1.0, 2.0]], "outputs": {"2": [[0.25, 0.75]]}},
)


def reply(version: int, *scores: float) -> bytes:
    """Returns a Predict reply."""
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    response.outputs["scores"].float_val.extend(scores)
    return response.SerializeToString()


def test_a_missing_tool_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has to guess which of npm, node and curl it was."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(peers.Failed, match=r"node is missing.*nodejs"):
        peers.set_up_grpc_js()
    with pytest.raises(peers.Failed, match="curl is missing"):
        peers.set_up_curl()


def test_a_reply_is_compared_with_what_torch_said() -> None:
    """Values, their number, and a version that was exported."""
    peers.check_reply(SERVER, reply(2, 0.25, 0.75))
    for wrong in (reply(2, 0.25, 0.5), reply(2, 0.25), reply(2), reply(1, 0.25, 0.75)):
        with pytest.raises(peers.Failed):
            peers.check_reply(SERVER, wrong)


def test_the_request_holds_the_inputs() -> None:
    """A request holds the inputs as a client writes them, for any model."""
    request = predict_pb2.PredictRequest.FromString(peers.predict_request(SERVER))
    assert request.model_spec.name == "small"
    assert request.inputs["input"].tensor_content == struct.pack("<2f", 1.0, 2.0)
    other = peers.predict_request(SERVER, "absent")
    name = predict_pb2.PredictRequest.FromString(other).model_spec.name
    assert name == "absent"
