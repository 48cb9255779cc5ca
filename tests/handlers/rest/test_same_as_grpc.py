"""A model answers the same, in whatever form it is asked; and its logs say the same."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.handlers.fake_http_call import FakeHttpCall
from tests.handlers.kept_log import KeptLog
from tests.handlers.served import EchoServable, OneModel
from tfs.codec.json.packed import parse_msgpack, parse_npy, write_msgpack, write_npy
from tfs.codec.json.predict_body import Layout, PredictBody
from tfs.codec.json.tensor_writer import write_predict_reply
from tfs.codec.tensor import fill_tensor_proto, tensor_view_of
from tfs.core.call import Handler, RpcMethod
from tfs.core.dtype import DTYPES, STRING
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.servable import InferenceTask, Servable, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import LARGE_BYTES, TensorView
from tfs.handlers import example_rpc
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.message_limits import JsonRoom
from tfs.handlers.predict import PredictHandler
from tfs.handlers.rest.handler import RestHandler
from tfs.handlers.service_names import MODEL, PREDICTION
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.testing.fake_call import FakeCall

PATH = "/v1/models/m:predict"
NAME = "x_bytes"  # so that strings may be any bytes
NAMES = sorted(name for name in DTYPES if not name.startswith("float8"))
FLOATS = {"float16": 16, "float32": 32, "float64": 64, "complex64": 32}


class Mirror(EchoServable):
    """Its output is its input."""

    def __init__(self, signature: Signature) -> None:
        super().__init__()
        self.signatures = {"serving_default": signature}  # type: ignore[misc]

    def _outputs(self, task: InferenceTask) -> Tensors:
        return dict(task.inputs)


@st.composite
def tensors(draw: st.DrawFn) -> TensorView:
    """Draws tensors of every dtype, of all shapes that lists can show."""
    dtype = DTYPES[draw(st.sampled_from(NAMES))]
    shape: tuple[int, ...] = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    has_none = draw(st.booleans())
    if shape and has_none:
        shape = (*shape, 0)
    size = int(np.prod(shape, dtype=int))
    if dtype is STRING:
        return TensorView(
            dtype, shape, tuple(draw(st.binary(max_size=4)) for _ in range(size))
        )
    if dtype.name == "bool":
        return TensorView(dtype, shape, bytes(draw(st.booleans()) for _ in range(size)))
    if dtype.name == "bfloat16":
        parts = [draw(st.integers(0, 0x7F80)) for _ in range(size)]
        return TensorView(dtype, shape, struct.pack(f"<{size}H", *parts))
    values: list[Any]
    if dtype.name in ("complex64", "complex128"):
        width = FLOATS.get(dtype.name, 64)
        part = st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]
        values = [complex(draw(part), draw(part)) for _ in range(size)]
    elif dtype.name in FLOATS:
        element = st.floats(width=FLOATS[dtype.name], allow_nan=False)  # type: ignore[arg-type]
        values = [draw(element) for _ in range(size)]
    else:
        limits = np.iinfo(dtype.name)
        values = [
            draw(st.integers(int(limits.min), int(limits.max))) for _ in range(size)
        ]
    return TensorView(dtype, shape, np.array(values, dtype.name).tobytes())


def signature_of(view: TensorView) -> Signature:
    spec = TensorSpec(view.dtype, (-1,) * len(view.shape))
    batched = bool(view.shape)
    return Signature(Method.PREDICT, {NAME: spec}, {NAME: spec}, batched=batched)


class SharedModel(OneModel):
    """Lets requests share pins, as the server's lookup does."""

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        for _ in range(num):
            self.look_at(name, version, label)
        return self.handle


def handler_of(view: TensorView, gate: RequestGate | None = None) -> PredictHandler:
    """Returns what answers tensors like this with themselves."""
    models = SharedModel()
    models.servable = Mirror(signature_of(view))
    models.handle.servable = models.servable
    return PredictHandler(models, gate)


def elements_of(view: TensorView) -> object:
    return view.strings if view.dtype is STRING else bytes(view.buffer)


def no_rpc(*call: object) -> None:
    """Stands for the handlers of other RPCs."""
    raise AssertionError(call)


def rest_over(predict: PredictHandler, **others: Handler) -> RestHandler:
    """Returns the REST API over handlers of PredictionService; no others are called."""
    handlers: dict[str, Handler] = {
        f"/{PREDICTION}/Predict": predict,
        f"/{MODEL}/GetModelStatus": no_rpc,
    }
    for name in ("Classify", "Regress", "GetModelMetadata"):
        handlers[f"/{PREDICTION}/{name}"] = others.get(name, no_rpc)
    methods = {path: RpcMethod(path, handler) for path, handler in handlers.items()}
    return RestHandler(methods, JsonRoom(1 << 20), no_rpc)


def message_of(view: TensorView) -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    fill_tensor_proto(request.inputs[NAME], view)
    return request.SerializeToString()


def over_grpc(handler: PredictHandler, view: TensorView) -> TensorView:
    call = FakeCall(message_of(view))
    handler(call)
    reply = predict_pb2.PredictResponse.FromString(call.reply_bytes())
    return tensor_view_of(reply.outputs[NAME])


def as_json(view: TensorView) -> bytes:
    body = write_predict_reply({NAME: view}, Layout.COLUMNS)
    return body.replace(b'"outputs"', b'"inputs"', 1)


def from_json(body: bytes, signature: Signature) -> TensorView:
    sent = body.replace(b'"outputs"', b'"inputs"', 1)
    return PredictBody.parse(sent).read(signature)[NAME]


def as_msgpack(view: TensorView) -> bytes:
    document = msgpack.unpackb(write_msgpack({NAME: view}))
    return msgpack.packb({"inputs": document["outputs"]})  # type: ignore[no-any-return]


def from_msgpack(body: bytes, signature: Signature) -> TensorView:
    document = msgpack.unpackb(body)
    sent = msgpack.packb({"inputs": document["outputs"]})
    return parse_msgpack(sent).read(signature)[NAME]


def as_npy(view: TensorView) -> bytes:
    return b"".join(map(bytes, write_npy({NAME: view})))


def from_npy(body: bytes, signature: Signature) -> TensorView:
    return parse_npy(body).read(signature)[NAME]


def from_message(body: bytes, _signature: Signature) -> TensorView:
    reply = predict_pb2.PredictResponse.FromString(body)
    return tensor_view_of(reply.outputs[NAME])


FORMS: Mapping[
    str,
    tuple[Callable[[TensorView], bytes], Callable[[bytes, Signature], TensorView]],
] = {
    "application/json": (as_json, from_json),
    "application/msgpack": (as_msgpack, from_msgpack),
    "application/x-npy": (as_npy, from_npy),
    "application/x-protobuf": (message_of, from_message),
}


@given(view=tensors(), form=st.sampled_from(sorted(FORMS)))
def test_every_form_says_the_same_as_grpc(view: TensorView, form: str) -> None:
    """Every dtype and shape that a form can express, there and back."""
    handler = handler_of(view)
    write, read = FORMS[form]
    if form == "application/x-npy" and view.dtype.name in ("string", "bfloat16"):
        with pytest.raises(Unimplemented):
            write(view)
        return
    expected = over_grpc(handler, view)
    rest = rest_over(handler)
    calls = [
        FakeHttpCall("POST", PATH, write(view), {"content-type": form})
        for _ in range(3)
    ]
    rest(calls[0])
    for left in rest.take_alike(calls[1:]):
        rest(left)
    for call in calls:
        found = read(call.reply_bytes(), signature_of(view))
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert elements_of(found) == elements_of(expected) == elements_of(view)
        assert call.answer is not None
        assert call.answer.content_type == form


def pair_of(*values: float) -> TensorView:
    return TensorView(DTYPES["float32"], (1, 2), struct.pack("<2f", *values))


def known(
    form: str = "application/json", path: str = PATH, view: TensorView | None = None
) -> RestHandler:
    """Returns a handler that has answered a request of that form."""
    view = view or pair_of(1, 2)
    rest = rest_over(handler_of(view))
    call = FakeHttpCall("POST", path, FORMS[form][0](view), {"content-type": form})
    rest(call)
    assert call.reply_bytes()
    return rest


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"application/x-protobuf"}))
def test_requests_that_arrive_together_are_started_together(form: str) -> None:
    """Each gets its own answer; one of a shape that nobody sent yet may be left."""
    write, read = FORMS[form]
    views = [pair_of(index, -index) for index in range(3)]
    views.append(TensorView(DTYPES["float32"], (2, 2), struct.pack("<4f", *range(4))))
    calls = [
        FakeHttpCall("POST", PATH, write(view), {"content-type": form})
        for view in views
    ]
    rest = known(form)
    left = rest.take_alike(calls)
    assert left in ([], calls[3:])
    for call in left:
        rest(call)
    for call, view in zip(calls, views, strict=True):
        assert read(call.reply_bytes(), signature_of(view)) == view


def test_the_sizes_in_a_npy_head_are_numbers() -> None:
    """True, which numpy's reader takes for one, went on to the model."""
    view = TensorView(DTYPES["float32"], (1, 2), bytes(8))
    body = as_npy(view).replace(b"(1, 2), }   ", b"(True, 2), }")
    read = parse_npy(body).read(signature_of(view))[NAME]
    assert [type(size) for size in read.shape] == [int, int]
    assert read == view


def test_what_json_could_not_show_is_the_clients_error_all_the_same() -> None:
    """In MessagePack, bytes may name members."""
    with pytest.raises(InvalidArgument, match="JSON Value: Object Expecting"):
        parse_msgpack(msgpack.packb({"instances": {b"x": 1}}))


@pytest.mark.parametrize("num", [100, LARGE_BYTES // 4 + 1])
@pytest.mark.parametrize("form", ["application/msgpack", "application/x-npy"])
def test_large_requests_are_not_learned(form: str, num: int) -> None:
    """They gain nothing by coming together, and looking at all their bytes costs much."""
    view = TensorView(DTYPES["float32"], (1, num), bytes(4 * num))
    call = FakeHttpCall("POST", PATH, FORMS[form][0](view), {"content-type": form})
    left = known(form, view=view).take_alike([call])
    assert left == ([call] if view.size_bytes > LARGE_BYTES else [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"instances": []}',
        b'{"instances": [[1, 2], [3]]}',
        b'{"instances": [["a", 2]]}',
        b'{"instances": [[true, 2]]}',
        b'{"instances": [[null, 2]]}',
        b'{"instances": [{"x_bytes": [1, 2]}]}',
        b'{"signature_name": "serving_default", "instances": [[1, 2]]}',
        b'{"instances": [[1, 2]], "instances": [[3, 4]]}',
        b'{"inputs": [[1, 2]], "instances": [[3, 4]]}',
        b'{"instances": [[NaN, 2]]}',
        b'{"instances": [[1, 2, 3], [4, 5, 6]]}',
        b'{"instances": [[[1, 2]]]}',
    ],
)
def test_what_is_not_plain_is_answered_as_if_it_came_alone(body: bytes) -> None:
    """Errors say the same, and good requests beside it are answered."""
    rest = known()
    headers = {"content-type": "application/json"}
    alone = FakeHttpCall("POST", PATH, body, headers)
    rest(alone)
    calls = [
        FakeHttpCall("POST", PATH, each, headers)
        for each in (as_json(pair_of(1, 2)), body, as_json(pair_of(3, 4)))
    ]
    for left in rest.take_alike(calls):
        rest(left)
    assert str(calls[1].outcome) == str(alone.outcome)
    assert calls[0].document == {"outputs": [[1, 2]]}
    assert calls[2].document == {"outputs": [[3, 4]]}


def test_heads_that_ask_for_more_are_never_taken_together() -> None:
    """Results per item, and low priority, have ways of their own."""
    body = b'{"instances": [[1, 2]]}'
    for path, headers in (
        (f"{PATH}?per_item=true", {}),
        (PATH, {"tfs-priority": "low"}),
    ):
        rest = known()
        calls = [FakeHttpCall("POST", path, body, headers) for _ in range(2)]
        rest(calls[0])
        assert rest.take_alike(calls[1:]) == calls[1:]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_what_came_over_http_is_logged_as_grpcs_messages(form: str) -> None:
    """A log is replayed, and read by other tools, whatever its requests came by."""
    view = TensorView(DTYPES["float32"], (2, 1), struct.pack("<2f", 1, 2))
    log, gate = KeptLog(), RequestGate()
    gate.set_logs({"m": (log,)})
    handler = handler_of(view, gate)
    path = "/v1/models/m/versions/3:predict"
    call = FakeHttpCall("POST", path, FORMS[form][0](view), {"content-type": form})
    rest_over(handler)(call)
    assert call.reply_bytes()
    (entry,) = log.entries
    assert entry[:4] == ("Predict", "m", 3, "serving_default")
    request = predict_pb2.PredictRequest.FromString(entry.request)
    assert (request.model_spec.name, request.model_spec.version.value) == ("m", 3)
    assert tensor_view_of(request.inputs[NAME]) == view
    reply = predict_pb2.PredictResponse.FromString(entry.response)
    assert reply.model_spec.version.value == 3
    assert tensor_view_of(reply.outputs[NAME]) == view


def test_regress_takes_examples() -> None:
    """Its results are values (Regress)."""
    models = OneModel()
    regress = ExampleHandler(models, example_rpc.REGRESS)
    handler = rest_over(PredictHandler(models), Regress=regress)
    body = b'{"signature_name": "regress", "examples": [{"x": [80.0, 1.0]}, {"x": [1.0, 2.0]}]}'
    call = FakeHttpCall("POST", "/v1/models/m/versions/3:regress", body)
    handler(call)
    assert call.reply_bytes() == b'{"results":[80.0,1.0]}'


def test_a_document_that_does_not_end_in_its_elements_is_read_each_time() -> None:
    """Even if it ends in the same bytes: they may differ in the next one."""
    elements = struct.pack("<2f", 1, 2)
    tensor = {"dtype": "float32", "shape": [1, 2], "data": elements}
    rest, headers = known(), {"content-type": "application/msgpack"}
    sent = [
        msgpack.packb({"inputs": tensor, "note": note})
        for note in (elements, struct.pack("<2f", 3, 4))
    ]
    for body in sent:
        call = FakeHttpCall("POST", PATH, body, headers)
        for left in rest.take_alike([call]):
            rest(left)
        found = from_msgpack(call.reply_bytes(), signature_of(pair_of(1, 2)))
        assert elements_of(found) == elements
