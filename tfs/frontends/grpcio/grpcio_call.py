"""One RPC under grpcio, and grpcio's way to our method table."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

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
    Cancelled,
    Code,
    DeadlineExceeded,
    Internal,
    ServingError,
    Unavailable,
    Unimplemented,
    forget_frames,
)
from tfs.core.loop.serving_loop import ServingLoop, Timer
from tfs.core.servable import CancelToken
from tfs.core.stats import Counter
from tfs.frontends.status_details import (
    DETAILS_KEY,
    handler_error,
    status_details,
    wire_message,
)

log = logging.getLogger(__name__)


class CallHost:
    """What the calls of a transport share: the serving loop, and the way to grpcio's.

    Attributes:
        is_draining: Whether calls are refused.
        loop: The loop on which calls are handled.
        max_queued_messages: How many messages of one stream may wait for a slow reader.

    Args:
        aio: The loop of grpcio's thread.
        late_finishes: Counts finishes that came after their call had ended.

    """

    def __init__(
        self,
        loop: ServingLoop,
        aio: asyncio.AbstractEventLoop,
        late_finishes: Counter,
        max_queued_messages: int,
    ) -> None:
        self.is_draining = False
        self.loop = loop
        self.max_queued_messages = max_queued_messages
        self.count_late_finish = late_finishes.add
        self._aio = aio
        self._finished: deque[Callable[[], None]] = deque()
        self._armed = False

    def serve(self, method: RpcMethod, call: GrpcioCall) -> None:
        """Hands a call to its handler, on the serving loop."""
        call.arm_deadline()
        if self.is_draining:
            call.fail(Unavailable("the server is shutting down", retry_after_s=1.0))
            return
        try:
            method.handler(call)
        except Exception as error:
            call.on_handler_failure(error)

    def to_aio(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on grpcio's thread; a burst costs one wake-up. Thread-safe."""
        self._finished.append(fn)
        if not self._armed:
            self._armed = True
            try:
                self._aio.call_soon_threadsafe(self._run_finished)
            except RuntimeError:  # the loop is closed: nobody waits
                self._finished.clear()

    def _run_finished(self) -> None:
        self._armed = False
        finished = self._finished
        while finished:
            finished.popleft()()


class GrpcioCall:
    """One RPC under grpcio; see :class:`tfs.core.call.StreamCall`.

    Finishing and sending are thread-safe; ``on_*`` belong to the serving loop.
    """

    def __init__(
        self,
        host: CallHost,
        method: str,
        message: bytes,
        deadline_s: float | None,
        metadata: Metadata,
        peer: Peer,
    ) -> None:
        self.method = method
        self.message = message
        self.deadline_s = deadline_s
        self.opened_s = host.loop.clock.now()
        self.metadata = metadata
        self.peer = peer
        self.cancel = CancelToken()
        self.outcome: bytes | ServingError | None = None
        self._host = host
        self._loop = host.loop
        self._open = deque((None,))  # whoever pops the item may finish the call
        self._timer: Timer | None = None
        self._cancel_fns: list[Callable[[], None]] = []
        self._message_fn: Callable[[bytes | memoryview], None] | None = None
        self._half_close_fn: Callable[[], None] | None = None
        self._early_messages: deque[bytes] = deque()
        self._half_closed = False
        self._max_queued_messages = host.max_queued_messages
        self.outbox: deque[bytes] = deque()
        self.progress = asyncio.Event()  # set only on grpcio's thread

    def reply(self, message: bytes) -> None:
        """Finishes with OK."""
        self._finish(message)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Finishes with OK."""
        self._finish(b"".join(parts))

    def fail(self, error: ServingError) -> None:
        """Finishes with the error."""
        forget_frames(error)  # they refer to this call: a cycle that keeps the message
        self._finish(error)

    def finish(self) -> None:
        """Ends a stream with OK."""
        self._finish(None)

    def send(self, message: bytes) -> bool:
        """Queues a message, unless too many wait already."""
        if not self._open or len(self.outbox) >= self._max_queued_messages:
            return False
        self.outbox.append(message)
        self._host.to_aio(self.progress.set)
        return True

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        """Tells that there is room: this transport bounds nothing."""
        return True

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the client goes away or the deadline passes."""
        if self.cancel.error is not None:
            fn()
        elif self._open:
            self._cancel_fns.append(fn)

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` for each later request message."""
        if self._open:
            self._message_fn = fn
        while self._early_messages and self._open:
            self._tell(fn, self._early_messages.popleft())

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` when the client will send no more."""
        if self._half_closed:
            self._tell(fn)
        elif self._open:
            self._half_close_fn = fn

    @property
    def is_open(self) -> bool:
        """Whether nothing has finished the call yet."""
        return bool(self._open)

    # -- for the transport ---------------------------------------------------------

    def arm_deadline(self) -> None:
        """Starts the deadline's timer. On the serving loop."""
        if self.deadline_s is not None and self._open:
            self._timer = self._loop.call_at(self.deadline_s, self._expire)

    def abandon(self) -> None:
        """Ends the call because grpcio says that the client is gone. On the loop."""
        now_s = self._loop.clock.now()
        if self.deadline_s is not None and now_s >= self.deadline_s:
            self._expire()
        else:
            self.cut_off(Cancelled("the client cancelled the call"))

    def take_message(self, message: bytes) -> None:
        """Hands on a later request message. On the serving loop."""
        fn = self._message_fn
        if fn is not None:
            self._tell(fn, message)
        elif self._open:
            self._early_messages.append(message)

    def take_half_close(self) -> None:
        """Notes that the client sends no more. On the serving loop."""
        self._half_closed = True
        fn, self._half_close_fn = self._half_close_fn, None
        if fn is not None:
            self._tell(fn)

    def cut_off(self, error: ServingError) -> None:
        """Ends the call without its handler, unless that ended it. On the loop."""
        if not self._open:
            return
        fns = self._cancel_fns
        self.cancel.cancel(error)
        self._finish(error)
        for fn in fns:
            self._tell(fn)

    def on_handler_failure(self, error: Exception) -> None:
        """Logs what a handler raised, and ends its call. On the serving loop."""
        log.error("event=handler_failed method=%s", self.method, exc_info=error)
        forget_frames(error)  # as in ``fail``
        self.cut_off(handler_error(error, self.method))

    def _tell(self, fn: Callable[..., None], *args: bytes) -> None:
        """Calls a function of the handler's; contains what it raises."""
        try:
            fn(*args)
        except Exception as error:
            self.on_handler_failure(error)

    def _expire(self) -> None:
        self.cut_off(DeadlineExceeded("Deadline Exceeded"))

    def _finish(self, outcome: bytes | ServingError | None) -> None:
        try:
            self._open.pop()
        except IndexError:
            self._host.count_late_finish()
            return
        self.outcome = outcome
        # They refer to this call: a cycle that keeps the message.
        self._cancel_fns = []
        self._message_fn = None
        self._half_close_fn = None
        timer = self._timer
        if timer is not None:
            if self._loop.is_loop_thread:
                timer.cancel()
            else:
                self._loop.post(timer.cancel)
        self._host.to_aio(self.progress.set)


STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


class GenericHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Looks paths up in the method table, for one listener."""

    def __init__(
        self, host: CallHost, listener: ListenerOptions, methods: MethodTable
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
