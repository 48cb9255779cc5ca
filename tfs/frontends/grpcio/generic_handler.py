"""grpcio's way to our method table."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc
import grpc.aio

from tfs.core.call import (
    ListenerOptions,
    Metadata,
    MethodKind,
    MethodTable,
    Peer,
    RpcMethod,
)
from tfs.core.errors import (
    Code,
    Internal,
    ServingError,
    Unimplemented,
    forget_frames,
)
from tfs.frontends.grpcio.grpcio_call import CallHost, GrpcioCall
from tfs.frontends.status_details import (
    DETAILS_KEY,
    status_details,
    wire_message,
)

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class MethodHost(CallHost, Protocol):
    """What the handler of a listener needs from the transport."""

    def serve(self, method: RpcMethod, call: GrpcioCall) -> None:
        """Hands a call to its handler. On the serving loop."""


class GenericHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Looks paths up in the method table, for one listener."""

    def __init__(
        self, host: MethodHost, listener: ListenerOptions, methods: MethodTable
    ) -> None:
        self._host = host
        self._listener = listener
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        """Returns grpcio's handler for the path, or one that says UNIMPLEMENTED."""
        method = self._methods.get(handler_call_details.method)
        services = self._listener.services
        if method is None or (services is not None and method.service not in services):
            path = handler_call_details.method
            error = Unimplemented(f"unknown method {path[:200]}")
            return grpc.stream_stream_rpc_method_handler(
                functools.partial(_refuse, error)
            )
        metadata = tuple(handler_call_details.invocation_metadata)
        match method.kind:
            case MethodKind.UNARY:
                return grpc.unary_unary_rpc_method_handler(
                    functools.partial(self._unary, method, metadata)
                )
            case MethodKind.SERVER_STREAM:
                return grpc.unary_stream_rpc_method_handler(
                    functools.partial(self._server_stream, method, metadata)
                )
            case MethodKind.BIDIRECTIONAL:
                return grpc.stream_stream_rpc_method_handler(
                    functools.partial(self._bidirectional, method, metadata)
                )

    async def _unary(
        self, method: RpcMethod, metadata: Metadata, request: bytes, context: Any
    ) -> bytes:
        host = self._host
        call = self._call(method, metadata, request, context)
        host.loop.post(functools.partial(host.serve, method, call))
        try:
            await call.progress.wait()
        except asyncio.CancelledError:
            host.loop.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, bytes):
            return outcome
        if outcome is None:
            outcome = Internal("transport: a unary call was finished without a reply")
        # The exception that abort raises refers to this frame, and grpcio's state of the
        # call keeps it. Without these deletions they would form a cycle that keeps the
        # message.
        del call, request
        try:
            await context.abort(*_status(outcome))
        finally:
            del context
        raise AssertionError("abort returns never")

    async def _server_stream(
        self, method: RpcMethod, metadata: Metadata, request: bytes, context: Any
    ) -> AsyncIterator[bytes]:
        call = self._call(method, metadata, request, context)
        async for message in self._stream(method, call, context):
            yield message

    async def _bidirectional(
        self, method: RpcMethod, metadata: Metadata, requests: Any, context: Any
    ) -> AsyncIterator[bytes]:
        messages = requests.__aiter__()
        first = await anext(messages, None)
        if first is None:
            return  # a client that sends no message gets no answer, and OK
        call = self._call(method, metadata, first, context)
        pump = asyncio.ensure_future(self._pump(messages, call))
        try:
            async for message in self._stream(method, call, context):
                yield message
        finally:
            pump.cancel()

    async def _pump(self, messages: Any, call: GrpcioCall) -> None:
        """Hands on the later messages of a stream."""
        host = self._host
        async for message in messages:
            host.loop.post(functools.partial(call.take_message, message))
        host.loop.post(call.take_half_close)

    async def _stream(
        self, method: RpcMethod, call: GrpcioCall, context: Any
    ) -> AsyncIterator[bytes]:
        """Yields the messages of a stream; tells grpcio its error."""
        host = self._host
        host.loop.post(functools.partial(host.serve, method, call))
        try:
            while True:
                await call.progress.wait()
                call.progress.clear()
                was_open = call.is_open
                while call.outbox:
                    yield call.outbox.popleft()
                if not was_open:
                    break
        except (asyncio.CancelledError, GeneratorExit):
            host.loop.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, ServingError):
            _fail(context, outcome)
        elif outcome is not None:
            yield outcome

    def _call(
        self, method: RpcMethod, metadata: Metadata, request: bytes, context: Any
    ) -> GrpcioCall:
        host = self._host
        remaining_s = context.time_remaining()
        deadline_s = None
        if remaining_s is not None:
            deadline_s = host.loop.clock.now() + remaining_s
        peer = _peer(context, self._listener.name)
        return GrpcioCall(host, method.path, request, deadline_s, metadata, peer)


async def _refuse(error: ServingError, requests: Any, context: Any) -> None:
    _fail(context, error)


def _fail(context: Any, error: ServingError) -> None:
    """Makes a stream end with an error when its handler returns."""
    forget_frames(error)  # they refer to the context
    code, message, trailers = _status(error)
    context.set_code(code)
    context.set_details(message)
    context.set_trailing_metadata(trailers)


def _status(
    error: ServingError,
) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    details = status_details(error)
    trailers = () if details is None else ((DETAILS_KEY, details),)
    code = STATUS_CODES[int(error.code if error.code is not Code.OK else Code.UNKNOWN)]
    return code, wire_message(error), trailers


def _peer(context: Any, listener: str) -> Peer:
    """Reads grpcio's peer: "ipv4:127.0.0.1:51024", "ipv6:%5B::1%5D:51024", "unix:"."""
    scheme, _, address = str(context.peer()).partition(":")
    if scheme == "unix":
        return Peer(f"unix:{address}", listener, is_loopback=True)
    address = address.replace("%5B", "[").replace("%5D", "]")
    host = address.rpartition(":")[0].strip("[]")
    is_loopback = host.startswith(("127.", "::ffff:127.")) or host == "::1"
    names = tuple(str(name, "utf-8") for name in context.peer_identities() or ())
    return Peer(address, listener, is_loopback, names)
