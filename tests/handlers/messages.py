"""Requests about the model `m`, and request logs of them, as bytes."""

from __future__ import annotations

import struct

from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_log_pb2,
)


def predict_message(model: str = "m", num_rows: int = 2) -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    tensor = message.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (num_rows, 2):
        tensor.tensor_shape.dim.add(size=size)
    values = range(1, 2 * num_rows + 1)
    tensor.tensor_content = struct.pack(f"<{2 * num_rows}f", *values)
    return message.SerializeToString()


def classify_message(num_rows: int = 3) -> bytes:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = "classify"
    for _ in range(num_rows):
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.extend((0.5, 0.5))
    return request.SerializeToString()


def multi_message(num_rows: int = 3) -> bytes:
    message = classify_message(num_rows)
    one = classification_pb2.ClassificationRequest.FromString(message)
    request = inference_pb2.MultiInferenceRequest(input=one.input)
    for kind in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{kind}")
        task.model_spec.name = "m"
        task.model_spec.signature_name = kind
    return request.SerializeToString()


def predict_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.ParseFromString(predict_message("another model"))
    log.predict_log.request.model_spec.version.value = 77
    return log.SerializeToString()


def classify_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.classify_log.request.ParseFromString(classify_message())
    return log.SerializeToString()


def regress_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.regress_log.request.ParseFromString(classify_message())
    log.regress_log.request.model_spec.signature_name = "regress"
    return log.SerializeToString()


def multi_log() -> bytes:
    log = prediction_log_pb2.PredictionLog()
    log.multi_inference_log.request.ParseFromString(multi_message())
    return log.SerializeToString()
