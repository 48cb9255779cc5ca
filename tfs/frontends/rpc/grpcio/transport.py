"""The transport seam over grpcio's public API.

One asyncio loop on a thread of its own runs grpcio's servers, one per listener, so
that a listener shows only its services. Each RPC becomes a call that is posted to
the serving loop; its finish comes back in bursts, one wake-up each. Nothing here
knows what a model is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from tfs.core.call import (
    ListenerOptions,
    MethodTable,
    Peer,
    RpcMethod,
)
from tfs.core.errors import (
    Unavailable,
)
from tfs.core.executor import ThreadExecutor
from tfs.core.serving_loop import ServingLoop
from tfs.core.stat_names import RPC_FAILED_ACCEPTS, RPC_LATE_FINISHES
from tfs.core.stats import Stats
from tfs.frontends.rpc.answer_sizes import AnswerSizes
from tfs.frontends.rpc.grpcio.answer_room import AnswerRoom
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.client_heads import HeadLimits
from tfs.frontends.rpc.grpcio.generic_handler import GenericHandler
from tfs.frontends.rpc.grpcio.grpcio_call import GrpcioCall
from tfs.frontends.rpc.grpcio.inflater import Inflater
from tfs.frontends.rpc.grpcio.metadata_watch import MetadataWatch
from tfs.frontends.rpc.grpcio.options import GrpcioOptions
from tfs.frontends.rpc.grpcio.relay import Door, Relay
from tfs.frontends.rpc.grpcio.sender_watch import LOOK_S
from tfs.frontends.rpc.grpcio.stream_turns import StreamTurns
from tfs.frontends.rpc.grpcio.uploads import LOOKAHEAD_BYTES, Uploads
from tfs.frontends.rpc.unix_socket import UNIX

log = logging.getLogger(__name__)
_grpcio_log = logging.getLogger("grpc._cython.cygrpc")

T = TypeVar("T")

_START_S = 30.0
_LOOK_S = 0.5  # between two checks whether a listener is still open
_LOOKS_A_SECOND = round(1 / LOOK_S)
# While requests wait for each other. With one, holes of 20 MB more came between two
# (40 clients, 10 MB each); with five, long requests took half as much CPU again.
_TRIMS_A_LOOK = 2
_STOP_S = 5.0
# What clients have to see that the server drains; as through express.
_DRAIN_GRACE_S = 1.0
# Calls of one connection at a time. Clients are told this limit and hold further calls
# back. A call that has begun takes 21 KB in grpcio, even before any of its message has
# come, and 4 KB here (resident, measured with 1.85.1). RFC 9113 advises 100 or more, but
# sixty clients that open no window for their answers make it 1.6 times the memory then,
# and 1.4 with 64.
_MAX_STREAMS = 64
_MAX_PENDING = 4096  # calls of all connections that grpcio may hold before we take them
# If answers or requests took this many bytes, trimming the heap is worth it.
_MUCH_BYTES = 1 << 20


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether to log a record.

    Clients that left early would fill 20 lines each, and so would headers that are not
    UTF-8, which grpcio hands on as Latin-1.
    """
    return not record.getMessage().startswith(
        ("ExecuteBatchError raised in core", "Invalid encoding on")
    )


def _bind(server: grpc.aio.Server, address: str) -> None:
    """Has a server listen on a Unix socket, which no client is told of.

    Raises:
        Unavailable: It cannot.

    """
    try:
        if server.add_insecure_port(address):
            return
    except RuntimeError as error:
        raise Unavailable(f"grpcio cannot listen on {address}: {error}") from error
    raise Unavailable(f"grpcio cannot listen on {address}")


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
        on_look: Callable[[], None] = lambda: None,
        on_large_message: Callable[[], None] = lambda: None,
        answer_sizes: AnswerSizes | None = None,
    ) -> None:
        self._loop = loop
        self._options = options or GrpcioOptions()
        stats = stats or Stats()
        self._late = stats.counter(RPC_LATE_FINISHES)
        self._aio: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[grpc.aio.Server] = []
        self._keepers: list[asyncio.Future[None]] = []
        self._on_look = on_look
        self._on_large_message = on_large_message
        most_calls = self._argument("grpc.max_concurrent_streams", _MAX_STREAMS)
        self._gate = CallGate(loop.clock.now)
        self._tls_executor = ThreadExecutor(1, "grpcio-tls")
        self._relay = Relay(
            self._gate, most_calls, loop.clock, self._tls_executor, self._head_limits
        )
        stats.gauge(RPC_FAILED_ACCEPTS, lambda: self._relay.num_failed_accepts)
        self._room = AnswerRoom(
            self._options.open_answer_bytes,
            loop.clock.now,
            self._relay,
            self._on_room,
            answer_sizes,
        )
        self._inflater = Inflater(
            self._options.max_message_bytes, self._options.open_answer_bytes
        )
        self._uploads = Uploads(
            loop.clock.now, self._room.is_open_to, self._relay, self._room.is_reader
        )
        self._stream_turns = StreamTurns(loop.clock.now, self._room.is_open_to)
        self._draining = False
        self._finished: deque[Callable[[], None]] = deque()
        self._armed = False

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; see :meth:`tfs.core.call.Transport.start`."""
        _grpcio_log.addFilter(_is_worth_a_line)
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
        """Refuses new calls, and waits for those that were accepted."""
        self._draining = True
        grace_s = max(0.0, deadline_s - self._loop.clock.now())
        return self._on_aio(self._stop(grace_s), grace_s + _START_S)

    def close(self) -> None:
        """Ends everything; idempotent."""
        aio, self._aio = self._aio, None
        if aio is None:
            return
        self._draining = True
        asyncio.run_coroutine_threadsafe(self._end(), aio).result(_START_S)
        aio.call_soon_threadsafe(aio.stop)
        if self._thread is not None:
            self._thread.join(_START_S)
        until_s = self._loop.clock.now() + _STOP_S
        self._inflater.close(until_s)
        self._tls_executor.close(until_s)

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
        doors = []
        try:
            for listener in listeners:
                door = self._relay.open(listener)
                doors.append(door)
                server = self._make_server(listener, methods)
                self._servers.append(server)
                _bind(server, door.inner_address)
        finally:
            # This is done even if a listener cannot be bound, because stopping a server
            # releases its ports only if it was started.
            for server in self._servers:
                await server.start()
        self._relay.start()
        for index, door in enumerate(doors):
            keeper = self._keep_open(index, door, methods)
            self._keepers.append(asyncio.ensure_future(keeper))
        self._keepers.append(asyncio.ensure_future(self._look_at_memory()))
        return [door.listener.address for door in doors]

    def _make_server(
        self, listener: ListenerOptions, methods: MethodTable
    ) -> grpc.aio.Server:
        server = grpc.aio.server(options=self._channel_arguments())
        most_bytes = self._argument("grpc.absolute_max_metadata_size", 0)
        handler = GenericHandler(self, listener, methods, MetadataWatch(most_bytes))
        server.add_generic_rpc_handlers((handler,))
        return server

    def _argument(self, name: str, default: int) -> int:
        """Returns a number among the operator's arguments, or the default."""
        value = dict(self._options.channel_arguments).get(name, default)
        return value if isinstance(value, int) else default

    @property
    def _head_limits(self) -> HeadLimits:
        limits = HeadLimits()
        return HeadLimits(
            self._argument(
                "grpc.http2.hpack_table_size.decoder", limits.max_table_bytes
            ),
            self._argument("grpc.absolute_max_metadata_size", limits.max_list_bytes),
        )

    @property
    def _is_contested(self) -> bool:
        """Whether requests wait for each other's memory.

        What is freed of them is returned eight times a second then: their parts leave
        holes in the heap, which took 100 MB within a second.
        """
        return bool(
            self._uploads.num_waiting
            or self._stream_turns.num_waiting
            or self._room.num_waiting
        )

    def _on_room(self) -> None:
        self._uploads.go_on()
        self._stream_turns.go_on()

    async def _look_at_memory(self) -> None:
        """Trims the heap; disconnects clients that do not send or do not read."""
        while not self._draining:
            for _ in range(_LOOKS_A_SECOND):
                await self._wait_for_look()
                num_disconnected = self._relay.num_disconnected
                self._uploads.look()
                self._stream_turns.look()
                self._gate.look()
                self._relay.look()
                if num_disconnected != self._relay.num_disconnected:
                    self._loop.post(self._on_look)
            self._room.look()
            self._loop.post(self._on_look)
            if max(self._room.most_bytes, self._uploads.most_bytes) > _MUCH_BYTES:
                self._room.most_bytes = self._room.taken_bytes
                self._uploads.most_bytes = 0
                self._loop.post(self._on_large_message)

    async def _wait_for_look(self) -> None:
        """Waits, and has freed memory returned meanwhile if requests wait."""
        num_waits = _TRIMS_A_LOOK if self._is_contested else 1
        for _ in range(num_waits):
            await asyncio.sleep(LOOK_S / num_waits)
            if self._is_contested:
                self._loop.post(self._on_look)

    async def _keep_open(self, index: int, door: Door, methods: MethodTable) -> None:
        """Opens a listener again whose server ended by itself.

        A request path that is not UTF-8 ends grpcio's loop and closes its port (seen
        with 1.85.1). The relay lets none pass; this is for what nobody has thought of.
        grpcio does not report such an end before the calls in progress have ended, so
        this checks whether the path of its socket is there.

        Args:
            index: Which of the servers it is.
            door: The listener before it.
            methods: What it serves.

        """
        listener = door.listener.options
        path = door.inner_address.removeprefix(UNIX)
        while not self._draining:
            await asyncio.sleep(_LOOK_S)
            if self._draining or os.path.exists(path):
                continue
            log.error("event=grpcio_server_failed listener=%s", listener.name)
            with contextlib.suppress(Exception):  # this raises what ended it
                await asyncio.wait_for(self._servers[index].stop(0.0), _STOP_S)
            server = self._make_server(listener, methods)
            try:
                _bind(server, door.inner_address)
            except Unavailable as error:
                log.error("event=grpcio_restart_failed error=%r", error.message)
                continue
            self._servers[index] = server
            await server.start()
            log.warning("event=grpcio_server_restarted listener=%s", listener.name)

    async def _stop(self, grace_s: float) -> bool:
        servers, aio = self._servers, asyncio.get_running_loop()
        self._relay.stop_listening()
        begun_s = aio.time()
        stopping = asyncio.gather(*(server.stop(grace_s) for server in servers))
        await asyncio.wait((stopping,), timeout=_DRAIN_GRACE_S)
        while not stopping.done():
            self._relay.let_idle_go()
            await asyncio.wait((stopping,), timeout=LOOK_S)
        await stopping
        left_s = grace_s - (aio.time() - begun_s)
        if left_s > 0.0:  # clients may be reading their answers
            await self._relay.wait_until_empty(left_s)
        return aio.time() - begun_s < grace_s or grace_s == 0.0

    async def _end(self) -> None:
        await self._stop(0.0)
        self._relay.close()

    def _channel_arguments(self) -> list[tuple[str, int | str]]:
        arguments: dict[str, int | str] = {
            "grpc.max_receive_message_length": self._options.max_message_bytes,
            "grpc.max_send_message_length": self._options.max_message_bytes,
            # With SO_REUSEPORT a second server on the same port would start and take
            # half of the connections. An operator wants an error instead.
            "grpc.so_reuseport": 0,
            "grpc.max_concurrent_streams": _MAX_STREAMS,
            # This protects against clients that reset calls by the thousand. But it
            # also counts calls that ended a moment ago: two fifths of the calls of an
            # asyncio client that made more than allowed were refused (seen with
            # 1.85.1).
            "grpc.http.overload_protection": 0,
            # Beyond this limit grpcio cancels calls at random, of any client.
            "grpc.server.max_pending_requests": _MAX_PENDING,
            "grpc.server.max_pending_requests_hard_limit": 2 * _MAX_PENDING,
            "grpc.http2.lookahead_bytes": LOOKAHEAD_BYTES,
            # grpcio would decompress without a bound; see `Inflater`.
            "grpc.per_message_decompression": 0,
            # Streams with too many headers would be kept for up to a second.
            "grpc.http.tarpit": 0,
            # Otherwise grpcio raises the look-ahead to as much as 4 MB on fast
            # networks.
            "grpc.http2.bdp_probe": 0,
        }
        arguments.update(self._options.channel_arguments)
        return list(arguments.items())

    # -- calls --------------------------------------------------------------------

    @property
    def loop(self) -> ServingLoop:
        """The loop on which calls are handled."""
        return self._loop

    @property
    def answer_room(self) -> AnswerRoom:
        """The room for answers."""
        return self._room

    @property
    def inflater(self) -> Inflater:
        """Decompresses requests."""
        return self._inflater

    @property
    def stream_turns(self) -> StreamTurns:
        """Decides which later messages of streams are read."""
        return self._stream_turns

    @property
    def uploads(self) -> Uploads:
        """Decides which requests are read."""
        return self._uploads

    def note_call(self, peer: str, is_read: bool) -> None:
        """Notes that grpcio has handed over a call; see :meth:`Relay.note_taken`."""
        self._relay.note_taken(peer, is_read)

    def client(self, peer: str) -> Peer | None:
        """Returns who a client is; None if it is gone."""
        return self._relay.client(peer)

    @property
    def max_queued_messages(self) -> int:
        """How many messages of one stream may wait for a slow reader."""
        return self._options.max_queued_messages

    def serve(self, method: RpcMethod, call: GrpcioCall) -> None:
        """Hands a call to its handler, on the serving loop."""
        call.arm_deadline()
        if self._draining:
            call.fail(Unavailable("the server is shutting down", retry_after_s=1.0))
            return
        try:
            method.handler(call)
        except Exception as error:
            call.on_handler_failure(error)

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
                except RuntimeError:  # the loop is closed: nobody waits
                    self._finished.clear()

    def _run_finished(self) -> None:
        self._armed = False
        finished = self._finished
        while finished:
            finished.popleft()()
