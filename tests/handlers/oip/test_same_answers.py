"""Predict, REST and the Open Inference Protocol give the same answers."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.handlers.fake_http_call import FakeHttpCall
from tests.handlers.kept_log import KeptLog
from tests.handlers.plan_desk import SharedLookup
from tfs.codec.model_spec import ModelSpec
from tfs.codec.oip.datatype import DATATYPES, raw_contents
from tfs.codec.oip.infer_messages import CONTENTS
from tfs.codec.predict_request import write_predict_request
from tfs.codec.tensor import tensor_view_of
from tfs.core.dtype import BOOL, FLOAT32, STRING, DType
from tfs.core.servable import InferenceTask, OneByOne
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.message_limits import JsonRoom
from tfs.handlers.oip.infer import JSON_BYTES, InferFormat
from tfs.handlers.oip.rest import OipRestHandler
from tfs.handlers.oip.service import INFER, oip_methods
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_bursts import RequestBursts
from tfs.proto.inference import open_inference_grpc_pb2 as pb
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.fake_call import FakeCall


class Echo(OneByOne):
    """Answers each signature, named by a dtype and a rank, with its input."""

    id = ServableId("m", 3)

    def __init__(self) -> None:
        self.signatures = {
            f"{dtype}-{rank}": Signature(
                Method.PREDICT,
                {"x": TensorSpec(dtype, (-1,) * rank)},
                {"y": TensorSpec(dtype, (-1,) * rank)},
                batched=False,
            )
            for dtype in DATATYPES
            for rank in range(4)
        }
        self.tasks: list[InferenceTask] = []

    def submit(self, task: InferenceTask) -> None:
        self.tasks.append(task)
        task.on_done({"y": task.inputs["x"]})


class Desk:
    """The handlers of all forms over one servable."""

    def __init__(self, servable: Echo | None = None) -> None:
        self.servable = servable or Echo()
        self.gate = RequestGate()
        lookup = SharedLookup(self.servable)
        self.predict = PredictHandler(lookup, self.gate)
        form = InferFormat(self.gate.now)
        self.infer = PredictHandler(lookup, self.gate, form=form)
        service: Any = _NoService()
        methods = oip_methods(service, self.infer, DecodePool())
        self.bursts = RequestBursts(self.infer)
        self.rest = OipRestHandler(
            {method.path: method for method in methods},
            JsonRoom(1 << 20),
            self.gate.now,
            self.bursts,
        )
        assert methods[0].path == INFER

    def ask_predict(self, signature: str, view: TensorView) -> TensorView:
        spec = ModelSpec("m", None, None, signature)
        call = FakeCall(write_predict_request(spec, {"x": view}))
        self.predict(call)
        assert isinstance(call.outcome, bytes), call.outcome
        response = predict_pb2.PredictResponse.FromString(call.outcome)
        return tensor_view_of(response.outputs["y"])

    def ask_rpc(self, signature: str, view: TensorView, *, is_raw: bool) -> TensorView:
        message = pb.ModelInferRequest(model_name="m")
        message.parameters["signature_name"].string_param = signature
        proto = message.inputs.add(
            name="x", datatype=DATATYPES[view.dtype], shape=view.shape
        )
        if is_raw:
            message.raw_input_contents.append(bytes(raw_contents(view)))
        else:
            field, code = CONTENTS[view.dtype]
            values = (
                view.strings
                if view.dtype is STRING
                else struct.unpack(f"<{view.num_elements}{code}", view.buffer)
            )
            getattr(proto.contents, field).extend(values)
        call = FakeCall(message.SerializeToString())
        self.infer(call)
        assert isinstance(call.outcome, bytes), call.outcome
        response = pb.ModelInferResponse.FromString(call.outcome)
        (output,) = response.outputs
        assert output.datatype == DATATYPES[view.dtype]
        shape = tuple(output.shape)
        if response.raw_output_contents:
            return self._of_raw(view.dtype, shape, response.raw_output_contents[0])
        field, code = CONTENTS[view.dtype]
        values = tuple(getattr(output.contents, field))
        if view.dtype is STRING:
            return TensorView(STRING, shape, values)
        return TensorView(
            view.dtype, shape, struct.pack(f"<{len(values)}{code}", *values)
        )

    def infer_body(
        self, signature: str, view: TensorView, *, is_binary: bool
    ) -> tuple[bytes, bytes]:
        """Returns the JSON of a request of /infer, and what is behind it."""
        tensor: dict[str, Any] = {
            "name": "x",
            "datatype": DATATYPES[view.dtype],
            "shape": view.shape,
        }
        parameters: dict[str, object] = {"signature_name": signature}
        document = {"inputs": [tensor], "parameters": parameters}
        binary = b""
        if is_binary:
            binary = bytes(raw_contents(view))
            tensor["parameters"] = {"binary_data_size": len(binary)}
            parameters["binary_data_output"] = True
        else:
            tensor["data"] = self._values(view)
        return orjson.dumps(document), binary

    def ask_http(
        self, signature: str, view: TensorView, *, is_binary: bool
    ) -> TensorView:
        text, binary = self.infer_body(signature, view, is_binary=is_binary)
        headers = {JSON_BYTES.lower(): str(len(text))} if is_binary else {}
        call = FakeHttpCall("POST", "/v2/models/m/infer", text + binary, headers)
        self.rest(call)
        assert call.answer is not None, call.outcome
        whole = b"".join(call.answer.body)
        length = int(dict(call.answer.headers).get(JSON_BYTES, len(whole)))
        (output,) = orjson.loads(whole[:length])["outputs"]
        shape = tuple(output["shape"])
        if is_binary:
            return self._of_raw(view.dtype, shape, whole[length:])
        assert output["data"] == self._values(view)
        return TensorView(view.dtype, shape, view.data)

    def _values(self, view: TensorView) -> list[Any]:
        if view.dtype is STRING:
            return [each.decode() for each in view.strings]
        codes = {"float16": "e", "bfloat16": "H"}
        code = codes.get(view.dtype.name) or CONTENTS[view.dtype][1]
        values = struct.unpack(f"<{view.num_elements}{code}", view.buffer)
        if view.dtype.name == "bfloat16":
            return [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in values]
        return list(values)

    def _of_raw(self, dtype: DType, shape: tuple[int, ...], raw: bytes) -> TensorView:
        if dtype is not STRING:
            return TensorView(dtype, shape, raw)
        strings = []
        while raw:
            (size,) = struct.unpack_from("<I", raw)
            strings.append(raw[4 : 4 + size])
            raw = raw[4 + size :]
        return TensorView(STRING, shape, tuple(strings))


class _NoService:
    def __getattr__(self, name: str) -> None:
        return None


@st.composite
def tensors(draw: st.DrawFn) -> TensorView:
    dtype = draw(st.sampled_from(list(DATATYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    num = TensorView(dtype, shape, b"").num_elements
    if dtype is STRING:
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
        texts = draw(st.lists(text, min_size=num, max_size=num))
        return TensorView(STRING, shape, tuple(each.encode() for each in texts))
    if dtype is BOOL:
        return TensorView(
            dtype, shape, bytes(draw(st.integers(0, 1)) for _ in range(num))
        )
    # Small values: whole numbers in all types, and so the same digits in JSON.
    values = draw(st.lists(st.integers(0, 7), min_size=num, max_size=num))
    if dtype.name == "bfloat16":
        parts = [struct.pack("<f", value)[2:] for value in values]
    else:
        code = CONTENTS.get(dtype, ("", "e"))[1]
        parts = [struct.pack(f"<{code}", value) for value in values]
    return TensorView(dtype, shape, b"".join(parts))


DESK = Desk()


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_every_form_gives_the_same_answer(view: TensorView) -> None:
    """Of each dtype and shape that the forms share; the model gets the same tensor."""
    signature = f"{view.dtype}-{len(view.shape)}"
    DESK.servable.tasks.clear()
    assert DESK.ask_predict(signature, view) == view
    assert DESK.ask_rpc(signature, view, is_raw=True) == view
    if view.dtype in CONTENTS:
        assert DESK.ask_rpc(signature, view, is_raw=False) == view
    assert DESK.ask_http(signature, view, is_binary=False) == view
    assert DESK.ask_http(signature, view, is_binary=True) == view
    for task in DESK.servable.tasks:
        assert task.inputs["x"] == view


def test_requests_of_any_form_are_logged_as_predict() -> None:
    """A log holds the messages of Predict, with the model's name and all tensors."""
    desk, log = Desk(), KeptLog()
    desk.gate.set_logs({"m": (log,)})
    view = TensorView(BOOL, (2,), b"\1\0")
    desk.ask_predict("bool-1", view)
    desk.ask_rpc("bool-1", view, is_raw=True)
    desk.ask_http("bool-1", view, is_binary=False)
    assert len(log.entries) == 3
    for entry in log.entries:
        request = predict_pb2.PredictRequest.FromString(entry.request)
        response = predict_pb2.PredictResponse.FromString(entry.response)
        assert request.model_spec.signature_name == "bool-1"
        assert tensor_view_of(request.inputs["x"]) == view
        assert tensor_view_of(response.outputs["y"]) == view


def test_parameters_reach_the_task() -> None:
    """A timeout is a deadline, a priority beyond 1 gives way."""
    desk = Desk()
    text = orjson.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
            "parameters": {
                "signature_name": "float32-1",
                "priority": 3,
                "timeout": 5_000_000,
            },
        }
    )
    begun_s = desk.gate.now()
    desk.rest(FakeHttpCall("POST", "/v2/models/m/versions/3/infer", text))
    (task,) = desk.servable.tasks
    assert task.is_low
    assert task.deadline_s is not None
    assert begun_s + 5 <= task.deadline_s <= desk.gate.now() + 5


def test_the_length_of_the_json_must_lie_within_the_body() -> None:
    """A longer one, or one that is no number, is a bad request."""
    desk = Desk()
    for length in ("100", "-1", "1e1", "9" * 40):
        call = FakeHttpCall(
            "POST", "/v2/models/m/infer", b"{}", {JSON_BYTES.lower(): length}
        )
        desk.rest(call)
        assert "and the body has 2 bytes" in str(call.outcome)


def test_requests_without_inputs_are_answered_one_by_one() -> None:
    """There are no elements in which they could differ."""
    desk = Desk()
    text = b'{"inputs": [], "parameters": {"signature_name": "%b", "%b": true}}'
    body = text % (b"float32-2", b"binary_data_output")
    for _ in range(2):
        call = FakeHttpCall("POST", "/v2/models/m/infer", body)
        assert desk.bursts.take([call]) == [call]
        desk.rest(call)
        assert "Missing but required: {x}" in str(call.outcome)


@pytest.mark.parametrize("outputs", [None, "y"])
def test_requests_over_http_that_come_together_are_answered_together(
    outputs: str | None,
) -> None:
    """Binary ones of one head, each with its own elements; of the others each alone."""
    desk = Desk()
    calls = []
    for index in range(4):
        is_binary = index < 3
        view = TensorView(FLOAT32, (1, 2), struct.pack("<2f", index, -index))
        text, binary = desk.infer_body("float32-2", view, is_binary=is_binary)
        if outputs:
            document = orjson.loads(text)
            document["parameters"].pop("binary_data_output", None)
            document["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
            text = orjson.dumps(document)
        headers = {JSON_BYTES.lower(): str(len(text))} if is_binary else {}
        calls.append(FakeHttpCall("POST", "/v2/models/m/infer", text + binary, headers))
    desk.rest(calls[0])
    assert desk.bursts.take(calls[1:]) == calls[3:]
    for index, call in enumerate(calls[:3]):
        assert call.answer is not None, call.outcome
        assert call.answer.content_type == "application/octet-stream"
        whole = call.reply_bytes()
        length = int(dict(call.answer.headers)[JSON_BYTES])
        document = orjson.loads(whole[:length])
        assert document["outputs"] == [
            {
                "name": "y",
                "datatype": "FP32",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 8},
            }
        ]
        assert whole[length:] == struct.pack("<2f", index, -index)
