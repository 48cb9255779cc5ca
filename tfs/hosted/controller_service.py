"""tfs.v1.Controller: checks who calls, reads the request, writes the reply.

Over gRPC, and over HTTP as POST /v1/METHOD, with the method's messages as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from tfs.core.call import Call, Handler, MethodKind, RpcMethod, StreamCall
from tfs.core.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.core.http_call import HttpCall, HttpReply, verb_not_taken
from tfs.handlers.admin_access import AdminAccess, AdminFrom
from tfs.handlers.delegating_call import TranslatedCall
from tfs.handlers.message_limits import CONFIG_BYTES, parse
from tfs.handlers.reflection import OpenStreams
from tfs.hosted.controller import Controller
from tfs.hosted.identities import ControlOptions
from tfs.proto.tfs.v1 import controller_pb2 as pb

_PREFIX: Final = "/v1/"
MAX_BODY_BYTES: Final = 1 << 20

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Controller"]
_UNARY: Final = {m.name: m for m in _SERVICE.methods if not m.server_streaming}
_ALLOWED: Final = frozenset({AdminFrom.LOOPBACK, AdminFrom.SOCKET, AdminFrom.MTLS})


class ControllerService:
    """The methods of the service. Confined to the serving loop; replies come from any thread.

    What blocks on the store runs on the executor; ``streams`` ends watches when the server
    drains, and ``post`` runs a function on the loop. Callers over HTTP may show the key, if
    it is not empty, in the place of a certificate.
    """

    def __init__(
        self,
        controller: Controller,
        executor: Executor,
        streams: OpenStreams,
        post: Callable[[Callable[[], None]], None],
        control: ControlOptions,
    ) -> None:
        self._controller = controller
        self._executor = executor
        self._streams = streams
        self._post = post
        self._identities = control.identities
        self._access = AdminAccess(_ALLOWED, control.http_key)

    def methods(self) -> list[RpcMethod]:
        """Returns the methods, by path."""
        path = f"/{_SERVICE.full_name}/"
        unary = [RpcMethod(path + n, self._handler(each)) for n, each in _UNARY.items()]
        watch = RpcMethod(path + "WatchModel", self._watch, MethodKind.SERVER_STREAM)
        return [*unary, watch]

    def answer_http(self, call: HttpCall) -> None:
        """Starts what a method, but for streams, does; who may ask is looked at first."""
        try:
            self._check(call)
            method = _UNARY.get(call.path.removeprefix(_PREFIX))
            if method is None:
                known = ", ".join(_PREFIX + each for each in sorted(_UNARY))
                raise NotFound(f"there is nothing at {call.path}; there are {known}")
            if call.verb != "POST":
                raise verb_not_taken(call.path, call.verb, "POST")
            request, reply = _kind(method.input_type)(), _kind(method.output_type)
            json_format.Parse(bytes(call.message) or b"{}", request)
        except ServingError as error:
            call.fail(error)
            return
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            what = f"the body is no {request.DESCRIPTOR.name} as JSON: {error}"
            call.fail(InvalidArgument(what))
            return

        def answer(message: bytes) -> HttpReply:
            text = json_format.MessageToJson(
                reply.FromString(message), preserving_proto_field_name=True
            )
            return HttpReply((text.encode(), b"\n"))

        self._handler(method)(TranslatedCall(call, request.SerializeToString(), answer))

    def _handler(self, method: Any) -> Handler:
        kind = _kind(method.input_type)
        return lambda call: self._start(call, kind, self._run)

    def _run(self, call: Call, request: Any, owner: str) -> None:
        def answer(message: Message) -> None:
            call.reply(message.SerializeToString())

        controller = self._controller
        match request:
            case pb.GetModelRequest():
                answer(controller.model(request))
            case pb.ListFleetRequest():
                answer(controller.fleet(request))
            case pb.GetOpRequest():
                answer(controller.op(request))
            case pb.SimulateRequest():
                answer(controller.simulate(request, owner))
            case _:
                controller.change(request, call.deadline_s, answer, owner)

    def _watch(self, call: StreamCall) -> None:
        def tell(model: pb.ModelInfo | None) -> None:
            if model is None:
                self._post(lambda: self._streams.finish(call))
            else:
                # A client that reads too slowly gets the next state instead.
                call.send(model.SerializeToString())

        def run(_: Call, request: Any, owner: str) -> None:
            self._controller.watch(request, tell, lambda: call.cancel.error is None)

        if self._streams.add(call):
            self._start(call, pb.GetModelRequest, run)

    def _start(
        self, call: Call, kind: Any, run: Callable[[Call, Any, str], None]
    ) -> None:
        try:
            self._check(call)
            owner = self._identities.owner(call.peer)
            request = parse(kind, call.message, CONFIG_BYTES)
        except ServingError as error:
            call.fail(error)
            return

        def work() -> None:
            try:
                run(call, request, owner)
            except Exception as error:
                call.fail(serving_error(error, call.method))

        self._executor.submit(work)

    def _check(self, call: Call) -> None:
        try:
            self._access.check(call)
        except PermissionDenied:
            raise PermissionDenied(
                f"{call.peer.address} may not operate this fleet: call from its machine, "
                "or with a verified certificate; over HTTP with one, or with the key of "
                "its folder, as Authorization: Bearer KEY"
            ) from None


def _kind(descriptor: Any) -> type[Message]:
    return message_factory.GetMessageClass(descriptor)
