"""The calls a client can make: their paths, requests, and how replies are read. No I/O."""

from __future__ import annotations

import contextlib
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from tfs.client.arrays import as_array, as_bytes, fill_tensor, read_tensor
from tfs.client.results import (
    Classification,
    Label,
    ModelMetadata,
    Prediction,
    Regression,
    SignatureInfo,
    TensorInfo,
    VersionStatus,
)
from tfs.codec.tensor import BY_NUMBER
from tfs.core.errors import Code, InvalidArgument, Unknown
from tfs.proto.tensorflow.core.example import example_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

R = TypeVar("R")

PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
CLASSIFY: Final = "/tensorflow.serving.PredictionService/Classify"
REGRESS: Final = "/tensorflow.serving.PredictionService/Regress"
MULTI_INFERENCE: Final = "/tensorflow.serving.PredictionService/MultiInference"
METADATA: Final = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS: Final = "/tensorflow.serving.ModelService/GetModelStatus"

Features = Mapping[str, object]
"""One example: numbers, strings, bytes or lists of them by feature name."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which model, and which version or label of it (at most one of the two)."""

    model: str
    version: int | None = None
    label: str | None = None
    signature: str = ""

    def fill(self, spec: model_pb2.ModelSpec) -> None:
        """Writes the target into a request's model spec."""
        if self.version is not None and self.label is not None:
            raise InvalidArgument("name a version or a label, not both")
        spec.name = _text(self.model, "a model's name")
        spec.signature_name = _text(self.signature, "a signature's name")
        if self.version is not None:
            try:
                spec.version.value = self.version
            except (TypeError, ValueError) as error:  # protobuf's words name no field
                raise InvalidArgument(
                    f"version must be a whole number of 64 bits: {self.version!r}"
                ) from error
        if self.label is not None:
            spec.version_label = _text(self.label, "a label")


@dataclass(frozen=True, slots=True)
class Rpc(Generic[R]):
    """One call, ready to be made by either client. Immutable.

    Attributes:
        method: The RPC's path.
        message: The serialized request.
        read: Turns the serialized reply into the result.
        inputs: The names of the inputs, which are then told how to have another dtype.

    """

    method: str
    message: bytes
    read: Callable[[bytes], R]
    inputs: Collection[str] = ()


@contextlib.contextmanager
def _refusing_what_is_no_text() -> Iterator[None]:
    """Turns errors over halves of surrogate pairs into one that names them."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{error.object[:40]!r} is no text that can be sent: it is not Unicode"
        ) from error


def _text(value: object, what: str) -> str:
    """Returns a text; protobuf's error for anything else does not name it.

    Raises:
        InvalidArgument: It is none.

    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is a text, not {value!r:.40}")
    return value


@_refusing_what_is_no_text()
def predict(
    target: Target,
    inputs: Mapping[str, object],
    outputs: Sequence[str] = (),
    routing_key: str | bytes = "",
) -> Rpc[Prediction]:
    """Returns the call that runs a signature on ``inputs``; no ``outputs`` means all."""
    if not isinstance(inputs, Mapping):
        raise InvalidArgument(
            f"inputs are a dict, from each input's name to its value: {inputs!r:.40}"
        )
    if isinstance(outputs, str):  # a sequence too, of names of one letter
        outputs = (outputs,)
    if not isinstance(outputs, Iterable):
        raise InvalidArgument(f"outputs are names, in a list: {outputs!r:.40}")
    if not isinstance(routing_key, str | bytes | None):
        raise InvalidArgument(f"a routing key is a text or bytes: {routing_key!r:.40}")
    request = predict_pb2.PredictRequest(
        output_filter=[_text(name, "an output's name") for name in outputs]
    )
    target.fill(request.model_spec)
    if routing_key:
        request.client_id = (
            routing_key.encode() if isinstance(routing_key, str) else routing_key
        )
    for name, value in inputs.items():
        fill_tensor(request.inputs[_text(name, "an input's name")], value, name)
    return Rpc(PREDICT, request.SerializeToString(), _read_prediction, (*inputs,))


@_refusing_what_is_no_text()
def classify(
    target: Target, examples: Sequence[Features], context: Features | None = None
) -> Rpc[Classification]:
    """Returns the call that asks for each example's classes."""
    request = classification_pb2.ClassificationRequest()
    target.fill(request.model_spec)
    _fill_input(request.input, examples, context)
    return Rpc(CLASSIFY, request.SerializeToString(), _read_classification)


@_refusing_what_is_no_text()
def regress(
    target: Target, examples: Sequence[Features], context: Features | None = None
) -> Rpc[Regression]:
    """Returns the call that asks for each example's value."""
    request = regression_pb2.RegressionRequest()
    target.fill(request.model_spec)
    _fill_input(request.input, examples, context)
    return Rpc(REGRESS, request.SerializeToString(), _read_regression)


@_refusing_what_is_no_text()
def metadata(target: Target) -> Rpc[ModelMetadata]:
    """Returns the call that asks for a version's signatures."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=["signature_def"]
    )
    target.fill(request.model_spec)
    return Rpc(METADATA, request.SerializeToString(), _read_metadata)


@_refusing_what_is_no_text()
def status(target: Target) -> Rpc[tuple[VersionStatus, ...]]:
    """Returns the call that asks for the states of a model's versions."""
    request = get_model_status_pb2.GetModelStatusRequest()
    target.fill(request.model_spec)
    return Rpc(STATUS, request.SerializeToString(), _read_status)


def read_reply(what: Rpc[R], reply: bytes) -> R:
    """Returns the result in a reply.

    Raises:
        Unknown: It cannot be parsed: what answers there is not a model server, or a newer
            one that names states or dtypes of which this client does not know.
        InvalidArgument: It holds a dtype that numpy does not have.

    """
    try:
        return what.read(reply)
    except (DecodeError, ValueError) as error:
        raise Unknown(
            f"the reply to {what.method} cannot be parsed: {error}"
        ) from error


def _read_prediction(message: bytes) -> Prediction:
    response = predict_pb2.PredictResponse.FromString(message)
    spec = response.model_spec
    outputs = {name: read_tensor(t, name) for name, t in response.outputs.items()}
    return Prediction(outputs, spec.name, _version(spec), spec.signature_name)


def _read_classification(message: bytes) -> Classification:
    response = classification_pb2.ClassificationResponse.FromString(message)
    examples = tuple(
        tuple(Label(each.label, each.score) for each in classifications.classes)
        for classifications in response.result.classifications
    )
    return Classification(
        examples, response.model_spec.name, _version(response.model_spec)
    )


def _read_regression(message: bytes) -> Regression:
    response = regression_pb2.RegressionResponse.FromString(message)
    values = [each.value for each in response.result.regressions]
    return Regression(
        np.array(values, dtype=np.float32),
        response.model_spec.name,
        _version(response.model_spec),
    )


def _read_metadata(message: bytes) -> ModelMetadata:
    response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(message)
    signatures = get_model_metadata_pb2.SignatureDefMap.FromString(
        response.metadata["signature_def"].value
    )
    return _metadata(response.model_spec, signatures)


def read_metadata_document(document: Mapping[str, Any]) -> ModelMetadata:
    """Returns what the REST API's JSON says of a version's signatures."""
    spec = json_format.ParseDict(document["model_spec"], model_pb2.ModelSpec())
    signatures = get_model_metadata_pb2.SignatureDefMap()
    json_format.ParseDict(document["metadata"]["signature_def"], signatures)
    return _metadata(spec, signatures)


def _metadata(
    spec: model_pb2.ModelSpec, signatures: get_model_metadata_pb2.SignatureDefMap
) -> ModelMetadata:
    return ModelMetadata(
        spec.name,
        _version(spec),
        {
            name: SignatureInfo(
                each.method_name,
                _tensor_infos(each.inputs),
                _tensor_infos(each.outputs),
                frozenset(each.defaults),
            )
            for name, each in signatures.signature_def.items()
        },
    )


def _read_status(message: bytes) -> tuple[VersionStatus, ...]:
    response = get_model_status_pb2.GetModelStatusResponse.FromString(message)
    states = get_model_status_pb2.ModelVersionStatus.State
    return tuple(
        VersionStatus(
            each.version,
            states.Name(each.state),
            Code(each.status.error_code).name,
            each.status.error_message,
        )
        for each in response.model_version_status
    )


def _version(spec: model_pb2.ModelSpec) -> int | None:
    return spec.version.value if spec.HasField("version") else None


def _fill_input(
    message: input_pb2.Input, examples: Sequence[Features], context: Features | None
) -> None:
    if isinstance(examples, Mapping) or not isinstance(examples, Iterable):
        raise InvalidArgument("examples are a list, with a dict for each row")
    if context is None:
        listed = message.example_list.examples
    else:
        listed = message.example_list_with_context.examples
        _fill_example(message.example_list_with_context.context, context)
    for features in examples:
        _fill_example(listed.add(), features)


def _fill_example(example: example_pb2.Example, features: Features) -> None:
    if not isinstance(features, Mapping):
        raise InvalidArgument(
            f"an example is a dict, from features to values: {features!r:.40}"
        )
    for name, value in features.items():
        feature = example.features.feature[_text(name, "a feature's name")]
        try:
            values = as_array(value, name).ravel()
            if not values.size and not hasattr(value, "dtype"):
                continue  # an empty list has no type, and makes a feature without values
            kind = values.dtype.kind
            if kind in "iub":
                feature.int64_list.value.extend(values.tolist())
            elif kind == "f":
                feature.float_list.value.extend(values.tolist())
            elif kind in "OSU":
                strings = [as_bytes(item, name) for item in values.tolist()]
                feature.bytes_list.value.extend(strings)
            else:
                raise ValueError(f"cannot send {values.dtype}")
        # Includes protobuf's error for an integer beyond int64.
        except ValueError as error:
            raise InvalidArgument(f"feature {name!r}: {error}") from error
        except InvalidArgument as error:
            what = error.message.removeprefix(f"input {name!r}")
            raise InvalidArgument(f"feature {name!r}{what}") from error


def _tensor_infos(infos: Mapping[str, Any]) -> dict[str, TensorInfo]:
    found = {}
    for name, info in infos.items():
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
        kind = BY_NUMBER.get(info.dtype)
        dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
        found[name] = TensorInfo(kind.dtype.name if kind else dtype, sizes)
    return found
