"""The method table: which path is answered by which handler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tfs.codec.decode_options import DEFAULT_OPTIONS, DecodeOptions
from tfs.core.call import Call, MethodKind, MethodTable, RpcMethod
from tfs.core.errors import Unimplemented
from tfs.handlers.admin import SERVICE as ADMIN_SERVICE
from tfs.handlers.admin import Admin, admin_methods
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.example_rpc import (
    CLASSIFY,
    MULTI_INFERENCE,
    REGRESS,
    ExampleRpc,
)
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.health import HealthHandler
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.model_lookup import ModelLookup
from tfs.handlers.model_metadata import ModelMetadataHandler
from tfs.handlers.model_service import (
    ConfigApplier,
    ModelStatusHandler,
    ReloadConfigHandler,
    StatusReader,
)
from tfs.handlers.oip.infer import InferFormat
from tfs.handlers.oip.service import OipService, oip_methods
from tfs.handlers.predict import PredictHandler
from tfs.handlers.reflection import OpenStreams, ReflectionHandler
from tfs.handlers.request_format import PredictFormat, RequestFormat
from tfs.handlers.service_names import HEALTH, MODEL, OIP, PREDICTION, REFLECTION
from tfs.proto._pool import POOL
from tfs.proto.grpc.reflection.v1 import reflection_pb2 as reflection_v1
from tfs.proto.grpc.reflection.v1alpha import reflection_pb2 as reflection_v1alpha
from tfs.proto.tensorflow_serving.apis import (
    model_service_pb2,
    prediction_service_pb2,
    session_service_pb2,
)
from tfs.proto.tfs.v1 import admin_service_pb2

_SERVICE_FILES: Final = (
    prediction_service_pb2,
    model_service_pb2,
    session_service_pb2,
    admin_service_pb2,
)


@dataclass(frozen=True, slots=True)
class Inference:
    """How requests for inference are answered. Immutable.

    Attributes:
        lookup: Finds their models.
        gate: Limits and counts them; by default nothing is limited.
        decode_pool: Decodes what is long; by default the loop does.
        as_tensor_content: Whether Predict answers in ``tensor_content``.
        check_method: Whether Classify, Regress and MultiInference insist on the method
            of a signature; otherwise its features are enough. Predict takes signatures
            of any method.
        decoding: Limits what requests of Predict take.

    """

    lookup: ModelLookup
    gate: RequestGate = field(default_factory=RequestGate)
    decode_pool: DecodePool = field(default_factory=DecodePool)
    as_tensor_content: bool = False
    check_method: bool = False
    decoding: DecodeOptions = DEFAULT_OPTIONS


def method_table(
    inference: Inference,
    status: StatusReader,
    applier: ConfigApplier,
    health: HealthHandler,
    *,
    admin: Admin | None = None,
    access: AdminAccess | None = None,
    streams: OpenStreams | None = None,
    oip: OipService | None = None,
) -> MethodTable:
    """Returns every method the server knows, by path.

    A method of the wire API that is not offered is refused by its name. ``streams`` ends
    the streams of reflection. ``oip`` answers the Open Inference Protocol, beside
    inference.
    """
    lookup, gate, decode_pool = inference.lookup, inference.gate, inference.decode_pool

    def examples(rpc: ExampleRpc) -> ExampleHandler:
        return ExampleHandler(
            lookup, rpc, gate, decode_pool, check_method=inference.check_method
        )

    def predicts(form: RequestFormat) -> PredictHandler:
        return PredictHandler(
            lookup, gate, decode_pool, form=form, decoding=inference.decoding
        )

    predict = predicts(PredictFormat(inference.as_tensor_content))
    methods = [
        RpcMethod(
            f"/{PREDICTION}/Predict",
            predict,
            burst_handler=predict.take_burst,
        ),
        RpcMethod(f"/{PREDICTION}/Classify", examples(CLASSIFY)),
        RpcMethod(f"/{PREDICTION}/Regress", examples(REGRESS)),
        RpcMethod(f"/{PREDICTION}/MultiInference", examples(MULTI_INFERENCE)),
        RpcMethod(
            f"/{PREDICTION}/GetModelMetadata", ModelMetadataHandler(lookup, decode_pool)
        ),
        RpcMethod(f"/{MODEL}/GetModelStatus", ModelStatusHandler(status, decode_pool)),
        RpcMethod(
            f"/{MODEL}/HandleReloadConfigRequest", ReloadConfigHandler(applier, access)
        ),
        RpcMethod(f"/{HEALTH}/Check", health.check),
        RpcMethod(f"/{HEALTH}/Watch", health.watch, MethodKind.SERVER_STREAM),
    ]
    if admin is not None:
        methods += admin_methods(admin, access or AdminAccess())
    if oip is not None:
        methods += oip_methods(oip, predicts(InferFormat(gate.now)), decode_pool)
    shown = {PREDICTION, MODEL, HEALTH, *REFLECTION}
    if admin is not None:
        shown.add(ADMIN_SERVICE)
    if oip is not None:
        shown.add(OIP)
    for service, messages in zip(
        REFLECTION, (reflection_v1, reflection_v1alpha), strict=True
    ):
        methods.append(
            RpcMethod(
                f"/{service}/ServerReflectionInfo",
                ReflectionHandler(messages, POOL, shown, streams),
                MethodKind.BIDIRECTIONAL,
            )
        )
    table = {method.path: method for method in methods}
    for path in _not_offered(table):
        table[path] = RpcMethod(path, _refuse(path))
    return table


def _not_offered(offered: Iterable[str]) -> Iterable[str]:
    """Returns the paths of the wire API that nothing answers."""
    known = set(offered)
    for file in _SERVICE_FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                if path not in known:
                    yield path


def _refuse(path: str) -> Callable[[Call], None]:
    def handler(call: Call) -> None:
        call.fail(Unimplemented(f"{path} is not offered by this server"))

    return handler
