"""What both servers are asked: the conformance table, each model's calls, and mutations.

The same seed gives the same requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tests.clients import table
from tests.codec.samples import content_proto, typed_proto
from tfs.core.dtype import BFLOAT16, FLOAT32, INT32, INT64, STRING, DType
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

SEED: Final = 20261128
NUM_MUTATIONS: Final = 5
PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
METADATA: Final = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS: Final = "/tensorflow.serving.ModelService/GetModelStatus"

Spec: TypeAlias = tuple[DType, tuple[int, ...]]
Inputs: TypeAlias = Mapping[str, TensorView]

_X: Final = {"x": (FLOAT32, (-1, 4))}
PREDICTS: Final[tuple[tuple[str, str, Mapping[str, Spec]], ...]] = (
    ("digits", "", _X),
    ("digits", "embed", _X),
    ("prices", "", {"rooms": (FLOAT32, (-1, 3)), "bias": (FLOAT32, (-1, 1))}),
    ("prices", "", {"rooms": (FLOAT32, (-1, 3))}),
    ("graph", "", {"rooms": (FLOAT32, (-1, 3)), "bias": (FLOAT32, (-1, 1))}),
    ("graph", "", {"rooms": (FLOAT32, (-1, 3))}),
    ("script", "", {"input": (FLOAT32, (-1, 4))}),
    ("tokens", "", {"ids": (INT64, (-1, 7)), "mask": (INT64, (-1, 7))}),
    ("whole", "", {"x": (FLOAT32, (6,))}),
    ("mixing", "", _X),
    ("lengths", "", {"text": (STRING, (-1,))}),
    ("skus", "", {"sku": (STRING, (-1,))}),
    ("damaged", "", _X),
    ("empty", "", _X),
)
"""Model, signature, and its inputs; -1 is the batch."""

MODELS: Final = sorted({model for model, _, _ in PREDICTS} | {table.MODEL})

_WORDS: Final = (b"A1", b"B2", b"", b"fail", b"\xff\x00", "größer".encode(), b"z" * 99)


@dataclass(frozen=True, slots=True)
class Request:
    """One call. Immutable.

    Attributes:
        name: What it is called in the report.
        path: The method.
        message: As sent.
        is_exact: Whether its answer is the same whatever it is joined with.

    """

    name: str
    path: str
    message: bytes
    is_exact: bool = True


def requests() -> list[Request]:
    """Returns all requests, in the order in which they are made."""
    whole = [*_table(), *_predicts(), *_examples(), *_reads()]
    return [*whole, *_mutated(whole)]


def _table() -> Iterator[Request]:
    for case in table.cases():
        yield Request(f"table: {case.name}", case.path, case.message)


def _tensor(spec: Spec, num_rows: int, chance: np.random.Generator) -> TensorView:
    dtype, sizes = spec
    shape = tuple(num_rows if size == -1 else size for size in sizes)
    count = int(np.prod(shape))
    if dtype is STRING:
        picked = chance.integers(0, len(_WORDS), count)
        return TensorView(STRING, shape, tuple(_WORDS[index] for index in picked))
    if dtype in (INT64, INT32):
        values = chance.integers(0, 60, count).astype(dtype.name)
    else:
        kept = "float16" if dtype is BFLOAT16 else "float32"
        values = chance.normal(size=count).astype(kept)
    return TensorView(dtype, shape, values.tobytes())


def _predict(model: str, signature: str, inputs: Inputs, *, typed: bool) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, view in inputs.items():
        is_typed = view.dtype is STRING or (typed and len(view.data) < 128)
        encoded = typed_proto if is_typed else content_proto
        request.inputs[name].CopyFrom(encoded(view))
    return request


def _predicts() -> Iterator[Request]:
    chance = np.random.default_rng(SEED)
    for model, signature, specs in PREDICTS:
        start = f"{model} {signature} {len(specs)}"
        exact = model in ("lengths", "skus", "whole")
        for num_rows in (1, 2, 5, 0, 9):
            inputs = {name: _tensor(s, num_rows, chance) for name, s in specs.items()}
            for typed in (True, False):
                message = _predict(model, signature, inputs, typed=typed)
                name = f"{start}: {num_rows} rows, {'typed' if typed else 'content'}"
                yield Request(
                    name, PREDICT, message.SerializeToString(deterministic=True), exact
                )
        inputs = {name: _tensor(spec, 2, chance) for name, spec in specs.items()}
        for name, request in _varied(model, signature, inputs):
            sent = request.SerializeToString(deterministic=True)
            yield Request(f"{start}: {name}", PREDICT, sent, exact)


def _varied(model: str, signature: str, inputs: Inputs) -> Iterator[tuple[str, Any]]:
    """Yields a valid request's variations, most of which must be refused."""

    def changed(**others: TensorView) -> Any:
        return _predict(model, signature, {**inputs, **others}, typed=False)

    chance = np.random.default_rng(SEED)
    first, view = next(iter(inputs.items()))
    for dtype in (FLOAT32, INT64, BFLOAT16, STRING):
        yield (
            f"as {dtype.name}",
            changed(**{first: _tensor((dtype, (2, 4)), 2, chance)}),
        )
    for shape in ((), (3,), (1, 1, 4), (2, 9), (0, 0)):
        yield (
            f"shaped {shape}",
            changed(**{first: _tensor((view.dtype, shape), 1, chance)}),
        )
    yield "an input too many", changed(other=view)
    for name in inputs:
        rest = {key: each for key, each in inputs.items() if key != name}
        yield f"without {name}", _predict(model, signature, rest, typed=False)
    for version in (1, 2, 9, 0, -1):
        request = changed()
        request.model_spec.version.value = version
        yield f"version {version}", request
    for label in ("stable", "old", "none"):
        request = changed()
        request.model_spec.version_label = label
        yield f"label {label}", request
    for output in ("length", "scores", "parts.0", "y"):
        request = changed()
        request.output_filter.append(output)
        yield f"only {output}", request
    yield "no such signature", _predict(model, "ghost", inputs, typed=False)


def _examples() -> Iterator[Request]:
    rows = ([0.5, -1, 2, 0], [1, 1, 1, 1], [0, 0.25, 0, 3])
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("Classify", classification_pb2.ClassificationRequest, "classify"),
        ("Regress", regression_pb2.RegressionRequest, "regress"),
        ("MultiInference", inference_pb2.MultiInferenceRequest, ""),
    )
    for kind, made, _ in kinds:
        for model, feature in (
            ("digits", "x"),
            ("prices", "size"),
            ("graph", "size"),
            ("tokens", "words"),
        ):
            for num_rows, width in ((1, 4), (3, 4), (3, 3), (2, 1), (0, 0)):
                request = made()
                if kind == "MultiInference":
                    for task in ("classify", "regress"):
                        added = request.tasks.add(
                            method_name=f"tensorflow/serving/{task}"
                        )
                        added.model_spec.name = model
                else:
                    request.model_spec.name = model
                for row in rows[:num_rows]:
                    example = request.input.example_list.examples.add()
                    values = example.features.feature[feature]
                    values.float_list.value.extend(row[:width])
                path = f"/tensorflow.serving.PredictionService/{kind}"
                name = f"{kind} {model}: {num_rows} of {width}"
                yield Request(
                    name, path, request.SerializeToString(deterministic=True), False
                )


def _reads() -> Iterator[Request]:
    for model in (*MODELS, "absent"):
        metadata = get_model_metadata_pb2.GetModelMetadataRequest()
        metadata.model_spec.name = model
        metadata.metadata_field.append("signature_def")
        yield Request(f"metadata of {model}", METADATA, metadata.SerializeToString())
        status = get_model_status_pb2.GetModelStatusRequest()
        status.model_spec.name = model
        yield Request(f"status of {model}", STATUS, status.SerializeToString())
        for version in (1, 7):
            status.model_spec.version.value = version
            name = f"status of {model} {version}"
            yield Request(name, STATUS, status.SerializeToString())


def _mutated(whole: list[Request]) -> Iterator[Request]:
    """Bytes flipped, cut out, put in twice: what no client writes."""
    chance = random.Random(SEED)
    for request in whole:
        if len(request.message) > 4096 or "Reload" in request.path:
            continue
        for number in range(NUM_MUTATIONS):
            sent = _mutate(request.message, chance)
            name = f"{request.name}, mutated {number}"
            yield Request(name, request.path, sent, request.is_exact)


def _mutate(message: bytes, chance: random.Random) -> bytes:
    mutated = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(mutated) + 1)
        end = min(len(mutated), start + chance.randint(1, 8))
        match chance.randrange(5):
            case 0 if start < len(mutated):
                mutated[start] ^= 1 << chance.randrange(8)
            case 1:
                del mutated[start:end]
            case 2:
                mutated[start:start] = mutated[start:end]
            case 3:
                mutated[start:start] = chance.randbytes(chance.randint(1, 4))
            case _:
                del mutated[start:]
    return bytes(mutated)
