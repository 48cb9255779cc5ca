"""The transport seam over grpcio's public API.

One asyncio loop on a thread of its own runs grpcio's servers, one per listener, so
that a listener shows only its services. Each RPC becomes a call that is posted to
the serving loop; its finish comes back in bursts, one wake-up each. Nothing here
knows what a model is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from tfs.core.call import (
    ListenerOptions,
    Metadata,
    Method,
    MethodKind,
    MethodTable,
    Peer,
    TlsOptions,
    TlsSource,
)
from tfs.core.errors import (
    Cancelled,
    Code,
    DeadlineExceeded,
    InvalidArgument,
    ServingError,
    Unavailable,
    Unimplemented,
    serving_error,
)
from tfs.core.servable import CancelToken
from tfs.core.serving_loop import ServingLoop, Timer
from tfs.core.stat_names import RPC_LATE_FINISHES
from tfs.core.stats import Stats
from tfs.frontends.rpc.status_details import (
    DETAILS_KEY,
    handler_error,
    status_details,
    wire_message,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
_MAX_MESSAGE_BYTES = 2**31 - 1
_START_S = 30.0
_LOOK_S = 0.5  # between looks whether a listener is still open
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class GrpcioOptions:
    """How grpcio is set up.

    Attributes:
        max_message_bytes: Largest request and reply.
        max_queued_messages: Messages of one stream that wait for a slow reader.
        channel_arguments: grpcio's own, laid over ours (``--grpc_channel_arguments``).

    """

    max_message_bytes: int = _MAX_MESSAGE_BYTES
    max_queued_messages: int = 128
    channel_arguments: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.max_message_bytes <= _MAX_MESSAGE_BYTES:
            raise InvalidArgument(
                f"max_message_bytes must be in 1..{_MAX_MESSAGE_BYTES}, "
                f"got {self.max_message_bytes}"
            )
        if self.max_queued_messages < 1:
            raise InvalidArgument("max_queued_messages must be positive")


class GrpcioTransport:
    """Serves a method table through grpcio; see :class:`tfs.core.call.Transport`.

    Thread-safe. ``start``, ``drain`` and ``close`` block; none runs on the serving
    loop. After ``start`` failed the transport is closed.
    """

    def __init__(
        self,
        loop: ServingLoop,
        options: GrpcioOptions | None = None,
        stats: Stats | None = None,
    ) -> None:
        self._loop = loop
        self._options = options or GrpcioOptions()
        self._late = (stats or Stats()).counter(RPC_LATE_FINISHES)
        self._aio: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[grpc.aio.Server] = []
        self._keepers: list[asyncio.Future[None]] = []
        self._draining = False
        self._finished: deque[Callable[[], None]] = deque()
        self._armed = False

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; see :meth:`tfs.core.call.Transport.start`."""
        aio = self._aio = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(aio,), name="grpcio", daemon=True
        )
        self._thread.start()
        try:
            return self._on_aio(self._start(listeners, methods), _START_S)
        except BaseException:
            self.close()
            raise

    def drain(self, deadline_s: float) -> bool:
        """Refuses new calls, waits for those taken."""
        self._draining = True
        grace_s = max(0.0, deadline_s - self._loop.clock.now())
        return self._on_aio(self._stop(grace_s), grace_s + _START_S)

    def close(self) -> None:
        """Ends everything; idempotent."""
        aio, self._aio = self._aio, None
        if aio is None:
            return
        self._draining = True
        asyncio.run_coroutine_threadsafe(self._stop(0.0), aio).result(_START_S)
        aio.call_soon_threadsafe(aio.stop)
        if self._thread is not None:
            self._thread.join(_START_S)

    # -- on grpcio's thread ------------------------------------------------------

    def _run(self, aio: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(aio)
        try:
            aio.run_forever()
            pending = asyncio.all_tasks(aio)
            for task in pending:
                task.cancel()
            aio.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            aio.close()

    def _on_aio(self, work: Awaitable[T], timeout_s: float) -> T:
        aio = self._aio
        if aio is None:
            raise Unavailable("the transport is closed")

        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), aio).result(timeout_s)

    async def _start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        addresses = []
        try:
            for listener in listeners:
                server = self._make_server(listener, methods)
                self._servers.append(server)
                addresses.append(_bind(server, listener))
        finally:
            # Also when one of them cannot be bound: only a server that was started
            # lets go of its ports when it is stopped.
            for server in self._servers:
                await server.start()
        for index, (listener, address) in enumerate(
            zip(listeners, addresses, strict=True)
        ):
            _restrict(listener)
            keeper = self._keep_open(index, replace(listener, address=address), methods)
            self._keepers.append(asyncio.ensure_future(keeper))
        return addresses

    def _make_server(
        self, listener: ListenerOptions, methods: MethodTable
    ) -> grpc.aio.Server:
        server = grpc.aio.server(options=self._channel_arguments())
        handler = _GenericHandler(self, listener, methods)
        server.add_generic_rpc_handlers((handler,))
        return server

    async def _keep_open(
        self, index: int, listener: ListenerOptions, methods: MethodTable
    ) -> None:
        """Opens a listener again whose server ended by itself.

        A path that is not UTF-8 ends grpcio's loop, and its port is closed (seen with
        1.85.1): one request must not be the last one. grpcio tells nobody before the
        calls that it left behind have ended, so this looks whether the door is open.
        """
        while not self._draining:
            await asyncio.sleep(_LOOK_S)
            if self._draining or _is_open(listener.address):
                continue
            log.error("event=grpcio_server_failed listener=%s", listener.name)
            with contextlib.suppress(Exception):  # what ended it comes out here
                await asyncio.wait_for(self._servers[index].stop(0.0), _STOP_S)
            server = self._make_server(listener, methods)
            try:
                _bind(server, listener)
            except Unavailable as error:
                log.error("event=grpcio_restart_failed error=%r", error.message)
                continue
            self._servers[index] = server
            await server.start()
            _restrict(listener)
            log.warning("event=grpcio_server_restarted listener=%s", listener.name)

    async def _stop(self, grace_s: float) -> bool:
        servers, aio = self._servers, asyncio.get_running_loop()
        begun_s = aio.time()
        await asyncio.gather(*(server.stop(grace_s) for server in servers))
        return aio.time() - begun_s < grace_s or grace_s == 0.0

    def _channel_arguments(self) -> list[tuple[str, int | str]]:
        arguments: dict[str, int | str] = {
            "grpc.max_receive_message_length": self._options.max_message_bytes,
            "grpc.max_send_message_length": self._options.max_message_bytes,
            # With SO_REUSEPORT a second server on a taken port starts and steals
            # half the connections; an operator wants the error.
            "grpc.so_reuseport": 0,
        }
        arguments.update(self._options.channel_arguments)
        return list(arguments.items())

    # -- calls --------------------------------------------------------------------

    def serve(self, method: Method, call: GrpcioCall) -> None:
        """Hands a call to its handler, on the serving loop."""
        call.arm_deadline()
        if self._draining:
            call.fail(Unavailable("the server is shutting down", retry_after_s=1.0))
            return
        try:
            method.handler(call)
        except Exception as error:
            log.exception("event=handler_failed method=%s", method.path)
            call.fail(handler_error(error, method.path))

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the serving loop."""
        self._loop.post(fn)

    def count_late_finish(self) -> None:
        """Counts a finish that came after the call had ended."""
        self._late.add()

    def to_aio(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on grpcio's thread; a burst costs one wake-up. Thread-safe."""
        self._finished.append(fn)
        if not self._armed:
            self._armed = True
            aio = self._aio
            if aio is not None:
                try:
                    aio.call_soon_threadsafe(self._run_finished)
                except RuntimeError:  # closed meanwhile: nobody waits any more
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
        transport: GrpcioTransport,
        method: str,
        message: bytes,
        deadline_s: float | None,
        metadata: Metadata,
        peer: Peer,
        max_queued_messages: int,
        loop: ServingLoop,
    ) -> None:
        self.method = method
        self.message = message
        self.deadline_s = deadline_s
        self.metadata = metadata
        self.peer = peer
        self.cancel = CancelToken()
        self.outcome: bytes | ServingError | None = None
        self._transport = transport
        self._loop = loop
        self._open = deque((None,))  # popping it is the right to finish
        self._timer: Timer | None = None
        self._cancel_fns: list[Callable[[], None]] = []
        self._message_fn: Callable[[bytes | memoryview], None] | None = None
        self._half_close_fn: Callable[[], None] | None = None
        self._early_messages: deque[bytes] = deque()
        self._half_closed = False
        self._max_queued_messages = max_queued_messages
        self.outbox: deque[bytes] = deque()
        self.progress = asyncio.Event()  # set on grpcio's thread alone

    def reply(self, message: bytes) -> None:
        """Finishes with OK."""
        self._finish(message)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Finishes with OK."""
        self._finish(b"".join(parts))

    def fail(self, error: ServingError) -> None:
        """Finishes with the error."""
        self._finish(error)

    def finish(self) -> None:
        """Ends a stream with OK."""
        self._finish(None)

    def send(self, message: bytes) -> bool:
        """Queues a message unless too many wait."""
        if not self._open or len(self.outbox) >= self._max_queued_messages:
            return False
        self.outbox.append(message)
        self._transport.to_aio(self.progress.set)
        return True

    def on_cancel(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` if the client goes away or the deadline passes."""
        if self.cancel.error is not None:
            fn()
        else:
            self._cancel_fns.append(fn)

    def on_message(self, fn: Callable[[bytes | memoryview], None]) -> None:
        """Calls ``fn`` for each later request message."""
        self._message_fn = fn
        while self._early_messages:
            fn(self._early_messages.popleft())

    def on_half_close(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` when the client will send no more."""
        self._half_close_fn = fn
        if self._half_closed:
            fn()

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
            self._cancelled(Cancelled("the client cancelled the call"))

    def take_message(self, message: bytes) -> None:
        """Hands on a later request message. On the serving loop."""
        if self._message_fn is not None:
            self._message_fn(message)
        else:
            self._early_messages.append(message)

    def take_half_close(self) -> None:
        """Notes that the client sends no more. On the serving loop."""
        self._half_closed = True
        if self._half_close_fn is not None:
            self._half_close_fn()

    def _expire(self) -> None:
        self._cancelled(DeadlineExceeded("Deadline Exceeded"))

    def _cancelled(self, error: ServingError) -> None:
        if not self._open:
            return
        self.cancel.cancel(error)
        self._finish(error)
        fns, self._cancel_fns = self._cancel_fns, []
        for fn in fns:
            fn()

    def _finish(self, outcome: bytes | ServingError | None) -> None:
        try:
            self._open.pop()
        except IndexError:
            self._transport.count_late_finish()
            return
        self.outcome = outcome
        timer = self._timer
        if timer is not None:
            if self._loop.is_loop_thread:
                timer.cancel()
            else:
                self._loop.post(timer.cancel)
        self._transport.to_aio(self.progress.set)


class _GenericHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Looks paths up in the method table, for one listener."""

    def __init__(
        self,
        transport: GrpcioTransport,
        listener: ListenerOptions,
        methods: MethodTable,
    ) -> None:
        self._transport = transport
        self._listener = listener
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        """Returns grpcio's handler for the path, or one that says UNIMPLEMENTED."""
        method = self._methods.get(handler_call_details.method)
        services = self._listener.services
        if method is None or (services is not None and method.service not in services):
            path = handler_call_details.method
            return grpc.stream_stream_rpc_method_handler(
                functools.partial(
                    _refuse, Unimplemented(f"unknown method {path[:200]}")
                )
            )
        metadata = tuple(handler_call_details.invocation_metadata)
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
            case MethodKind.UNARY:
                return grpc.unary_unary_rpc_method_handler(answer)
            case MethodKind.SERVER_STREAM:
                return grpc.unary_stream_rpc_method_handler(answer)
            case MethodKind.BIDIRECTIONAL:
                return grpc.stream_stream_rpc_method_handler(answer)

    async def _unary(
        self, method: Method, metadata: Metadata, request: bytes, context: Any
    ) -> bytes:
        transport = self._transport
        call = self._call(method, metadata, request, context)
        transport.post(functools.partial(transport.serve, method, call))
        try:
            await call.progress.wait()
        except asyncio.CancelledError:
            transport.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, bytes):
            return outcome
        await _abort(context, outcome)
        raise AssertionError("abort returns never")

    async def _server_stream(
        self, method: Method, metadata: Metadata, request: bytes, context: Any
    ) -> AsyncIterator[bytes]:
        call = self._call(method, metadata, request, context)
        async for message in self._stream(method, call, context):
            yield message

    async def _bidirectional(
        self, method: Method, metadata: Metadata, requests: Any, context: Any
    ) -> AsyncIterator[bytes]:
        messages = requests.__aiter__()
        first = await anext(messages, None)
        if first is None:
            return  # a client that says nothing gets no answer, and OK
        call = self._call(method, metadata, first, context)
        pump = asyncio.ensure_future(self._pump(messages, call))
        try:
            async for message in self._stream(method, call, context):
                yield message
        finally:
            pump.cancel()

    async def _pump(self, messages: Any, call: GrpcioCall) -> None:
        transport = self._transport
        async for message in messages:
            transport.post(functools.partial(call.take_message, message))
        transport.post(call.take_half_close)

    async def _stream(
        self, method: Method, call: GrpcioCall, context: Any
    ) -> AsyncIterator[bytes]:
        transport = self._transport
        transport.post(functools.partial(transport.serve, method, call))
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
            transport.post(call.abandon)
            raise
        outcome = call.outcome
        if isinstance(outcome, ServingError):
            await _abort(context, outcome)
        elif outcome is not None:
            yield outcome

    def _call(
        self, method: Method, metadata: Metadata, request: bytes, context: Any
    ) -> GrpcioCall:
        transport = self._transport
        remaining_s = context.time_remaining()
        deadline_s = None
        if remaining_s is not None:
            deadline_s = transport._loop.clock.now() + remaining_s
        return GrpcioCall(
            transport,
            method.path,
            request,
            deadline_s,
            metadata,
            _peer(context, self._listener.name),
            transport._options.max_queued_messages,
            transport._loop,
        )


async def _refuse(error: ServingError, requests: Any, context: Any) -> None:
    await _abort(context, error)


async def _abort(context: Any, error: object) -> None:
    if not isinstance(error, ServingError):
        error = serving_error(
            RuntimeError("a unary call was finished without a reply"), "transport"
        )
    details = status_details(error)
    trailers = () if details is None else ((DETAILS_KEY, details),)
    code = STATUS_CODES[int(error.code if error.code is not Code.OK else Code.UNKNOWN)]
    await context.abort(code, wire_message(error), trailers)


def _peer(context: Any, listener: str) -> Peer:
    """Reads grpcio's peer: "ipv4:127.0.0.1:51024", "ipv6:%5B::1%5D:51024", "unix:"."""
    raw = str(context.peer())
    scheme, _, address = raw.partition(":")
    if scheme == "unix":
        return Peer(f"unix:{address}", listener, is_loopback=True)
    address = address.replace("%5B", "[").replace("%5D", "]")
    host = address.rpartition(":")[0].strip("[]")
    is_loopback = host.startswith(("127.", "::ffff:127.")) or host == "::1"
    names = tuple(str(name, "utf-8") for name in context.peer_identities() or ())
    return Peer(address, listener, is_loopback, names)


def _bind(server: Any, listener: ListenerOptions) -> str:
    address = listener.address
    # grpcio replaces whatever socket file it finds, that of a live server as well.
    if address.startswith("unix:") and _is_answering(address.removeprefix("unix:")):
        raise _cannot_listen(listener)
    try:
        if listener.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(listener.tls))
    except RuntimeError as error:
        raise _cannot_listen(listener) from error
    if not port:
        raise _cannot_listen(listener)
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


def _credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Returns credentials that ask for the certificates at every handshake."""
    first = taken = source.current()

    def renewed() -> grpc.ServerCertificateConfiguration:
        # On gRPC's threads. None keeps the last ones; grpcio's types do not know it.
        nonlocal taken
        tls = source.current()
        if tls is taken:
            return cast(grpc.ServerCertificateConfiguration, None)
        taken = tls
        return _configuration(tls)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, first.verify_client
    )


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.server_key, tls.server_cert)], tls.client_ca or None
    )


def _restrict(listener: ListenerOptions) -> None:
    if listener.address.startswith("unix:"):
        os.chmod(listener.address.removeprefix("unix:"), listener.unix_mode)


def _cannot_listen(listener: ListenerOptions) -> Unavailable:
    return Unavailable(
        f"cannot listen on {listener.address} ({listener.name}): the address is in "
        "use or not this machine's; choose another port or stop what holds it"
    )


def _is_open(address: str) -> bool:
    """Tells whether somebody listens there, without disturbing who does."""
    if address.startswith("unix:"):
        return os.path.exists(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # With this, only a listening socket is in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError:
            return True
    return False


def _is_answering(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # alive, with a full backlog
            return True
        except OSError:
            return False
    return True
