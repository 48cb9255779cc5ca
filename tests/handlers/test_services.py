"""tfs.handlers: status, metadata, reload, health, reflection, the method table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tests.handlers.fake_http_call import FakeHttpCall
from tests.handlers.served import PREDICT, OneModel
from tfs.core.call import MethodKind
from tfs.core.dtype import BOOL
from tfs.core.errors import (
    DataLoss,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
    Unimplemented,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.handlers import health
from tfs.handlers.admin import admin_methods
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.delegating_call import TranslatedCall
from tfs.handlers.health import (
    HealthHandler,
)
from tfs.handlers.message_limits import (
    CONFIG_BYTES,
    NAMES_BYTES,
    QUESTION_BYTES,
    JsonRoom,
)
from tfs.handlers.methods import Inference, method_table
from tfs.handlers.model_metadata import ModelMetadataHandler, signature_def_map
from tfs.handlers.model_service import ModelStatusHandler, ReloadConfigHandler
from tfs.handlers.oip.rest import OipRestHandler
from tfs.handlers.oip.service import OipService, oip_methods
from tfs.handlers.predict import PredictHandler
from tfs.handlers.reflection import OpenStreams, ReflectionHandler
from tfs.handlers.request_bursts import RequestBursts
from tfs.handlers.rest.handler import status_reply
from tfs.proto._pool import POOL
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.proto.grpc.reflection.v1 import reflection_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
)
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.testing.fake_call import FakeCall
from tfs.testing.held_executor import HeldExecutor


def unasked(asked: object) -> None:
    """An operator who must not be asked."""
    raise AssertionError(asked)


class FakeBackend:
    """States, health and configs that a test sets."""

    def __init__(self) -> None:
        self.states: list[ServableState] = []
        self.why = ""
        self.ready = False
        self.num_looks = 0
        self.error: ServingError | None = None
        self.applied: list[str] = []

    def version_states(self, name: str) -> Sequence[ServableState]:
        return [state for state in self.states if state.id.name == name]

    def problem(self, name: str) -> str:
        return self.why

    def is_ready(self) -> bool:
        self.num_looks += 1
        return self.ready

    def is_model_available(self, name: str) -> bool | None:
        return self.ready if name == "m" else None

    def apply_config(
        self,
        message: model_server_config_pb2.ModelServerConfig,
        reason: str,
        deadline_s: float | None,
        on_done: Callable[[ServingError | None], None],
    ) -> None:
        self.applied.append(reason)
        on_done(self.error)

    def counters(self) -> Mapping[str, float]:
        return {"loads": 2.0 * len(self.applied)}


def status(backend: FakeBackend, name: str, version: int | None = None) -> FakeCall:
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = name
    if version is not None:
        request.model_spec.version.value = version
    call = FakeCall(request.SerializeToString())
    ModelStatusHandler(backend)(call)
    return call


def test_status_shows_every_version_with_its_error() -> None:
    """Ended versions are listed with what they ended of; one that is named, alone.

    AllVersionsSuccess, SingleVersionSuccess of get_model_status_impl_test.
    """
    backend = FakeBackend()
    backend.states = [
        ServableState(ServableId("m", 2), ManagerState.END, DataLoss("torn")),
        ServableState(ServableId("m", 1), ManagerState.AVAILABLE),
    ]
    response = get_model_status_pb2.GetModelStatusResponse.FromString(
        status(backend, "m").reply_bytes()
    )
    assert [
        (each.version, each.state, each.status.error_code, each.status.error_message)
        for each in response.model_version_status
    ] == [(2, 50, 15, "torn"), (1, 30, 0, "")]
    (named,) = get_model_status_pb2.GetModelStatusResponse.FromString(
        status(backend, "m", 1).reply_bytes()
    ).model_version_status
    assert named.version == 1


def test_over_http_reasons_name_no_paths() -> None:
    """Whoever reaches the port may read them, and pages of other hosts with CORS."""
    backend = FakeBackend()
    backend.why = "base path /models/m does not exist"
    message = bytes(status(backend, "m").message)
    absent = FakeHttpCall("GET", "/v1/models/m")
    ModelStatusHandler(backend)(TranslatedCall(absent, message, status_reply))
    assert absent.error().message.endswith(": base path … does not exist")
    torn = DataLoss("/models/m/1 is torn")
    backend.states = [ServableState(ServableId("m", 1), ManagerState.END, torn)]
    call: Any = FakeHttpCall("GET", "/v1/models/m")
    ModelStatusHandler(backend)(TranslatedCall(call, message, status_reply))
    (shown,) = call.document["model_version_status"]
    assert shown["status"]["error_message"] == "… is torn"
    index: Any = FakeHttpCall("POST", "/v2/repository/index")
    models: Any = SimpleNamespace(names=lambda: "mn")
    service = OipService(models, backend, backend, models, AdminAccess(), "")
    predict = PredictHandler(models)
    methods = {each.path: each for each in oip_methods(service, predict, DecodePool())}
    oip = OipRestHandler(methods, JsonRoom(1), float, RequestBursts(predict))
    oip(index)
    assert [each["reason"] for each in index.document] == [
        "… is torn",
        "base path … does not exist",
    ]


def test_status_of_nothing_is_not_found_with_the_reason() -> None:
    """What stands in the way of a model is part of the message.

    InvalidModelNameFailure, InvalidModelVersionFailure of get_model_status_impl_test.
    """
    backend = FakeBackend()
    backend.why = "base path /m does not exist"
    assert status(backend, "m").error().message == (
        "Could not find any versions of model m: base path /m does not exist"
    )
    backend.why = ""
    error = status(backend, "m", 7).error()
    assert isinstance(error, NotFound)
    assert error.message == "Could not find version 7 of model m"


def test_status_needs_a_model_spec() -> None:
    """A request without a model is refused (MissingOrEmptyModelSpecFailure)."""
    call = FakeCall(b"")
    ModelStatusHandler(FakeBackend())(call)
    assert call.error().message == "Missing ModelSpec"
    assert isinstance(status(FakeBackend(), "").error(), NotFound)


def test_metadata_describes_every_signature() -> None:
    """Names, dtypes, shapes, methods and defaults, packed as upstream does
    (get_model_metadata ReturnsSignaturesForValidModel).
    """
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=["signature_def"]
    )
    request.model_spec.name = "m"
    call = FakeCall(request.SerializeToString())
    served = OneModel()
    ModelMetadataHandler(served)(call)
    response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(
        call.reply_bytes()
    )
    packed = response.metadata["signature_def"]
    assert packed.type_url == ("type.googleapis.com/tensorflow.serving.SignatureDefMap")
    found = get_model_metadata_pb2.SignatureDefMap.FromString(packed.value)
    assert found.signature_def.keys() == served.servable.signatures.keys()
    default = found.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert default.inputs["x"].dtype == types_pb2.DT_FLOAT
    assert [dim.size for dim in default.inputs["x"].tensor_shape.dim] == [-1, 2]
    assert list(default.defaults["scale"].float_val) == [1.0]
    assert response.model_spec.version.value == 3
    assert served.handle.num_pins == 0


def test_the_shape_of_a_scalar_is_there() -> None:
    """A scalar has a shape, as in TensorFlow; a missing shape would mean unknown."""
    flag = {"flag": TensorSpec(BOOL, ())}
    signature = Signature(Method.PREDICT, flag, flag, batched=False)
    found = signature_def_map({"serving_default": signature})
    definition = found.signature_def["serving_default"]
    for infos in (definition.inputs, definition.outputs):
        assert infos["flag"].HasField("tensor_shape")
        assert not infos["flag"].tensor_shape.dim


def test_the_status_of_many_versions_is_written_off_the_loop() -> None:
    """The status of many versions is written off the loop, that of a few on it."""
    backend, executor = FakeBackend(), HeldExecutor()
    handler = ModelStatusHandler(backend, DecodePool(executor))
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "m"
    for num, is_long in ((3, False), (3_000, True)):
        backend.states = [
            ServableState(ServableId("m", version), ManagerState.AVAILABLE)
            for version in range(num, 0, -1)
        ]
        call = FakeCall(message.SerializeToString())
        handler(call)
        assert call.is_finished is not is_long
        executor.run_held()
        response = get_model_status_pb2.GetModelStatusResponse.FromString(
            call.reply_bytes()
        )
        versions = [each.version for each in response.model_version_status]
        assert versions == list(range(num, 0, -1))


def test_many_signatures_are_written_off_the_loop() -> None:
    """The version need not be kept for it."""
    served, executor = OneModel(), HeldExecutor()
    handler = ModelMetadataHandler(served, DecodePool(executor))
    request = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=["signature_def"]
    )
    request.model_spec.name = "m"
    served.servable.signatures = {  # type: ignore[misc]  # this one's
        f"signature_{index}": PREDICT for index in range(300)
    }
    call = FakeCall(request.SerializeToString())
    handler(call)
    assert not call.is_finished
    assert served.handle.num_pins == 0
    executor.run_held()
    response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(
        call.reply_bytes()
    )
    packed = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(packed)
    assert len(packed.signature_def) == 300


def test_a_reload_of_megabytes_is_refused() -> None:
    """Its message is parsed on the serving loop."""
    backend = FakeBackend()
    call = FakeCall(bytes(CONFIG_BYTES + 1))
    ReloadConfigHandler(backend)(call)
    assert isinstance(call.outcome, ResourceExhausted)
    assert backend.applied == []


def test_an_operator_asks_short_questions() -> None:
    """Only a configuration may be long."""
    longest = dict.fromkeys(("ApplyConfig", "Aspire", "Probe"), CONFIG_BYTES)
    longest["ListModels"] = NAMES_BYTES
    for method in admin_methods(unasked, AdminAccess()):
        most = longest.get(method.path.rpartition("/")[2], QUESTION_BYTES)
        call = FakeCall(bytes(most + 1))
        method.handler(call)
        assert isinstance(call.outcome, ResourceExhausted)
        assert str(most) in call.outcome.message


def reload(backend: FakeBackend, *, listed: bool = True) -> FakeCall:
    request = model_management_pb2.ReloadConfigRequest(metric_names=["loads", "none"])
    if listed:
        request.config.model_config_list.SetInParent()
    call = FakeCall(request.SerializeToString())
    ReloadConfigHandler(backend)(call)
    return call


def test_a_reload_reports_what_it_added_to_counters() -> None:
    """The reply comes when the config took effect, with the increases asked for."""
    response = model_management_pb2.ReloadConfigResponse.FromString(
        reload(FakeBackend()).reply_bytes()
    )
    assert response.status.error_code == 0
    assert [(m.name, m.int64_value_increase) for m in response.metric] == [
        ("loads", 2),
        ("none", 0),
    ]


def test_a_reload_that_fails_fails_the_rpc() -> None:
    """The reason reaches the caller with its code."""
    backend = FakeBackend()
    backend.error = InvalidArgument("no")
    assert reload(backend).error() is backend.error


def test_a_reload_of_anything_but_a_list_is_refused() -> None:
    """Only a model_config_list can be reloaded; nothing is applied."""
    backend = FakeBackend()
    assert "Only ModelConfigList" in reload(backend, listed=False).error().message
    assert backend.applied == []


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def health_request(service: str) -> bytes:
    return health_pb2.HealthCheckRequest(service=service).SerializeToString()


@pytest.mark.parametrize(
    "service",
    [
        "",
        "PredictionService",
        "tensorflow.serving.ModelService",
        "grpc.reflection.v1.ServerReflection",
        "m",
    ],
)
def test_health_follows_readiness(service: str) -> None:
    """The server, its services and its models are SERVING when they can answer."""
    backend = FakeBackend()
    handler = HealthHandler(backend)
    for backend.ready, expected in ((False, NOT_SERVING), (True, SERVING)):
        call = FakeCall(health_request(service))
        handler.check(call)
        response = health_pb2.HealthCheckResponse.FromString(call.reply_bytes())
        assert response.status == expected


def test_liveness_is_apart_from_readiness() -> None:
    """A server that still loads is alive."""
    call = FakeCall(health_request("tfs.live"))
    HealthHandler(FakeBackend()).check(call)
    response = health_pb2.HealthCheckResponse.FromString(call.reply_bytes())
    assert response.status == SERVING


def test_an_unknown_service_is_not_found_to_check() -> None:
    """Check answers NOT_FOUND for a name nobody has."""
    call = FakeCall(health_request("other"))
    HealthHandler(FakeBackend()).check(call)
    assert isinstance(call.error(), NotFound)


def statuses(call: FakeCall) -> list[int]:
    return [
        health_pb2.HealthCheckResponse.FromString(message).status
        for message in call.sent
    ]


def test_a_watch_hears_of_changes_only() -> None:
    """The status now, then every change; nothing after the client is gone."""
    backend = FakeBackend()
    handler = HealthHandler(backend)
    call, other = FakeCall(health_request("m")), FakeCall(health_request("other"))
    handler.watch(call)
    handler.watch(other)
    handler.refresh()
    backend.ready = True
    handler.refresh()
    handler.refresh()
    call.client_cancels()
    backend.ready = False
    handler.refresh()
    assert statuses(call) == [NOT_SERVING, SERVING]
    assert statuses(other) == [UNKNOWN]
    handler.close()
    assert other.is_finished


def test_a_watch_that_comes_while_the_server_drains_is_answered_once() -> None:
    """A drain would wait for it, and nothing will change any more."""
    handler = HealthHandler(FakeBackend())
    handler.close()
    call = FakeCall(health_request("m"))
    handler.watch(call)
    assert health_pb2.HealthCheckResponse.FromString(call.reply_bytes()).status == (
        NOT_SERVING
    )


def test_watches_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling all of them takes one round; there is room again as each ends."""
    monkeypatch.setattr(health, "MAX_WATCHERS", 3)
    handler = HealthHandler(FakeBackend())

    def watch() -> FakeCall:
        call = FakeCall(health_request("m"))
        handler.watch(call)
        return call

    calls = [watch() for _ in range(3)]
    assert not any(call.is_finished for call in calls)
    assert isinstance(watch().error(), ResourceExhausted)
    calls[0].client_cancels()
    assert not watch().is_finished


def test_watches_of_one_name_take_one_look() -> None:
    """A look at whether a server of many models is ready takes long."""
    backend = FakeBackend()
    handler = HealthHandler(backend)
    calls = [FakeCall(health_request("")) for _ in range(5)]
    for call in calls:
        handler.watch(call)
    backend.num_looks, backend.ready = 0, True
    handler.refresh()
    assert backend.num_looks == 1
    assert all(statuses(call) == [NOT_SERVING, SERVING] for call in calls)


def reflect(**fields: str) -> reflection_pb2.ServerReflectionResponse:
    handler = ReflectionHandler(reflection_pb2, POOL, ["a.Service"])
    request = reflection_pb2.ServerReflectionRequest(**fields)  # type: ignore[arg-type]
    call = FakeCall(request.SerializeToString())
    handler(call)
    call.client_half_closes()
    assert call.num_finishes == 1
    (message,) = call.sent
    return reflection_pb2.ServerReflectionResponse.FromString(message)


def test_a_question_to_reflection_is_bounded() -> None:
    """It is parsed on the serving loop, and names one thing."""
    handler = ReflectionHandler(reflection_pb2, POOL, ["a.Service"])
    request = reflection_pb2.ServerReflectionRequest(file_by_filename="x" * 65_536)
    call = FakeCall(request.SerializeToString())
    handler(call)
    assert isinstance(call.outcome, ResourceExhausted)


class CountedFile:
    """A file of descriptors that counts how often it is read."""

    def __init__(self, name: str, *dependencies: CountedFile) -> None:
        self.name = name
        self.dependencies = dependencies
        self.num_reads = 0

    @property
    def serialized_pb(self) -> bytes:
        self.num_reads += 1
        return self.name.encode()


class CountedFiles:
    """A pool of some files, each with one symbol of its name."""

    def __init__(self, *files: CountedFile) -> None:
        self._files = {each.name: each for each in files}

    def FindFileByName(self, name: str) -> CountedFile:
        return self._files[name]

    FindFileContainingSymbol = FindFileByName


def test_answers_with_files_are_written_once() -> None:
    """Whoever asks, however often and by whatever name; each hears its own question."""
    inner = CountedFile("inner")
    outer = CountedFile("outer", inner)
    pool: Any = CountedFiles(inner, outer)
    handler = ReflectionHandler(reflection_pb2, pool, ["a.Service"])
    for index in range(5):
        for kind in ("file_by_filename", "file_containing_symbol"):
            question = reflection_pb2.ServerReflectionRequest(host=f"host {index}")
            setattr(question, kind, "outer")
            call = FakeCall(question.SerializeToString())
            handler(call)
            call.client_sends(question.SerializeToString())
            for sent in call.sent:
                answer = reflection_pb2.ServerReflectionResponse.FromString(sent)
                assert answer.original_request == question
                assert answer.valid_host == f"host {index}"
                files = answer.file_descriptor_response.file_descriptor_proto
                assert list(files) == [b"outer", b"inner"]
                assert answer.SerializeToString() == sent
    assert [inner.num_reads, outer.num_reads] == [1, 1]


def test_streams_of_questions_end_when_the_server_drains() -> None:
    """Tools keep theirs open for days; none that comes later is taken."""
    streams = OpenStreams()
    handler = ReflectionHandler(reflection_pb2, POOL, ["a.Service"], streams)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    message = question.SerializeToString()
    calls = [FakeCall(message) for _ in range(4)]
    idle, gone, ended, wrong = calls
    for call in calls:
        handler(call)
    idle.client_sends(message)
    gone.client_cancels()
    ended.client_half_closes()
    wrong.client_sends(b"\xff")
    streams.close()
    assert [len(call.sent) for call in calls] == [2, 1, 1, 1]
    assert [call.num_finishes for call in calls] == [1, 1, 1, 1]
    assert idle.outcome is None  # OK, behind its answers
    late = FakeCall(message)
    handler(late)
    assert isinstance(late.outcome, Unavailable)


def test_reflection_lists_the_services() -> None:
    """Tools see what they may call."""
    listed = reflect(list_services="").list_services_response.service
    assert [each.name for each in listed] == ["a.Service"]


@pytest.mark.parametrize(
    "fields",
    [
        {"file_by_filename": "tensorflow_serving/apis/predict.proto"},
        {"file_containing_symbol": "tensorflow.serving.PredictRequest"},
        {"file_containing_symbol": "tensorflow.serving.PredictionService.Predict"},
    ],
    ids=["file", "message", "method"],
)
def test_reflection_sends_a_file_with_all_it_imports(fields: dict[str, str]) -> None:
    """The answer can be built into a pool by itself."""
    files = reflect(**fields).file_descriptor_response.file_descriptor_proto
    protos = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in files]
    names = {proto.name for proto in protos}
    assert all(names.issuperset(proto.dependency) for proto in protos)
    assert len(names) == len(protos)


def test_reflection_answers_unknown_symbols_in_the_stream() -> None:
    """A symbol that is not there is an answer that names it, not the stream's end."""
    known = "tensorflow.serving.PredictionService"
    for symbol in ("no.Such", "nothing", f"{known}.Guess"):
        error = reflect(file_containing_symbol=symbol).error_response
        assert error.error_code == 5
        assert symbol in error.error_message


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_lists_what_is_answered(version: str) -> None:
    """The service that operates the server too, where there is one; SessionRun not."""
    backend, admin = FakeBackend(), unasked
    health = HealthHandler(backend)
    for listed, operator in ((5, None), (6, admin)):
        table = method_table(
            Inference(OneModel()), backend, backend, health, admin=operator
        )
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = FakeCall(request.SerializeToString())
        table[path].handler(call)
        answer = reflection_pb2.ServerReflectionResponse.FromString(call.sent[0])
        services = [each.name for each in answer.list_services_response.service]
        assert len(services) == listed
        assert ("tfs.v1.AdminService" in services) is (operator is not None)


def test_health_knows_every_service_that_reflection_lists() -> None:
    """Probes may name any of them."""
    backend, admin = FakeBackend(), unasked
    health = HealthHandler(backend)
    table = method_table(Inference(OneModel()), backend, backend, health, admin=admin)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    listing = FakeCall(request.SerializeToString())
    table["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"].handler(listing)
    answer = reflection_pb2.ServerReflectionResponse.FromString(listing.sent[0])
    for service in answer.list_services_response.service:
        check = FakeCall(health_request(service.name))
        health.check(check)
        assert check.reply_bytes(), service.name


def test_what_is_not_offered_is_refused_by_name() -> None:
    """Every method of the wire API has an entry, and what refuses one names it."""
    backend = FakeBackend()
    table = method_table(
        Inference(OneModel()), backend, backend, HealthHandler(backend)
    )
    method = table["/tensorflow.serving.SessionService/SessionRun"]
    call = FakeCall()
    method.handler(call)
    assert isinstance(call.error(), Unimplemented)
    assert "SessionRun" in call.error().message
    assert table["/grpc.health.v1.Health/Watch"].kind is MethodKind.SERVER_STREAM
