"""``inference.GRPCInferenceService``: the methods of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from tfs.core.call import Call, Handler, RpcMethod
from tfs.core.errors import ServingError
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.messages import QUESTION_BYTES, parse
from tfs.handlers.model_lookup import NotResident
from tfs.handlers.oip.service import Done, OipService
from tfs.handlers.predict import PredictHandler
from tfs.proto.inference import open_inference_grpc_pb2 as pb

SERVICE: Final = "inference.GRPCInferenceService"
INFER: Final = f"/{SERVICE}/ModelInfer"


def oip_methods(
    service: OipService, infer: PredictHandler, decode_pool: DecodePool
) -> list[RpcMethod]:
    """Returns the methods that are offered, by one handler each.

    Args:
        service: Answers all but inference.
        infer: Answers inference.
        decode_pool: Where answers about all models are written.

    """

    def asking(
        request_type: Any, answer: Callable[[Any], Message], *, is_long: bool = False
    ) -> Handler:
        def handler(call: Call) -> None:
            try:
                request = parse(request_type, call.message, QUESTION_BYTES)
                decode_pool.reply(
                    call, lambda: answer(request).SerializeToString(), is_long=is_long
                )
            except NotResident as absent:
                absent.then(call, lambda: handler(call), call.fail)
            except ServingError as error:
                call.fail(error)

        return handler

    def changing(
        request_type: Any, start: Callable[[Any, Call, Done], None]
    ) -> Handler:
        def handler(call: Call) -> None:
            def done(error: ServingError | None) -> None:
                if error is None:
                    call.reply(b"")  # the responses have no fields
                else:
                    call.fail(error)

            try:
                start(parse(request_type, call.message, QUESTION_BYTES), call, done)
            except ServingError as error:
                call.fail(error)

        return handler

    handlers = {
        "ServerLive": asking(pb.ServerLiveRequest, service.live),
        "ServerReady": asking(pb.ServerReadyRequest, service.ready),
        "ModelReady": asking(pb.ModelReadyRequest, service.model_ready),
        "ServerMetadata": asking(pb.ServerMetadataRequest, service.metadata),
        "ModelMetadata": asking(pb.ModelMetadataRequest, service.model_metadata),
        "ModelStatistics": asking(
            pb.ModelStatisticsRequest, service.statistics, is_long=True
        ),
        "RepositoryIndex": asking(
            pb.RepositoryIndexRequest, service.index, is_long=True
        ),
        "RepositoryModelLoad": changing(pb.RepositoryModelLoadRequest, service.load),
        "RepositoryModelUnload": changing(
            pb.RepositoryModelUnloadRequest, service.unload
        ),
    }
    return [
        RpcMethod(INFER, infer, burst_handler=infer.take_burst),
        *(
            RpcMethod(f"/{SERVICE}/{name}", handler)
            for name, handler in handlers.items()
        ),
    ]
