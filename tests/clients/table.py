"""The conformance table: every method, dtype and error, as bytes for any client.

A model that gives back what it gets answers, through a real server; each case says
which call to make and how it must end. What is sent and what is expected is made with
protobuf, value by value, never with the code under test. `test_table.py` runs it with
the clients of the suite, `run.py` with those that are not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.codec.samples import DATA, FIELDS, VIEWS, typed_proto
from tests.tensors import floats
from tfs.core.dtype import FLOAT32, STRING, DType
from tfs.core.errors import Code
from tfs.core.signature import (
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
    session_service_pb2,
)

MODEL: Final = "echo"
_PREDICTION: Final = "/tensorflow.serving.PredictionService"
_MODELS: Final = "/tensorflow.serving.ModelService"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"

_SOURCE = """\
class Echo:
    def predict(self, **inputs):
        return inputs

    def classify(self, x):
        return {"scores": x}

    def regress(self, x):
        return {"outputs": x[:, :1]}
"""


class WrongReplyError(Exception):
    """A call ended otherwise than the table says; the message is for people."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call. Immutable.

    Attributes:
        name: For people.
        path: The method.
        message: The request.
        code: How the call must end.
        words: What an error's message must contain.
        check: Raises WrongReplyError if an OK reply is wrong.

    """

    name: str
    path: str
    message: bytes
    code: Code = Code.OK
    words: str = ""
    check: Callable[[bytes], None] = lambda reply: None

    def judge(self, code: int, details: str | None, reply: bytes) -> None:
        """Compares how the call ended; ``details`` of None were not seen.

        Raises:
            WrongReplyError: It ended otherwise.

        """
        if code != int(self.code):
            raise WrongReplyError(
                f"{self.name}: {code} ({details}), not {self.code.name}"
            )
        if self.code is Code.OK:
            self.check(reply)
        elif details is not None and self.words not in details:
            raise WrongReplyError(f"{self.name}: {details!r} lacks {self.words!r}")


def export(folder: Path) -> Path:
    """Writes two versions of the model; returns the path of a config that serves it.

    Raises:
        ServingError: They cannot be written.

    """
    import tfs.export

    source = folder / "servable.py"
    source.write_text(_SOURCE)
    pair = {name: TensorSpec(FLOAT32, (-1, 2)) for name in ("x", "y")}
    features = {"x": FeatureSpec("x", FeatureKind.FIXED, FLOAT32, (2,))}
    one = {"x": pair["x"]}
    signatures = {
        "serving_default": Signature(
            Method.PREDICT,
            pair,
            pair,
            defaults={"y": TensorView(FLOAT32, (1, 2), bytes(8))},
        ),
        "classify": Signature(
            Method.CLASSIFY,
            one,
            {"scores": pair["x"]},
            labels=("no", "yes"),
            features=features,
        ),
        "regress": Signature(
            Method.REGRESS,
            one,
            {"outputs": TensorSpec(FLOAT32, (-1, 1))},
            features=features,
        ),
    }
    for dtype in DATA:
        spec = {"x": TensorSpec(dtype, (-1, 3))}
        signatures[dtype.name] = Signature(Method.PREDICT, spec, spec)
    base_path = folder / MODEL
    for version in (1, 2):
        tfs.export.save_python(
            source,
            base_path,
            version,
            signatures=signatures,
            methods={"classify": "classify", "regress": "regress"},
        )
    config = folder / "table.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "{MODEL}" base_path: "{base_path}" '
        'model_version_policy { all {} } version_labels { key: "old" value: 1 } } }'
    )
    return config


def cases() -> list[Case]:
    """Returns the table."""
    return [
        *_dtypes(),
        *_predicts(),
        *_wrong_predicts(),
        *_examples(),
        *_wrong_examples(),
        *_models(),
        *_others(),
    ]


def _expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise WrongReplyError(f"{what} is {got!r}, not {wanted!r}")


# -- Predict ---------------------------------------------------------------------------


def _predict(signature: str = "", **inputs: tensor_pb2.TensorProto) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    request.model_spec.signature_name = signature
    for name, tensor in inputs.items():
        request.inputs[name].CopyFrom(tensor)
    return request


def _outputs(
    version: int = 2, signature: str = "serving_default", **outputs: TensorView
) -> Callable[[bytes], None]:
    def check(reply: bytes) -> None:
        response = predict_pb2.PredictResponse.FromString(reply)
        _expect("model", response.model_spec.name, MODEL)
        _expect("version", response.model_spec.version.value, version)
        _expect("signature", response.model_spec.signature_name, signature)
        _expect("outputs", sorted(response.outputs), sorted(outputs))
        for name, view in outputs.items():
            # As bytes: not every NaN equals itself.
            got = response.outputs[name].SerializeToString()
            _expect(f"output {name}", got, typed_proto(view).SerializeToString())

    return check


def _as_content(view: TensorView) -> tensor_pb2.TensorProto:
    proto = typed_proto(view)
    content = tensor_pb2.TensorProto()
    content.dtype = proto.dtype
    content.tensor_shape.CopyFrom(proto.tensor_shape)
    data = view.data
    if isinstance(data, tuple):  # lengths as varints, then the strings
        content.tensor_content = b"".join(map(_varint, map(len, data))) + b"".join(data)
    else:
        content.tensor_content = bytes(data)
    return content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _dtypes() -> Iterator[Case]:
    path = f"{_PREDICTION}/Predict"
    for view in VIEWS:
        name = view.dtype.name
        check = _outputs(2, name, x=view)
        empty = TensorView(view.dtype, (0, 3), () if view.dtype is STRING else b"")
        for how, tensor in (
            ("typed", typed_proto(view)),
            ("content", _as_content(view)),
        ):
            message = _predict(name, x=tensor).SerializeToString()
            yield Case(f"{name} as {how}", path, message, check=check)
        message = _predict(name, x=typed_proto(empty)).SerializeToString()
        yield Case(f"{name} empty", path, message, check=_outputs(2, name, x=empty))
        repeated = _one_value(view.dtype)
        if repeated is not None:
            tensor, full = repeated
            message = _predict(name, x=tensor).SerializeToString()
            yield Case(
                f"{name}, the last value repeated",
                path,
                message,
                check=_outputs(2, name, x=full),
            )


def _one_value(dtype: DType) -> tuple[tensor_pb2.TensorProto, TensorView] | None:
    """Returns a tensor of one value for six elements, and what it stands for."""
    if dtype is STRING:
        full = TensorView(dtype, (2, 3), (b"a",) * 6)
    elif FIELDS[dtype][1] in ("float8_val", "scomplex_val", "dcomplex_val"):
        return None
    else:
        one = bytes([1]) + bytes(dtype.item_bytes - 1)
        full = TensorView(dtype, (2, 3), one * 6)
    tensor = typed_proto(full)
    field = FIELDS[dtype][1]
    values = list(getattr(tensor, field))[:1]
    tensor.ClearField(field)
    getattr(tensor, field).extend(values)
    return tensor, full


X: Final = floats((2, 2), 1, 2, 3, 4)
Y: Final = floats((2, 2), 5, 6, 7, 8)


def _predicts() -> Iterator[Case]:
    path = f"{_PREDICTION}/Predict"
    x, y = typed_proto(X), typed_proto(Y)
    request = _predict(x=x, y=y)
    yield Case(
        "both inputs", path, request.SerializeToString(), check=_outputs(x=X, y=Y)
    )
    request.output_filter.append("y")
    yield Case("output_filter", path, request.SerializeToString(), check=_outputs(y=Y))
    ways: dict[str, Callable[[Any], object]] = {
        "version": lambda spec: spec.version.MergeFrom(type(spec.version)(value=1)),
        "label": lambda spec: setattr(spec, "version_label", "old"),
    }
    for name, fill in ways.items():
        request = _predict(x=x, y=y)
        fill(request.model_spec)
        yield Case(
            f"by {name}", path, request.SerializeToString(), check=_outputs(1, x=X, y=Y)
        )
    rankless = typed_proto(X)
    rankless.tensor_shape.unknown_rank = True
    yield Case(
        "a rank said to be unknown",
        path,
        _predict(x=rankless, y=y).SerializeToString(),
        check=_outputs(x=X, y=Y),
    )
    one_row = typed_proto(floats((1, 2), 1, 2))
    yield Case(
        "a default",
        path,
        _predict(x=one_row).SerializeToString(),
        check=_outputs(x=floats((1, 2), 1, 2), y=floats((1, 2), 0, 0)),
    )


def _wrong_predicts() -> Iterator[Case]:
    path = f"{_PREDICTION}/Predict"
    x, y = typed_proto(X), typed_proto(Y)

    def wrong(name: str, code: Code, words: str, request: Any) -> Case:
        message = request if isinstance(request, bytes) else request.SerializeToString()
        return Case(name, path, message, code, words)

    def changed(change: Callable[[Any], object], **inputs: Any) -> Any:
        request = _predict(**(inputs or {"x": x, "y": y}))
        change(request)
        return request

    def named(name: str) -> Any:
        return changed(lambda r: setattr(r.model_spec, "name", name))

    bad = Code.INVALID_ARGUMENT
    yield wrong("no model spec", bad, "Missing ModelSpec", b"")
    yield wrong(
        "no model name", bad, "no name", changed(lambda r: r.model_spec.Clear())
    )
    yield wrong(
        "a model that is not there",
        Code.NOT_FOUND,
        "Servable not found",
        changed(lambda r: setattr(r.model_spec, "name", "absent")),
    )
    yield wrong(
        "a version that is not there",
        Code.NOT_FOUND,
        "Specific(echo, 9)",
        changed(lambda r: setattr(r.model_spec.version, "value", 9)),
    )
    yield wrong(
        "a label that is not there",
        bad,
        "Unrecognized servable version label: new",
        changed(lambda r: setattr(r.model_spec, "version_label", "new")),
    )
    yield wrong(
        "a signature that is not there",
        Code.FAILED_PRECONDITION,
        'Serving signature key "ghost" not found',
        _predict("ghost", x=x),
    )
    yield wrong(
        "an input missing",
        bad,
        "input size does not match signature: 1!=2 len({y}) != len({x,y}). "
        "Sent extra: {}. Missing but required: {x}.",
        _predict(y=y),
    )
    yield wrong(
        "no input, one of them with a default",
        bad,
        "0!=2 len({}) != len({x,y}). Sent extra: {}. Missing but required: {x}.",
        _predict(),
    )
    yield wrong(
        "an input too many", bad, "Sent extra: {z}. Missing", _predict(x=x, y=y, z=x)
    )
    yield wrong(
        "an input by another name",
        bad,
        "Signature input alias: x(feed name: x) not found in request and no default "
        "value provided. Inputs expected to be in the request {y,z}, or default input "
        "alias set: y",
        _predict(z=x, y=y),
    )
    yield wrong(
        "an input by another name than the default's",
        bad,
        "Inputs contains invalid name. Used request inputs: x, request input: x,z",
        _predict(x=x, z=y),
    )
    yield wrong(
        "an output that is not there",
        bad,
        "output tensor alias not found in signature: z",
        changed(lambda r: r.output_filter.append("z")),
    )
    yield wrong(
        "an output twice",
        bad,
        "duplicate output tensor alias: x",
        changed(lambda r: r.output_filter.extend(["x", "x"])),
    )
    other = typed_proto(TensorView(STRING, (1, 2), (b"a", b"b")))
    yield wrong(
        "another dtype", bad, "to be float but string is provided", _predict(x=other)
    )
    yield wrong(
        "other rows than the other input",
        bad,
        "must have equal 0th-dimension size",
        _predict(x=x, y=typed_proto(floats((1, 2), 1, 2))),
    )
    yield wrong(
        "a streamed prediction",
        Code.UNIMPLEMENTED,
        "predict_streamed_options",
        changed(lambda r: setattr(r.predict_streamed_options, "request_state", 1)),
    )
    for kind, letter in (("ASCII", "a"), ("two bytes", "\u00e9"), ("three", "\u4e2d")):
        yield wrong(
            f"a message cut at 1,024 characters of {kind}",
            Code.NOT_FOUND,
            "...TRUNCATED",
            named(letter * 2000),
        )
    yield wrong(
        "another shape",
        bad,
        "x",
        _predict(x=typed_proto(floats((1, 3), 1, 2, 3))),
    )
    damages: dict[str, Callable[[Any], object]] = {
        "content too short": lambda t: setattr(t, "tensor_content", b"abc"),
        "a size below 0": lambda t: setattr(t.tensor_shape.dim[0], "size", -2),
        "a size that overflows": lambda t: setattr(
            t.tensor_shape.dim[0], "size", 1 << 62
        ),
        "a billion elements": lambda t: setattr(t.tensor_shape.dim[0], "size", 10**9),
        "255 dimensions": lambda t: t.tensor_shape.dim.extend(
            [t.tensor_shape.dim[0]] * 253
        ),
        "a hundred thousand dimensions": lambda t: t.tensor_shape.dim.extend(
            [t.tensor_shape.dim[0]] * 100_000
        ),
        "no dtype": lambda t: setattr(t, "dtype", types_pb2.DT_INVALID),
        "a resource": lambda t: setattr(t, "dtype", types_pb2.DT_RESOURCE),
    }
    for name, change in damages.items():
        tensor = tensor_pb2.TensorProto()
        tensor.CopyFrom(_as_content(X))
        change(tensor)
        yield wrong(name, bad, "x", _predict(x=tensor, y=y))
    whole = _predict(x=x, y=y).SerializeToString()
    crowd = _predict()
    for index in range(66_000):
        crowd.inputs[f"input{index}"].dtype = types_pb2.DT_FLOAT
    yield wrong(
        "more inputs than anybody means",
        Code.RESOURCE_EXHAUSTED,
        "more than 65536 inputs, outputs and other fields",
        crowd,
    )
    yield wrong("a truncated message", bad, "", whole[:-3])
    yield wrong("noise", bad, "", b"\xff" * 40)
    yield wrong(
        "a name that is not UTF-8",
        bad,
        "",
        whole.replace(MODEL.encode(), b"\xff\xfe\xfd\xfc"),
    )


# -- Classify, Regress, MultiInference -------------------------------------------------


def _fill_examples(target: Any, *rows: tuple[float, float]) -> None:
    for row in rows:
        example = target.examples.add()
        example.features.feature["x"].float_list.value.extend(row)


ROWS: Final = ((0.25, 0.75), (1.0, 0.0))


def _classified(rows: tuple[tuple[float, float], ...]) -> list[list[tuple[str, float]]]:
    return [[("no", no), ("yes", yes)] for no, yes in rows]


def _examples() -> Iterator[Case]:
    request: Any
    for fill in ("example_list", "example_list_with_context"):
        classify = classification_pb2.ClassificationRequest()
        regress = regression_pb2.RegressionRequest()
        multi = inference_pb2.MultiInferenceRequest()
        for request, key in ((classify, "classify"), (regress, "regress")):
            request.model_spec.name = MODEL
            request.model_spec.signature_name = key
            task = multi.tasks.add(method_name=f"tensorflow/serving/{key}")
            task.model_spec.CopyFrom(request.model_spec)
        for request in (classify, regress, multi):
            target = getattr(request.input, fill)
            if fill == "example_list":
                _fill_examples(target, *ROWS)
            else:  # the second row is the context's
                _fill_examples(target, ROWS[0])
                target.examples.add()
                common = target.context.features.feature["x"].float_list
                common.value.extend(ROWS[1])

        def check_classify(reply: bytes) -> None:
            response = classification_pb2.ClassificationResponse.FromString(reply)
            got = [
                [(each.label, each.score) for each in row.classes]
                for row in response.result.classifications
            ]
            _expect("classes", got, _classified(ROWS))
            _expect("version", response.model_spec.version.value, 2)

        def check_regress(reply: bytes) -> None:
            response = regression_pb2.RegressionResponse.FromString(reply)
            got = [each.value for each in response.result.regressions]
            _expect("values", got, [row[0] for row in ROWS])

        def check_multi(reply: bytes) -> None:
            results = inference_pb2.MultiInferenceResponse.FromString(reply).results
            _expect("results", len(results), 2)
            got = [
                [(each.label, each.score) for each in row.classes]
                for row in results[0].classification_result.classifications
            ]
            _expect("classes", got, _classified(ROWS))
            values = [each.value for each in results[1].regression_result.regressions]
            _expect("values", values, [row[0] for row in ROWS])

        for method, request, check in (
            ("Classify", classify, check_classify),
            ("Regress", regress, check_regress),
            ("MultiInference", multi, check_multi),
        ):
            yield Case(
                f"{method} of an {fill}",
                f"{_PREDICTION}/{method}",
                request.SerializeToString(),
                check=check,
            )


def _wrong_examples() -> Iterator[Case]:
    request: Any
    for method, new in (
        ("Classify", classification_pb2.ClassificationRequest),
        ("Regress", regression_pb2.RegressionRequest),
    ):
        path, key = f"{_PREDICTION}/{method}", method.lower()

        def asked(signature: str = key, new: Any = new) -> Any:
            request = new()
            request.model_spec.name = MODEL
            request.model_spec.signature_name = signature
            return request

        bad = Code.INVALID_ARGUMENT
        yield Case(
            f"{method} of nothing",
            path,
            asked().SerializeToString(),
            bad,
            "Input is empty",
        )
        request = asked("ghost")
        _fill_examples(request.input.example_list, *ROWS)
        yield Case(
            f"{method} by no signature",
            path,
            request.SerializeToString(),
            bad,
            "No signature was found with the name: ghost",
        )
        request = asked("serving_default")
        _fill_examples(request.input.example_list, *ROWS)
        yield Case(
            f"{method} by a signature of Predict",
            path,
            request.SerializeToString(),
            bad,
            "Was: tensorflow/serving/predict",
        )
        request = asked()
        _fill_examples(request.input.example_list, ROWS[0])
        request.input.example_list.examples.add()
        yield Case(
            f"{method} of an Example without its feature",
            path,
            request.SerializeToString(),
            bad,
            "1",
        )
    yield from _wrong_tasks()


def _wrong_tasks() -> Iterator[Case]:
    """What TensorFlow Serving says of MultiInference's tasks, in its order."""
    bad = Code.INVALID_ARGUMENT
    classify, regress = (MODEL, "classify", "classify"), (MODEL, "regress", "regress")
    unnamed, ghost = ("", "regress", "regress"), (MODEL, "ghost", "regress")
    wrongs: dict[str, tuple[list[tuple[str, str, str]], Code, str]] = {
        "without tasks": ([], bad, "ModelSpec has no name specified."),
        "of no model": ([unnamed], bad, "ModelSpec has no name specified."),
        "of no model later": (
            [classify, unnamed],
            bad,
            "Found ModelSpec with an empty model name.",
        ),
        "of two models": (
            [classify, ("other", "regress", "regress")],
            bad,
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ),
        "of a model that is not there, twice": (
            [("ghost", "a", "regress")] * 2,
            Code.NOT_FOUND,
            "Servable not found for request: Latest(ghost)",
        ),
        "twice the same": (
            [regress, regress],
            bad,
            "Duplicate evaluation of signature: regress",
        ),
        "by no signature, twice": (
            [ghost, ghost],
            bad,
            "Requested signature not found in model graph: ghost",
        ),
        "of a Predict": (
            [(MODEL, "", "predict")],
            Code.UNIMPLEMENTED,
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
        "by a signature of Predict": (
            [(MODEL, "", "classify")],
            bad,
            "Was: tensorflow/serving/predict",
        ),
    }
    for name, (tasks, code, words) in wrongs.items():
        request = inference_pb2.MultiInferenceRequest()
        for model, signature, method in tasks:
            task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
            task.model_spec.name = model
            task.model_spec.signature_name = signature
        _fill_examples(request.input.example_list, *ROWS)
        yield Case(
            f"MultiInference {name}",
            f"{_PREDICTION}/MultiInference",
            request.SerializeToString(),
            code,
            words,
        )
    yield Case(
        "MultiInference of nothing",
        f"{_PREDICTION}/MultiInference",
        _one_task().SerializeToString(),
        bad,
        "Input is empty.",
    )


def _one_task() -> Any:
    request = inference_pb2.MultiInferenceRequest()
    task = request.tasks.add(method_name="tensorflow/serving/regress")
    task.model_spec.name = MODEL
    task.model_spec.signature_name = "regress"
    return request


# -- models, health, and what is not there ---------------------------------------------


def _models() -> Iterator[Case]:
    path = f"{_PREDICTION}/GetModelMetadata"
    metadata = get_model_metadata_pb2.GetModelMetadataRequest()
    yield Case(
        "metadata of nothing",
        path,
        metadata.SerializeToString(),
        Code.INVALID_ARGUMENT,
        "Missing ModelSpec",
    )
    metadata.model_spec.name = MODEL
    yield Case(
        "no field of metadata",
        path,
        metadata.SerializeToString(),
        Code.INVALID_ARGUMENT,
        "at least one metadata_field",
    )
    metadata.metadata_field.append("signature_def")

    def check_metadata(reply: bytes) -> None:
        response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(reply)
        _expect("version", response.model_spec.version.value, 2)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        for dtype in DATA:
            info = signatures.signature_def[dtype.name].inputs["x"]
            _expect(f"dtype of {dtype.name}", info.dtype, FIELDS[dtype][0])
            sizes = [dim.size for dim in info.tensor_shape.dim]
            _expect(f"shape of {dtype.name}", sizes, [-1, 3])
        method = signatures.signature_def["classify"].method_name
        _expect("method", method, "tensorflow/serving/classify")

    yield Case("metadata", path, metadata.SerializeToString(), check=check_metadata)
    metadata.metadata_field.append("weights")
    yield Case(
        "an unknown field of metadata",
        path,
        metadata.SerializeToString(),
        Code.INVALID_ARGUMENT,
        "Metadata field weights is not supported",
    )
    metadata.metadata_field.extend(["signature_def"] * 100_000)
    yield Case(
        "metadata asked for in a megabyte",
        path,
        metadata.SerializeToString(),
        Code.RESOURCE_EXHAUSTED,
        "this method takes 65536",
    )
    path = f"{_MODELS}/GetModelStatus"
    status = get_model_status_pb2.GetModelStatusRequest()
    yield Case(
        "status of nothing",
        path,
        status.SerializeToString(),
        Code.INVALID_ARGUMENT,
        "Missing ModelSpec",
    )
    status.model_spec.name = MODEL

    def check_status(reply: bytes) -> None:
        response = get_model_status_pb2.GetModelStatusResponse.FromString(reply)
        got = [(each.version, each.state) for each in response.model_version_status]
        _expect("versions", got, [(2, 30), (1, 30)])

    yield Case("status", path, status.SerializeToString(), check=check_status)
    status.model_spec.version.value = 9
    yield Case(
        "status of a version that is not there",
        path,
        status.SerializeToString(),
        Code.NOT_FOUND,
        "Could not find version 9 of model echo",
    )
    reload = model_management_pb2.ReloadConfigRequest()
    yield Case(
        "a reload of nothing",
        f"{_MODELS}/HandleReloadConfigRequest",
        reload.SerializeToString(),
        Code.INVALID_ARGUMENT,
        "Only ModelConfigList is currently supported",
    )


def _others() -> Iterator[Case]:
    for service in ("", "PredictionService", "tensorflow.serving.ModelService", MODEL):
        request = health_pb2.HealthCheckRequest(service=service)

        def check_health(reply: bytes) -> None:
            response = health_pb2.HealthCheckResponse.FromString(reply)
            _expect("health", response.status, health_pb2.HealthCheckResponse.SERVING)

        yield Case(
            f"health of {service or 'the server'}",
            HEALTH_CHECK,
            request.SerializeToString(),
            check=check_health,
        )
    unknown = health_pb2.HealthCheckRequest(service="nobody")
    yield Case(
        "health of nobody",
        HEALTH_CHECK,
        unknown.SerializeToString(),
        Code.NOT_FOUND,
    )
    session = session_service_pb2.SessionRunRequest()
    session.model_spec.name = MODEL
    yield Case(
        "SessionRun",
        "/tensorflow.serving.SessionService/SessionRun",
        session.SerializeToString(),
        Code.UNIMPLEMENTED,
    )
    for path in (f"{_PREDICTION}/Guess", "/no.Service/Method"):
        yield Case(f"the unknown {path}", path, b"", Code.UNIMPLEMENTED)
