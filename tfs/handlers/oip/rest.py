"""The Open Inference Protocol over HTTP, by the handlers of its gRPC service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import orjson
from google.protobuf.message import Message

from tfs.codec.json.document import parse_object
from tfs.codec.model_spec import ModelSpec
from tfs.codec.oip.infer_json import parse_infer
from tfs.codec.oip.infer_view import read_version
from tfs.core.call import Handler, MethodTable
from tfs.core.errors import (
    InvalidArgument,
    ServingError,
    without_paths,
)
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.handlers.delegating_call import TranslatedCall
from tfs.handlers.message_limits import QUESTION_BYTES, JsonRoom
from tfs.handlers.oip.infer import JSON_BYTES, set_call
from tfs.handlers.oip.service import INFER as INFER_PATH
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_bursts import RequestBursts, may_come_together
from tfs.handlers.rest.paths import Routes
from tfs.handlers.service_names import OIP
from tfs.proto.inference import open_inference_grpc_pb2 as pb

_NOT_READY: Final = 503


class OipRestHandler:
    """Answers requests under ``/v2`` by RPCs. Confined to the serving loop.

    Args:
        methods: The methods of the gRPC service, among others.
        room: Takes room for JSON.
        now: Returns the time by the clock of deadlines.
        bursts: Answers requests that come together.

    """

    def __init__(
        self,
        methods: MethodTable,
        room: JsonRoom,
        now: Callable[[], float],
        bursts: RequestBursts,
    ) -> None:
        infer = methods[INFER_PATH].handler
        assert isinstance(infer, PredictHandler)
        self._infer = infer
        self._handlers = {
            name: cast(Handler, methods[f"/{OIP}/{name}"].handler)
            for _, _, name in ROUTES
        }
        self._room = room
        self._bursts = bursts
        self._now = now

    def __call__(self, call: HttpCall) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        try:
            method, names = _ROUTES.find(call.verb, call.path.removesuffix("/"))
            if method == INFER:
                self._start_infer(call, names)
            else:
                self._ask(call, method, names)
        except ServingError as error:
            call.fail(error)

    def _start_infer(self, call: HttpCall, names: Mapping[str, str]) -> None:
        body = call.message
        json_bytes = len(body)
        length = call.headers.get(JSON_BYTES.lower())
        if length is not None:
            is_number = length.isdecimal() and len(length) < 12
            if not is_number or int(length) > json_bytes:
                raise InvalidArgument(
                    f"{JSON_BYTES} is {length[:64]!r}, and the body has {json_bytes} bytes"
                )
            json_bytes = int(length)
        if not self._room.take(call, json_bytes):
            return
        spec = ModelSpec(names["name"], read_version(names.get("version", "")))
        request, replies = parse_infer(body, json_bytes)
        settings = request.settings
        if settings.signature_name:
            spec = replace(spec, signature_name=settings.signature_name)
        call.length_header = JSON_BYTES
        # Whether requests like this one differ in their elements alone.
        sizes = [view.size_bytes for view in request.inputs.values()]
        recurs = (
            0 < sum(sizes) == len(body) - json_bytes
            and all(sizes)
            and not replies.request_id
            and not settings.changes_call
        )

        def read(signature: Signature) -> tuple[dict[str, TensorView], tuple[str, ...]]:
            if (
                recurs
                and request.output_filter in ((), tuple(signature.outputs))
                and all(map(replies.is_binary, signature.outputs))
                and may_come_together(call, signature, request.inputs)
            ):
                self._bursts.learn_end(call, spec, request.inputs, replies)
            return request.inputs, request.output_filter

        self._infer.start(set_call(call, settings, self._now), spec, read, replies)

    def _ask(self, call: HttpCall, method: str, names: Mapping[str, str]) -> None:
        request = getattr(pb, f"{method}Request")(**_fields(call, method, names))

        def answer(message: bytes) -> HttpReply:
            response = getattr(pb, f"{method}Response").FromString(message)
            document: Any = document_of(response)
            status = 200
            if method in ("ServerReady", "ModelReady"):
                status = 200 if response.ready else _NOT_READY
                if method == "ModelReady":
                    document = {"name": names["name"], **document}
            elif method == "RepositoryIndex":
                document = document["models"]
                for each in document:
                    each["reason"] = without_paths(each["reason"])
            return HttpReply((orjson.dumps(document),), status)

        self._handlers[method](
            TranslatedCall(call, request.SerializeToString(), answer)
        )


def _fields(call: HttpCall, method: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of the request that a path and a body stand for."""
    if not method.startswith("Repository"):
        return dict(names)
    body = call.message
    if len(body) > QUESTION_BYTES:
        raise InvalidArgument(
            f"a body of {len(body)} bytes; {QUESTION_BYTES} are taken"
        )
    document = parse_object(body) if body else {}
    if method == "RepositoryIndex":
        return {"ready": document.get("ready") is True}
    parameters = document.get("parameters", {})
    if type(parameters) is not dict:
        raise InvalidArgument("parameters must be an object")
    # Only their names count: the values of those that are taken change nothing.
    return {
        "model_name": names["name"],
        "parameters": {name: pb.ModelRepositoryParameter() for name in parameters},
    }


def document_of(message: Message) -> dict[str, Any]:
    """Returns a message as a document of Python values; empty maps are left out."""
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            if value:
                document[field.name] = dict(value)
        elif field.message_type is not None:
            document[field.name] = [document_of(each) for each in value]
        elif isinstance(value, str | bool | int):
            document[field.name] = value
        else:
            document[field.name] = list(value)
    return document


PREFIX: Final = "/v2"
INFER: Final = "ModelInfer"

ROUTES: Final = (
    ("POST", "/v2/models/{name}/infer", INFER),
    ("POST", "/v2/models/{name}/versions/{version}/infer", INFER),
    ("GET", "/v2", "ServerMetadata"),
    ("GET", "/v2/health/live", "ServerLive"),
    ("GET", "/v2/health/ready", "ServerReady"),
    ("GET", "/v2/models/stats", "ModelStatistics"),
    ("GET", "/v2/models/{name}", "ModelMetadata"),
    ("GET", "/v2/models/{name}/versions/{version}", "ModelMetadata"),
    ("GET", "/v2/models/{name}/ready", "ModelReady"),
    ("GET", "/v2/models/{name}/versions/{version}/ready", "ModelReady"),
    ("GET", "/v2/models/{name}/stats", "ModelStatistics"),
    ("GET", "/v2/models/{name}/versions/{version}/stats", "ModelStatistics"),
    ("POST", "/v2/repository/index", "RepositoryIndex"),
    ("POST", "/v2/repository/models/{name}/load", "RepositoryModelLoad"),
    ("POST", "/v2/repository/models/{name}/unload", "RepositoryModelUnload"),
)
"""Verb, path and method; of two that fit, the first one counts."""

_ROUTES: Final = Routes(ROUTES, ", ".join(dict.fromkeys(path for _, path, _ in ROUTES)))
