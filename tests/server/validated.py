"""What versions are validated by, and versions made for it; shared by tests."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.models.served import Scale
from tfs.codec.tfrecord import frame
from tfs.export import Packaging, save
from tfs.export.publish import write_beside
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis.prediction_log_pb2 import PredictionLog


def write_requests(path: Path, num: int = 3, width: int = 2) -> str:
    """Writes a log of requests for rows of ones; returns its path."""
    entry = PredictionLog()
    request = entry.predict_log.request
    request.model_spec.name = "somebody"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (1, width):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([1.0] * width)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frame(entry.SerializeToString()) * num)
    return str(path)


def write_statistics(folder: Path, values: list[float]) -> None:
    """Writes the figures of the input x of a version, as the exporter does."""
    folder.mkdir(parents=True, exist_ok=True)
    write_beside(str(folder), None, Packaging(statistics={"x": values}))


def save_for(base_path: Path, values: list[float], factor: float = 1.0) -> None:
    """Saves the next version, made for such inputs, that multiplies by this factor."""
    example = {"x": torch.rand(2, 2)}
    made_for = Packaging(statistics={"x": values})
    save(Scale(factor).eval(), example, base_path, packaging=made_for)
