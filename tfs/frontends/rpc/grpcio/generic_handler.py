"""grpcio's way to our method table."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
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
    ResourceExhausted,
    ServingError,
    Unimplemented,
    forget_frames,
)
from tfs.frontends.rpc.answer_sizes import LARGE_BYTES
from tfs.frontends.rpc.grpcio.answer_room import AnswerRoom, Taken
from tfs.frontends.rpc.grpcio.grpcio_call import CallHost, GrpcioCall
from tfs.frontends.rpc.grpcio.inflater import Inflater
from tfs.frontends.rpc.grpcio.metadata_watch import MetadataWatch
from tfs.frontends.rpc.grpcio.stream_turns import StreamTurns
from tfs.frontends.rpc.grpcio.uploads import Upload, Uploads
from tfs.frontends.rpc.status_details import (
    CARDINALITY,
    DETAILS_KEY,
    status_details,
    wire_message,
)

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class MethodHost(CallHost, Protocol):
    """What the handler of a listener needs from the transport."""

    @property
    def answer_room(self) -> AnswerRoom:
        """The room that answers share."""

    @property
    def inflater(self) -> Inflater:
        """Decompresses requests."""

    @property
    def stream_turns(self) -> StreamTurns:
        """Decides which later messages of streams are read."""

    @property
    def uploads(self) -> Uploads:
        """Decides which requests are read."""

    def note_call(self, peer: str, is_read: bool) -> None:
        """Notes that grpcio has handed over a call, and if its request is read."""

    def client(self, peer: str) -> Peer | None:
        """Returns who a client is, by grpcio's name; None if it is gone."""

    def serve(self, method: RpcMethod, call: GrpcioCall) -> None:
        """Hands a call to its handler. On the serving loop."""


class GenericHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Looks paths up in the method table, for one listener."""

    def __init__(
        self,
        host: MethodHost,
        listener: ListenerOptions,
        methods: MethodTable,
        metadata_watch: MetadataWatch,
    ) -> None:
        self._host = host
        self._listener = listener
        self._methods = methods
        self._metadata_watch = metadata_watch

    def service(self, handler_call_details: Any) -> Any:
        """Returns grpcio's handler for the path, or one that says UNIMPLEMENTED."""
        metadata = tuple(handler_call_details.invocation_metadata)
        if self._metadata_watch.is_too_much(metadata):
            return self._refusal(
                ResourceExhausted("the metadata of the call is too long; send less")
            )
        method = self._methods.get(handler_call_details.method)
        services = self._listener.services
        if method is None or (services is not None and method.service not in services):
            path = handler_call_details.method
            return self._refusal(Unimplemented(f"unknown method {path[:200]}"))
        answer = functools.partial(
            {
                MethodKind.UNARY: self._unary,
                MethodKind.SERVER_STREAM: self._server_stream,
                MethodKind.BIDIRECTIONAL: self._bidirectional,
            }[method.kind],
            method,
            metadata,
        )
        match method.kind:
            # These too are registered as methods whose clients stream. Otherwise grpcio
            # would read their requests by itself.
            case MethodKind.UNARY:
                return grpc.stream_unary_rpc_method_handler(answer)
            case MethodKind.SERVER_STREAM:
                return grpc.stream_stream_rpc_method_handler(answer)
            case MethodKind.BIDIRECTIONAL:
                return grpc.stream_stream_rpc_method_handler(answer)

    def _refusal(self, error: ServingError) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            functools.partial(_refuse, self._host, error)
        )

    async def _unary(
        self, method: RpcMethod, metadata: Metadata, requests: Any, context: Any
    ) -> bytes:
        try:
            return await self._answer(method, metadata, context)
        except ServingError as failure:
            error = failure
        forget_frames(error)
        # The exception that abort raises refers to this frame. `requests` and `context`
        # refer to grpcio's state of the call, which keeps that exception. Without these
        # deletions they would form a cycle that keeps everything the call had.
        del requests
        try:
            await context.abort(*_status(error))
        finally:
            del context
        raise AssertionError("abort returns never")

    async def _answer(
        self, method: RpcMethod, metadata: Metadata, context: Any
    ) -> bytes:
        """Returns a unary call's answer; raises its error."""
        host = self._host
        room = host.answer_room
        peer = str(context.peer())
        upload = await self._begin(peer, is_read=True)
        try:
            message = await _read(context)
            if message is None:
                raise CARDINALITY
            request = await host.inflater.inflate(message)
            del message
            if upload is not None:
                host.uploads.note_whole(upload, len(request))
            claimed_bytes = 0
            if method.claimed_bytes is not None and len(request) < LARGE_BYTES:
                claimed_bytes = method.claimed_bytes(request)
            taken = await room.enter(peer, request, claimed_bytes)
        finally:
            if upload is not None:
                host.uploads.end(upload)
        # The answer is gone when this task ends. (A callback registered with the
        # context would make a reference cycle.)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(functools.partial(_leave, room, taken))
        call = self._call(method, metadata, request, context)
        host.loop.post(functools.partial(host.serve, method, call))
        try:
            await call.progress.wait()
        except asyncio.CancelledError:
            host.loop.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, bytes):
            room.answer(taken, request, len(outcome))
            return outcome
        if isinstance(outcome, ServingError):
            raise outcome
        raise Internal("transport: a unary call was finished without a reply")

    async def _server_stream(
        self, method: RpcMethod, metadata: Metadata, requests: Any, context: Any
    ) -> AsyncIterator[bytes]:
        try:
            request = await self._first(context, is_only=True)
            if request is None:
                raise CARDINALITY
            call = self._call(method, metadata, request, context)
            with self._part_of_stream(context) as taken:
                async for message in self._stream(method, call, taken):
                    yield message
        except ServingError as error:
            _fail(context, error)

    async def _bidirectional(
        self, method: RpcMethod, metadata: Metadata, requests: Any, context: Any
    ) -> AsyncIterator[bytes]:
        try:
            first = await self._first(context, is_only=False)
            if first is None:
                return  # a client that sends no message gets no answer, and OK
            call = self._call(method, metadata, first, context)
            with self._part_of_stream(context) as taken:
                pump = asyncio.ensure_future(self._pump(context, call, taken))
                try:
                    async for message in self._stream(method, call, taken):
                        yield message
                finally:
                    pump.cancel()
        except ServingError as error:
            _fail(context, error)

    @contextlib.contextmanager
    def _part_of_stream(self, context: Any) -> Iterator[Taken]:
        """Yields the part of the answers' room that a stream has while it is open."""
        room = self._host.answer_room
        taken = room.begin_stream(str(context.peer()))
        try:
            yield taken
        finally:
            room.leave(taken)

    async def _begin(self, peer: str, *, is_read: bool) -> Upload | None:
        """Waits until a request may be read; None for peers that have no name."""
        uploads = self._host.uploads
        self._host.note_call(peer, is_read)
        return uploads.take(peer) or await uploads.wait(peer)

    async def _first(self, context: Any, *, is_only: bool) -> bytes | memoryview | None:
        """Returns the first message of a stream; None if there is none."""
        peer = str(context.peer())
        upload = None
        try:
            upload = await self._begin(peer, is_read=is_only)
            message = await _read(context)
            if message is None:
                return None
            if upload is not None:
                self._host.uploads.note_message(upload, len(message))
            return await self._host.inflater.inflate(message)
        finally:
            if upload is not None:
                self._host.uploads.end(upload)

    async def _pump(self, context: Any, call: GrpcioCall, taken: Taken) -> None:
        """Hands on the later messages of a stream."""
        host = self._host
        while True:
            await call.wait_until_sent()
            sent = await host.stream_turns.read(taken.peer, context.read)
            if sent is None:
                break
            host.uploads.note_length(len(sent))
            host.answer_room.expect(taken)
            try:
                message = await host.inflater.inflate(sent)
            except ServingError as error:
                forget_frames(error)
                host.loop.post(functools.partial(call.cut_off, error))
                return
            host.loop.post(functools.partial(call.take_message, message))
        host.loop.post(call.take_half_close)

    async def _stream(
        self, method: RpcMethod, call: GrpcioCall, taken: Taken
    ) -> AsyncIterator[bytes]:
        """Yields the messages of a stream; raises its error."""
        host = self._host
        room = host.answer_room
        host.loop.post(functools.partial(host.serve, method, call))
        try:
            while True:
                await call.progress.wait()
                call.progress.clear()
                was_open = call.is_open
                while call.outbox:
                    room.note_unsent(taken, sum(map(len, call.outbox)))
                    yield call.outbox.popleft()
                room.note_unsent(taken, 0)
                call.note_sent()
                if not was_open:
                    break
        except (asyncio.CancelledError, GeneratorExit):
            host.loop.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, ServingError):
            raise outcome
        if outcome is not None:
            room.note_unsent(taken, len(outcome))
            yield outcome

    def _call(
        self,
        method: RpcMethod,
        metadata: Metadata,
        request: bytes | memoryview,
        context: Any,
    ) -> GrpcioCall:
        host = self._host
        remaining_s = context.time_remaining()
        deadline_s = None
        if remaining_s is not None:
            deadline_s = host.loop.clock.now() + remaining_s
        return GrpcioCall(
            host,
            method.path,
            request,
            deadline_s,
            metadata,
            self._peer(context),
        )

    def _peer(self, context: Any) -> Peer:
        """Returns who calls; somebody unknown if it is gone, and so is its call soon."""
        return self._host.client(str(context.peer())) or Peer("", self._listener.name)


async def _refuse(
    host: MethodHost, error: ServingError, requests: Any, context: Any
) -> None:
    host.note_call(str(context.peer()), False)
    _fail(context, error)


async def _read(context: Any) -> bytes | None:
    """Returns the next message of a client; None if there is none."""
    message = await context.read()
    return message if isinstance(message, bytes) else None


def _leave(room: AnswerRoom, taken: Taken, task: object) -> None:
    room.leave(taken)


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
