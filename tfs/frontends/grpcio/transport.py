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
import socket
import threading
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
import grpc.aio

from tfs.core.call import (
    ListenerOptions,
    MethodTable,
    TlsOptions,
    TlsSource,
)
from tfs.core.errors import (
    InvalidArgument,
    Unavailable,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stat_names import RPC_LATE_FINISHES
from tfs.core.stats import Stats
from tfs.frontends.grpcio.grpcio_call import CallHost, GenericHandler
from tfs.frontends.listener import UNIX
from tfs.frontends.tls_context import server_context

T = TypeVar("T")

_START_S = 30.0


class GrpcioTransport:
    """Serves a method table through grpcio; see :class:`tfs.core.call.Transport`.

    Thread-safe. ``start``, ``drain`` and ``close`` block; none runs on the serving
    loop. After ``start`` failed the transport is closed. It bounds nothing that clients
    may take of the server beyond what the library does.
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
        self._host: CallHost | None = None
        self._thread: threading.Thread | None = None
        self._servers: list[grpc.aio.Server] = []

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; see :meth:`tfs.core.call.Transport.start`."""
        aio = self._aio = asyncio.new_event_loop()
        self._host = CallHost(
            self._loop, aio, self._late, self._options.max_queued_messages
        )
        self._thread = threading.Thread(
            target=self._run, args=(aio,), name="grpcio", daemon=True
        )
        self._thread.start()
        try:
            return self._on_aio(self._start(self._host, listeners, methods), _START_S)
        except BaseException:
            self.close()
            raise

    def drain(self, deadline_s: float) -> bool:
        """Refuses new calls, and waits for those that were accepted."""
        grace_s = max(0.0, deadline_s - self._loop.clock.now())
        return self._on_aio(self._stop(grace_s), grace_s + _START_S)

    def close(self) -> None:
        """Ends everything; idempotent."""
        aio, self._aio = self._aio, None
        if aio is None:
            return
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
        self,
        host: CallHost,
        listeners: Sequence[ListenerOptions],
        methods: MethodTable,
    ) -> Sequence[str]:
        addresses = []
        try:
            for listener in listeners:
                server = grpc.aio.server(options=self._channel_arguments())
                handler = GenericHandler(host, listener, methods)
                server.add_generic_rpc_handlers((handler,))
                self._servers.append(server)
                addresses.append(bind(server, listener))
        finally:
            # This is done even if a listener cannot be bound, because stopping a server
            # releases its ports only if it was started.
            for server in self._servers:
                await server.start()
        return addresses

    async def _stop(self, grace_s: float) -> bool:
        if self._host is not None:
            self._host.is_draining = True
        begun_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        return asyncio.get_running_loop().time() - begun_s < grace_s or grace_s == 0.0

    def _channel_arguments(self) -> list[tuple[str, int | str]]:
        arguments: dict[str, int | str] = {
            "grpc.max_receive_message_length": self._options.max_message_bytes,
            "grpc.max_send_message_length": self._options.max_message_bytes,
            # With SO_REUSEPORT a second server on the same port would start and take
            # half of the connections. An operator wants an error instead.
            "grpc.so_reuseport": 0,
        }
        arguments.update(self._options.channel_arguments)
        return list(arguments.items())


_MAX_MESSAGE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GrpcioOptions:
    """How grpcio is set up.

    Attributes:
        max_message_bytes: Largest request and reply.
        max_queued_messages: How many messages of one stream may wait for a slow reader.
        channel_arguments: grpcio's own arguments, which override ours
            (``--grpc_channel_arguments``).

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


log = logging.getLogger(__name__)

_PRIVATE_UMASK = 0o077


def bind(server: Any, listener: ListenerOptions) -> str:
    """Opens ``listener`` on a grpcio server; returns the address with its real port.

    Raises:
        Unavailable: The address is in use, also by a live server on a socket's path, or
            the certificates cannot be used.

    """
    address = listener.address
    is_unix = address.startswith(UNIX)
    # grpcio replaces whatever socket file it finds, that of a live server as well.
    if is_unix and _is_answering(address.removeprefix(UNIX)):
        raise _cannot_listen(listener, "a server answers there; stop it first")
    try:
        if listener.tls is None or is_unix:
            with _private_files() if is_unix else contextlib.nullcontext():
                port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(listener.tls))
    except InvalidArgument as error:
        raise _cannot_listen(listener, error.message) from error
    except (RuntimeError, ValueError) as error:
        raise _cannot_listen(listener, str(error)) from error
    if not port:
        raise _cannot_listen(listener, "grpcio does not say why")
    if is_unix:
        os.chmod(address.removeprefix(UNIX), listener.unix_mode)
        return address
    return f"{address.rpartition(':')[0]}:{port}"


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Makes new files ours alone, in the whole process, for the moment of a bind."""
    before = os.umask(_PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def _credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Returns credentials that ask for the certificates at every handshake.

    Raises:
        InvalidArgument: The certificates cannot be used.

    """
    first = taken = source.current()
    server_context(first)

    def renewed() -> grpc.ServerCertificateConfiguration:
        # On grpcio's threads. None keeps the last ones; grpcio's types do not know it.
        nonlocal taken
        tls = source.current()
        if tls is not taken:
            taken = tls
            try:
                server_context(tls)
            except InvalidArgument as error:
                log.error("event=certificates_refused error=%r", error.message)
            else:
                return _configuration(tls)
        return cast(grpc.ServerCertificateConfiguration, None)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), renewed, first.verify_client
    )


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.server_key, tls.server_cert)], tls.client_ca or None
    )


def _cannot_listen(listener: ListenerOptions, why: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {listener.address} ({listener.name}): {why}; "
        "choose another address or stop what holds it"
    )


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
