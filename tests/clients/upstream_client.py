"""Runs where the real tensorflow-serving-api is installed; run.py starts it.

    upstream_client.py exchange before|after
    upstream_client.py talk --address HOST:PORT --expected FILE
    upstream_client.py table --address HOST:PORT --calls FILE --outcomes FILE

Imports nothing of ours but tfs.proto, and that in the first form only: the second is a
client as users have it. Every check prints one line; the first that fails ends it with
a traceback.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY_TIMEOUT_S = 60
CALL_TIMEOUT_S = 20
TOLERANCE = 1e-5


def exchange(order: str) -> None:
    """Both sides in one process, in either order, with bytes passed both ways."""

    def theirs() -> None:
        import tensorflow as tf  # noqa: F401
        from tensorflow_serving.apis import (  # noqa: F401
            model_service_pb2_grpc,
            prediction_log_pb2,
            prediction_service_pb2_grpc,
        )

    def ours() -> None:
        import tests.proto.samples  # noqa: F401

    for load in (theirs, ours) if order == "before" else (ours, theirs):
        load()
    # The definitions are registered: by the packages themselves, this time.
    from tests.proto.exchange_bytes import exchange_all, exchange_any

    num = exchange_all()
    exchange_any()
    print(f"    {num} messages there and back")
    exchange_with_tensorflow()
    print("    tensors by tf.make_tensor_proto and tf.make_ndarray")


def exchange_with_tensorflow() -> None:
    """TensorFlow's own tensors are ours, value by value."""
    import numpy as np
    import tensorflow as tf

    from tfs.proto.tensorflow.core.framework import tensor_pb2

    for value in (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([[1.5], [2.5]], dtype=np.float16),
        np.array([b"a", b"", b"\xff"], dtype=object),
        np.full((100,), 7, dtype=np.int64),
        np.array([True, False]),
        np.array([1 + 2j], dtype=np.complex64),
        np.zeros((0, 3), dtype=np.uint8),
    ):
        made = tf.make_tensor_proto(value)
        carried = tensor_pb2.TensorProto.FromString(made.SerializeToString())
        assert carried.dtype == made.dtype
        returned = type(made).FromString(carried.SerializeToString())
        np.testing.assert_array_equal(tf.make_ndarray(returned), value)


class Talk:
    """A user's client. Confined to one thread.

    Attributes:
        expected: What run.py exported: names, inputs, outputs by version.

    """

    def __init__(self, address: str, expected: dict[str, Any]) -> None:
        import grpc
        from tensorflow_serving.apis import (
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        self.expected = expected
        self.model = str(expected["model"])
        channel = grpc.insecure_channel(address)
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def check_status(self) -> None:
        """Both versions become available."""
        self.wait_for({"1": "AVAILABLE", "2": "AVAILABLE"})

    def check_predict(self) -> None:
        """Answers are torch's, for every way that a client may write a tensor."""
        import numpy as np
        import tensorflow as tf

        inputs = np.array(self.expected["inputs"], dtype=np.float32)
        ways = {
            "tensor_content": tf.make_tensor_proto(inputs),
            "float_val": self.float_val(inputs),
        }
        for tensor in ways.values():
            for version in (None, 1, 2):
                reply = self.predict(tensor, version)
                self.compare(reply, version or 2)
        # make_tensor_proto writes a constant as one value for all elements.
        constant = tf.make_tensor_proto(0.5, shape=(2, 4))
        assert len(constant.float_val) <= 1 or constant.tensor_content
        assert tf.make_ndarray(self.predict(constant).outputs["scores"]).shape == (2, 3)

    def check_classify(self) -> None:
        """Rows come back in order, labels in the model's order, scores torch's."""
        import tensorflow as tf
        from tensorflow_serving.apis import classification_pb2

        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = self.model
        request.model_spec.signature_name = "classify"
        for row in self.expected["inputs"]:
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=row))
            features = tf.train.Features(feature={"input": feature})
            request.input.example_list.examples.append(
                tf.train.Example(features=features)
            )
        reply = self.predictions.Classify(request, timeout=CALL_TIMEOUT_S)
        rows = reply.result.classifications
        assert len(rows) == len(self.expected["inputs"])
        for row, scores in zip(rows, self.expected["outputs"]["2"], strict=True):
            assert [one.label for one in row.classes] == self.expected["labels"]
            for one, score in zip(row.classes, scores, strict=True):
                assert abs(one.score - score) < TOLERANCE
        assert reply.model_spec.version.value == 2

    def check_errors(self) -> None:
        """What is wrong is told by the code that TensorFlow Serving uses."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import get_model_status_pb2

        good = tf.make_tensor_proto([[0.0] * 4], dtype=tf.float32)
        code = grpc.StatusCode
        self.refused(code.NOT_FOUND, lambda: self.predict(good, model="absent"))
        self.refused(code.NOT_FOUND, lambda: self.predict(good, version=77))
        self.refused(code.INVALID_ARGUMENT, lambda: self.predict(good, input="wrong"))
        other = tf.make_tensor_proto([["text"] * 4])
        self.refused(code.INVALID_ARGUMENT, lambda: self.predict(other))
        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = "absent"
        self.refused(
            code.NOT_FOUND,
            lambda: self.models.GetModelStatus(status, timeout=CALL_TIMEOUT_S),
        )

    def check_reload(self) -> None:
        """A reload goes back to version 1, and another returns to both."""
        import numpy as np
        import tensorflow as tf

        inputs = np.array(self.expected["inputs"], dtype=np.float32)
        self.reload([1])
        self.wait_for({"1": "AVAILABLE", "2": "END"})
        self.compare(self.predict(tf.make_tensor_proto(inputs)), 1)
        self.reload([1, 2], label=("newest", 2))
        self.wait_for({"1": "AVAILABLE", "2": "AVAILABLE"})
        self.compare(self.predict(tf.make_tensor_proto(inputs), label="newest"), 2)

    def reload(self, versions: list[int], label: tuple[str, int] | None = None) -> None:
        """Asks the server to serve these versions."""
        from tensorflow_serving.apis import model_management_pb2

        request = model_management_pb2.ReloadConfigRequest()
        config = request.config.model_config_list.config.add()
        config.name = self.model
        config.base_path = self.expected["base_path"]
        config.model_platform = "tensorflow"
        config.model_version_policy.specific.versions.extend(versions)
        if label is not None:
            config.version_labels[label[0]] = label[1]
            self.wait_before_label(config, label[1])
        reply = self.models.HandleReloadConfigRequest(request, timeout=READY_TIMEOUT_S)
        assert reply.status.error_code == 0, reply.status.error_message

    def wait_before_label(self, config: Any, version: int) -> None:
        """TensorFlow Serving takes labels of available versions only: load it first."""
        from tensorflow_serving.apis import model_management_pb2

        request = model_management_pb2.ReloadConfigRequest()
        unlabelled = request.config.model_config_list.config.add()
        unlabelled.CopyFrom(config)
        unlabelled.version_labels.clear()
        self.models.HandleReloadConfigRequest(request, timeout=READY_TIMEOUT_S)
        self.wait_for({str(version): "AVAILABLE"})

    def wait_for(self, wanted: dict[str, str]) -> None:
        """Asks for the status until these versions are in these states.

        A version that the server has forgotten counts as ended.
        """
        import grpc
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = self.model
        state_name = get_model_status_pb2.ModelVersionStatus.State.Name
        states: dict[str, str] = {}
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s:
            try:
                # A server may still be on its way up.
                reply = self.models.GetModelStatus(
                    request, timeout=CALL_TIMEOUT_S, wait_for_ready=True
                )
                states = {
                    str(status.version): state_name(status.state)
                    for status in reply.model_version_status
                }
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
            if all(states.get(v, "END") == state for v, state in wanted.items()):
                return
            time.sleep(0.05)
        raise AssertionError(f"wanted {wanted}, the server says {states}")

    def predict(
        self,
        tensor: Any,
        version: int | None = None,
        *,
        model: str | None = None,
        input: str = "input",  # noqa: A002
        label: str | None = None,
    ) -> Any:
        """One Predict call."""
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.name = model or self.model
        if version is not None:
            request.model_spec.version.value = version
        if label is not None:
            request.model_spec.version_label = label
        request.inputs[input].CopyFrom(tensor)
        return self.predictions.Predict(request, timeout=CALL_TIMEOUT_S)

    def compare(self, reply: Any, version: int) -> None:
        """The reply is that version's, and what torch gave."""
        import numpy as np
        import tensorflow as tf

        assert reply.model_spec.version.value == version
        assert reply.model_spec.name == self.model
        np.testing.assert_allclose(
            tf.make_ndarray(reply.outputs["scores"]),
            np.array(self.expected["outputs"][str(version)], dtype=np.float32),
            atol=TOLERANCE,
        )

    @staticmethod
    def float_val(values: Any) -> Any:
        """The tensor in its typed field, as other languages' clients write it."""
        import tensorflow as tf

        tensor = tf.make_tensor_proto(values)
        tensor.ClearField("tensor_content")
        tensor.float_val.extend(values.ravel().tolist())
        return tensor

    @staticmethod
    def refused(code: Any, act: Callable[[], object]) -> None:
        """The call fails with this code and says why."""
        import grpc

        found: tuple[object, str | None] = (None, "an answer")
        try:
            act()
        except grpc.RpcError as error:
            found = (error.code(), error.details())
        assert found[0] == code, f"{found[0]} ({found[1]}), where {code} was due"
        assert found[1]


def talk(address: str, expected: Path) -> None:
    """Runs every check on a running server."""
    client = Talk(address, json.loads(expected.read_text()))
    for check in (
        client.check_status,
        client.check_predict,
        client.check_classify,
        client.check_errors,
        client.check_reload,
    ):
        check()
        print(f"    {check.__name__.removeprefix('check_')}: {check.__doc__}")


def make_calls(address: str, calls: Path, outcomes: Path) -> None:
    """Makes the table's calls with the real messages, wherever they can be parsed."""
    import grpc
    from grpc_health.v1 import health_pb2  # noqa: F401  # registers its service
    from tensorflow_serving.apis import (  # noqa: F401  # as these do
        model_service_pb2,
        prediction_service_pb2,
        session_service_pb2,
    )

    found = []
    with grpc.insecure_channel(address) as channel:
        for call in json.loads(calls.read_text()):
            message = base64.b64decode(call["message"])
            request, reply_type = typed(call["path"], message)
            method = channel.unary_unary(
                call["path"],
                request_serializer=lambda sent: (
                    sent if isinstance(sent, bytes) else sent.SerializeToString()
                ),
                response_deserializer=reply_type.FromString if reply_type else None,
            )
            code, details, reply = 0, "", b""
            try:
                answer = method(request, timeout=CALL_TIMEOUT_S)
                reply = answer.SerializeToString() if reply_type else answer
            except grpc.RpcError as error:
                code, details = error.code().value[0], error.details() or ""
            found.append(
                {
                    "code": code,
                    "details": details,
                    "reply": base64.b64encode(reply).decode(),
                }
            )
    outcomes.write_text(json.dumps(found))


def typed(path: str, message: bytes) -> tuple[Any, Any]:
    """Returns the request as their message and the reply's class, or bytes and None."""
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    service, _, name = path[1:].partition("/")
    try:
        method = (
            descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
        )
        request = message_factory.GetMessageClass(method.input_type).FromString(message)
    except (KeyError, DecodeError):
        return message, None
    return request, message_factory.GetMessageClass(method.output_type)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("exchange")
    one.add_argument("order", choices=("before", "after"))
    two = commands.add_parser("talk")
    two.add_argument("--address", required=True)
    two.add_argument("--expected", type=Path, required=True)
    three = commands.add_parser("table")
    three.add_argument("--address", required=True)
    three.add_argument("--calls", type=Path, required=True)
    three.add_argument("--outcomes", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "exchange":
        exchange(arguments.order)
    elif arguments.command == "table":
        make_calls(arguments.address, arguments.calls, arguments.outcomes)
    else:
        talk(arguments.address, arguments.expected)
    return 0


if __name__ == "__main__":
    sys.exit(main())
