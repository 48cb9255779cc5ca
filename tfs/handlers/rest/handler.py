"""Answers TensorFlow Serving's REST API with the handlers of its gRPC API.

A Predict request is read by its signature and goes the way of any other. The others
become the message that the RPC's handler takes, and its reply becomes JSON. (TensorFlow
Serving: model_servers/http_rest_api_handler.cc.)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast
from urllib.parse import parse_qs

from google.protobuf import json_format
from google.protobuf.message import Message

from tfs.codec.json.examples import (
    read_examples,
    write_classify_reply,
    write_regress_reply,
)
from tfs.codec.json.predict_body import Layout, PredictBody
from tfs.codec.json.tensor_writer import PREDICTIONS, dump, rows_of
from tfs.codec.model_spec import ModelSpec, fill_model_spec
from tfs.codec.predict_request import read_predict_request
from tfs.codec.predict_response import Answerer
from tfs.core.call import Handler, MethodTable
from tfs.core.errors import (
    Code,
    FailedPrecondition,
    InvalidItems,
    ServingError,
    without_paths,
)
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.servable import Servable, Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.handlers.delegating_call import DelegatingCall, TranslatedCall
from tfs.handlers.message_limits import JsonRoom
from tfs.handlers.model_metadata import SIGNATURE_DEF
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_bursts import RequestBursts
from tfs.handlers.request_format import ReplyWriter
from tfs.handlers.rest.forms import (
    PARSERS,
    Form,
    FormedReplies,
    form_of,
    learn,
    wanted_form,
)
from tfs.handlers.rest.paths import PREFIX, Action, parse_path
from tfs.handlers.service_names import MODEL, PREDICTION
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
)

_CORS: Final = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "POST, GET"),
    ("Access-Control-Allow-Headers", "Content-Type"),
)

_EXAMPLES: Final = {
    Action.CLASSIFY: ("Classify", write_classify_reply),
    Action.REGRESS: ("Regress", write_regress_reply),
}

Describe = Callable[[HttpCall, ModelSpec], None]
"""Answers with a description of a model. On the loop; never blocks."""


class RestHandler:
    """Answers requests under ``/v1/``. Confined to the serving loop.

    Args:
        methods: The RPCs, whose handlers answer.
        room: Takes room for JSON.
        describe: Answers with the OpenAPI document of a model.
        has_cors: Whether pages of other origins may use the API.

    Attributes:
        bursts: Answers requests that come together.

    """

    def __init__(
        self,
        methods: MethodTable,
        room: JsonRoom,
        describe: Describe,
        *,
        has_cors: bool = False,
    ) -> None:
        predict = methods[f"/{PREDICTION}/Predict"].handler
        assert isinstance(predict, PredictHandler)
        self._predict = predict
        self._describe = describe
        self.bursts: Final = RequestBursts(predict)
        self._methods = methods
        self._room = room
        self._has_cors = has_cors

    def __call__(self, call: HttpCall) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        if self._has_cors:
            call.more_headers = _CORS
            if call.verb == "OPTIONS":
                self._preflight(call)
                return
        try:
            action, model = parse_path(call.verb, call.path)
            if action is Action.PREDICT:
                self._answer_predict(call, model)
            elif action is Action.STATUS:
                status = get_model_status_pb2.GetModelStatusRequest()
                fill_model_spec(status.model_spec, replace(model, version_label=None))
                self._ask(f"/{MODEL}/GetModelStatus", call, status, status_reply)
            elif action is Action.METADATA:
                metadata = get_model_metadata_pb2.GetModelMetadataRequest(
                    metadata_field=[SIGNATURE_DEF]
                )
                fill_model_spec(metadata.model_spec, model)
                path = f"/{PREDICTION}/GetModelMetadata"
                self._ask(path, call, metadata, metadata_reply)
            elif action is Action.OPENAPI:
                self._describe(call, model)
            else:
                self._answer_examples(call, action, model)
        except ServingError as error:
            call.fail(error)

    def take_alike(self, calls: Sequence[HttpCall]) -> Sequence[HttpCall]:
        """Starts those requests that are like earlier ones; returns the others."""
        if self._has_cors:
            for call in calls:
                if call.path.startswith(PREFIX):
                    call.more_headers = _CORS
        return self.bursts.take(calls)

    def _answer_predict(self, call: HttpCall, model: ModelSpec) -> None:
        form = form_of(call.headers.get("content-type", ""))
        wanted = wanted_form(call.headers.get("accept", ""), form)
        call.content_type = wanted.value
        if form is Form.PROTOBUF:
            view = read_predict_request(call.message)
            sent = view.model_spec
            spec = replace(model, signature_name=sent.signature_name if sent else "")
            self._predict.start(
                call,
                spec,
                lambda _: (view.inputs, view.output_filter),
                FormedReplies(wanted, Layout.COLUMNS),
                view.client_id,
                find=_signature_of,
            )
            return
        if form is Form.JSON and not self._room.take(call, len(call.message)):
            return
        body = PARSERS[form](call.message)
        spec = replace(model, signature_name=body.signature_name)
        if call.query and parse_qs(call.query).get("per_item") == ["true"]:
            answer_per_item(self._predict, call, spec, body.rows())
            return

        replies = FormedReplies(wanted, body.layout)

        def read(signature: Signature) -> tuple[dict[str, TensorView], tuple[()]]:
            inputs = body.read(signature)
            if not body.signature_name:
                learn(self.bursts, call, model, form, inputs, signature, replies)
            return inputs, ()

        self._predict.start(call, spec, read, replies, find=_signature_of)

    def _answer_examples(
        self, call: HttpCall, action: Action, model: ModelSpec
    ) -> None:
        if not self._room.take(call, len(call.message)):
            return
        rpc, write = _EXAMPLES[action]
        # Regress has a message of the same fields.
        request = classification_pb2.ClassificationRequest()
        name = read_examples(call.message, request.input)
        fill_model_spec(request.model_spec, replace(model, signature_name=name))
        self._ask(
            f"/{PREDICTION}/{rpc}",
            call,
            request,
            lambda response: HttpReply((write(response),)),
        )

    def _ask(
        self,
        path: str,
        call: HttpCall,
        request: Message,
        answer: Callable[[bytes], HttpReply],
    ) -> None:
        """Has the handler of an RPC answer."""
        handler = cast(Handler, self._methods[path].handler)
        handler(TranslatedCall(call, request.SerializeToString(), answer))

    def _preflight(self, call: HttpCall) -> None:
        if not call.headers.get("origin", "").startswith("http"):
            call.fail(FailedPrecondition("Origin header is missing in CORS preflight"))
        else:
            call.respond(HttpReply(()))


def status_reply(response: bytes) -> HttpReply:
    """Returns the answer for a serialized ``GetModelStatusResponse``."""
    document = _document(
        get_model_status_pb2.GetModelStatusResponse.FromString(response)
    )
    for each in document["model_version_status"]:
        status = each["status"]
        status["error_message"] = without_paths(status["error_message"])
    return _in_json(document)


def metadata_reply(response: bytes) -> HttpReply:
    """Returns the answer for a serialized ``GetModelMetadataResponse``."""
    document = _document(
        get_model_metadata_pb2.GetModelMetadataResponse.FromString(response)
    )
    for value in document.get("metadata", {}).values():
        value.pop("@type", None)
    return _in_json(document)


def _document(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=POOL,
    )


def _in_json(document: dict[str, Any]) -> HttpReply:
    return HttpReply((json.dumps(document, indent=1).encode(),))


def answer_per_item(
    predict: PredictHandler,
    call: HttpCall,
    spec: ModelSpec,
    rows: Sequence[PredictBody],
) -> None:
    """Starts a request for each row; the call is finished with all their results."""
    results = [b""] * len(rows)
    left = itertools.count(len(rows) - 1, -1)

    def put(index: int, result: bytes) -> None:
        results[index] = result
        if not next(left):  # in one step, whichever threads answer
            body = b'{"%s":[%s]}' % (PREDICTIONS.encode(), b",".join(results))
            call.respond(HttpReply((body,)))

    for index, row in enumerate(rows):
        predict.start(
            _RowCall(call, index, put),
            spec,
            lambda signature, row=row: (row.read(signature), ()),  # type: ignore[misc]
            _ROWS,
            find=_signature_of,
        )


def _signature_of(servable: Servable, name: str) -> Signature:
    """Returns a signature; an unknown one is refused in the words that REST has for it."""
    signature = servable.signatures.get(name)
    if signature is None:
        raise FailedPrecondition(
            f'Serving signature name: "{name}" not found in signature def. '
            f"{servable.id.slashed} has {', '.join(sorted(servable.signatures))}"
        )
    return signature


_OF_ROWS = (Code.INVALID_ARGUMENT, Code.INTERNAL)
"""Codes that a row can be at fault for; any other is the request's."""


class _RowCall(DelegatingCall[HttpCall]):
    """The request for one row."""

    __slots__ = ("_index", "_put")

    def __init__(
        self, call: HttpCall, index: int, put: Callable[[int, bytes], None]
    ) -> None:
        super().__init__(call, b"")
        self._index = index
        self._put = put

    def reply(self, message: bytes) -> None:
        self._put(self._index, message)

    def fail(self, error: ServingError) -> None:
        if isinstance(error, InvalidItems):
            error = error.after(self._index)
        if error.code in _OF_ROWS:
            self.reply(dump({"error": error.message}))
        else:
            self._call.fail(error)


class _RowReplies(ReplyWriter):
    """Writes the only row of outputs."""

    def write(self, answerer: Answerer, outputs: Tensors) -> bytes:
        return dump(rows_of(outputs)[0])


_ROWS = _RowReplies()
