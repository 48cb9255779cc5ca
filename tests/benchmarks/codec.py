"""Predict's codec alone: bytes in, tensors, bytes out, beside protobuf's objects.

The identity on one tensor, so that every byte read is written again. The baseline does
the same with message objects and `tensor_content`, the fastest they offer.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.row import Goal, Row
from tfs.codec import predict_template
from tfs.codec.predict import read_predict_request, write_predict_reply
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

SHAPES = {"tiny": (1, 4), "4kb": (1, 1024), "image": (1, 3, 224, 224)}

ROWS = (
    Row("codec/predict/tiny", "us"),
    Row("codec/predict/4kb", "us"),
    Row("codec/predict/image", "us", Goal("value", "<=", 74.0)),
    Row("codec/first-sight/tiny", "us"),
    Row("codec/int64-field/128-tokens", "us"),
)

_SAMPLE_S = 0.05


def make_request(shape: tuple[int, ...], *, as_content: bool) -> bytes:
    """Returns a PredictRequest with one float32 tensor."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "identity"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    num_elements = 1
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
        num_elements *= size
    values = [index * 0.5 for index in range(num_elements)]
    if as_content:
        tensor.tensor_content = struct.pack(f"<{num_elements}f", *values)
    else:
        tensor.float_val.extend(values)
    return request.SerializeToString()


def make_token_request(num_tokens: int) -> bytes:
    """Returns a PredictRequest with int64 tokens in the typed field."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "identity"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_INT64
    tensor.tensor_shape.dim.add(size=1)
    tensor.tensor_shape.dim.add(size=num_tokens)
    tensor.int64_val.extend(index * 237 for index in range(num_tokens))
    return request.SerializeToString()


def answer(message: bytes) -> bytes:
    """Decodes and encodes with the codec."""
    view = read_predict_request(message)
    reply = write_predict_reply(
        "identity", 1, "serving_default", {"y": view.inputs["x"]}
    )
    return reply if isinstance(reply, bytes) else b"".join(reply)


def answer_at_first_sight(message: bytes) -> bytes:
    """As `answer`, with nothing remembered of earlier requests."""
    predict_template.forget()
    return answer(message)


def answer_with_objects(message: bytes) -> bytes:
    """Decodes and encodes with message objects."""
    request = predict_pb2.PredictRequest.FromString(message)
    given = request.inputs["x"]
    shape = [dim.size for dim in given.tensor_shape.dim]
    response = predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = 1
    response.model_spec.signature_name = "serving_default"
    tensor = response.outputs["y"]
    tensor.dtype = given.dtype
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    if given.tensor_content:
        tensor.tensor_content = given.tensor_content
    else:
        tensor.int64_val.extend(given.int64_val[:])
    return response.SerializeToString()


def is_right(reply: bytes, message: bytes) -> bool:
    """Whether the reply holds the request's tensor."""
    request = predict_pb2.PredictRequest.FromString(message).inputs["x"]
    tensor = predict_pb2.PredictResponse.FromString(reply).outputs["y"]
    if tensor.dtype == types_pb2.DT_FLOAT:
        count = 1
        for dim in tensor.tensor_shape.dim:
            count *= dim.size
        values = tensor.float_val[:] or struct.unpack(
            f"<{count}f", tensor.tensor_content
        )
        return list(values) == [index * 0.5 for index in range(count)]
    return list(tensor.int64_val) == list(request.int64_val)


def timed(function: Callable[[bytes], bytes], message: bytes) -> Sample:
    """Returns the CPU time of one call, from as many as fill a sample."""
    num_calls = 1
    while True:
        started_s = time.thread_time()
        for _ in range(num_calls):
            function(message)
        elapsed_s = time.thread_time() - started_s
        if elapsed_s >= _SAMPLE_S:
            return {"cpu_us": elapsed_s / num_calls * 1e6}
        num_calls *= 2


def compare(
    report: Report,
    name: str,
    function: Callable[[bytes], bytes],
    message: bytes,
    plain: bytes,
) -> None:
    """Records one row: `function` on `message` beside message objects on `plain`."""
    results_ok = is_right(function(message), message)
    results_ok &= is_right(answer_with_objects(plain), plain)
    runs = interleave(
        {
            "codec": lambda: timed(function, message),
            "objects": lambda: timed(answer_with_objects, plain),
        },
        num_rounds=9,
    )
    report.record(
        name,
        runs["codec"]["cpu_us"],
        runs["objects"]["cpu_us"],
        results_ok=results_ok,
    )


def measure_predict(report: Report) -> None:
    """Each size, as clients that send it again and again see it."""
    for name, shape in SHAPES.items():
        message = make_request(shape, as_content=False)
        plain = make_request(shape, as_content=True)
        compare(report, f"codec/predict/{name}", answer, message, plain)


def measure_the_rest(report: Report) -> None:
    """What has no template: a message never seen, and numbers that need unpacking."""
    message = make_request(SHAPES["tiny"], as_content=False)
    plain = make_request(SHAPES["tiny"], as_content=True)
    compare(report, "codec/first-sight/tiny", answer_at_first_sight, message, plain)
    tokens = make_token_request(128)
    compare(report, "codec/int64-field/128-tokens", answer, tokens, tokens)


AREA = Area("codec", ROWS, (measure_predict, measure_the_rest), time_limit_s=300.0)

if __name__ == "__main__":
    raise SystemExit(main(AREA))
