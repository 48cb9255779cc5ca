"""tfs.v1.Controller over HTTP: POST /v1/METHOD, with the method's messages as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from tfs.core.call import Handler, MethodKind, RpcMethod
from tfs.core.errors import InvalidArgument, NotFound, ServingError, Unimplemented
from tfs.core.http_call import HttpCall, HttpReply
from tfs.handlers.delegating_call import TranslatedCall
from tfs.hosted.controller_service import ControllerAccess
from tfs.proto.tfs.v1 import controller_pb2 as pb

PREFIX: Final = "/v1/"
MAX_BODY_BYTES: Final = 1 << 20

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["Controller"]


class ControllerRest:
    """Answers what the service's methods answer; all but streams. Confined to the loop.

    Args:
        methods: The methods of the service.
        access: Who may call them; asked before anything is read.

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
            request = message_factory.GetMessageClass(method.input_type)()
            reply = message_factory.GetMessageClass(method.output_type)
            _read(call, request)
        except ServingError as error:
            call.fail(error)
            return

        def answer(message: bytes) -> HttpReply:
            text = json_format.MessageToJson(
                reply.FromString(message), preserving_proto_field_name=True
            )
            return HttpReply((text.encode(), b"\n"))

        handler(TranslatedCall(call, request.SerializeToString(), answer))


def _read(call: HttpCall, request: Message) -> None:
    try:
        json_format.Parse(bytes(call.message) or b"{}", request)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(
            f"the body is no {request.DESCRIPTOR.name} as JSON: {error}"
        ) from None
