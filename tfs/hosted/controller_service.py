"""tfs.v1.Controller: checks who calls, reads the request, writes the reply.

Over gRPC, and over HTTP as POST /v1/METHOD, with the method's messages as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from tfs.core.call import Call, Handler, MethodKind, RpcMethod, StreamCall
from tfs.core.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    Unimplemented,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.core.http_call import HttpCall, HttpReply
from tfs.handlers.admin_access import AdminAccess, AdminFrom
from tfs.handlers.delegating_call import TranslatedCall
from tfs.handlers.message_limits import CONFIG_BYTES, parse
from tfs.handlers.reflection import OpenStreams
from tfs.hosted.controller import Controller
from tfs.hosted.identities import Identities
from tfs.proto.tfs.v1 import controller_pb2 as pb

PREFIX: Final = "/v1/"
MAX_BODY_BYTES: Final = 1 << 20

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Controller"]
_ALLOWED: Final = frozenset({AdminFrom.LOOPBACK, AdminFrom.SOCKET, AdminFrom.MTLS})


class ControllerAccess:
    """Who may operate a fleet; over HTTP also who shows the key, if any. Immutable."""

    def __init__(self, key: str, identities: Identities) -> None:
        self._access = AdminAccess(_ALLOWED, key)
        self._identities = identities

    def owner(self, call: Call, *, changes: bool) -> str:
        """Returns the name that a caller goes by; PermissionDenied if it may not do that."""
        self.check(call)
        return self._identities.owner(call.peer, changes=changes)

    def check(self, call: Call) -> None:
        """Returns if this caller may come in; PermissionDenied if it may not."""
        try:
            self._access.check(call)
        except PermissionDenied:
            raise PermissionDenied(
                f"{call.peer.address} may not operate this fleet: call from its machine, "
                "or with a verified certificate; over HTTP with one, or with the key of "
                "its folder, as Authorization: Bearer KEY"
            ) from None


class ControllerService:
    """The methods of the service. Confined to the serving loop; replies come from any thread.

    What blocks on the store runs on the executor; ``streams`` ends watches when the server
    drains, and ``post`` runs a function on the loop.
    """

    def __init__(
        self,
        controller: Controller,
        executor: Executor,
        streams: OpenStreams,
        post: Callable[[Callable[[], None]], None],
        access: ControllerAccess,
    ) -> None:
        self._controller = controller
        self._executor = executor
        self._streams = streams
        self._post = post
        self._access = access

    def methods(self) -> list[RpcMethod]:
        """Returns the methods, by path."""
        controller = self._controller
        answers: dict[str, Callable[[Any, str], Message]] = {
            "GetModel": lambda asked, _: controller.model(asked),
            "ListModels": lambda asked, _: controller.fleet(asked),
            "GetOp": lambda asked, _: controller.op(asked),
            "Simulate": controller.simulate,
        }

        def handler(kind: type[Message], name: str) -> Handler:
            if "edit" in kind.DESCRIPTOR.fields_by_name:
                return lambda call: self._start(call, kind, self._change, changes=True)

            def run(call: Call, request: Any, owner: str) -> None:
                call.reply(answers[name](request, owner).SerializeToString())

            return lambda call: self._start(call, kind, run)

        return [
            RpcMethod(path, self._watch, MethodKind.SERVER_STREAM)
            if each.server_streaming
            else RpcMethod(path, handler(_kind(each.input_type), each.name))
            for each in _SERVICE.methods
            for path in [f"/{_SERVICE.full_name}/{each.name}"]
        ]

    def _change(self, call: Call, request: Any, owner: str) -> None:
        self._controller.change(
            request,
            call.deadline_s,
            lambda op: call.reply(op.SerializeToString()),
            owner,
        )

    def _watch(self, call: StreamCall) -> None:
        def run(_: Call, request: Any, owner: str) -> None:
            def tell(model: pb.ModelInfo | None) -> None:
                if model is None:
                    self._post(lambda: self._streams.finish(call))
                else:
                    # A client that reads too slowly gets the next state instead.
                    call.send(model.SerializeToString())

            self._controller.watch(request, tell, lambda: call.cancel.error is None)

        if self._streams.add(call):
            self._start(call, pb.GetModelRequest, run)

    def _start(
        self,
        call: Call,
        kind: Any,
        run: Callable[[Call, Any, str], None],
        *,
        changes: bool = False,
    ) -> None:
        try:
            owner = self._access.owner(call, changes=changes)
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


class ControllerRest:
    """Answers what the service's methods answer; all but streams. Confined to the loop.

    Who may call them is asked before anything is read.
    """

    def __init__(self, methods: Sequence[RpcMethod], access: ControllerAccess) -> None:
        self._access = access
        self._handlers = {
            each.path.rpartition("/")[2]: cast(Handler, each.handler)
            for each in methods
            if each.kind is MethodKind.UNARY
        }

    def __call__(self, call: HttpCall) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        try:
            self._access.check(call)
            name = call.path.removeprefix(PREFIX)
            handler = self._handlers.get(name)
            if handler is None:
                known = ", ".join(PREFIX + each for each in sorted(self._handlers))
                raise NotFound(f"there is nothing at {call.path}; there are {known}")
            if call.verb != "POST":
                raise Unimplemented(f"{call.path} takes POST, not {call.verb}")
            method = _SERVICE.methods_by_name[name]
            request, reply = _kind(method.input_type)(), _kind(method.output_type)
            json_format.Parse(bytes(call.message) or b"{}", request)
        except ServingError as error:
            call.fail(error)
            return
        except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
            what = f"the body is no {method.input_type.name} as JSON: {error}"
            call.fail(InvalidArgument(what))
            return

        def answer(message: bytes) -> HttpReply:
            text = json_format.MessageToJson(
                reply.FromString(message), preserving_proto_field_name=True
            )
            return HttpReply((text.encode(), b"\n"))

        handler(TranslatedCall(call, request.SerializeToString(), answer))


def _kind(descriptor: Any) -> type[Message]:
    return message_factory.GetMessageClass(descriptor)
