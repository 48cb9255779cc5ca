"""Three gRPC clients that have nothing in common but the protocol."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import struct
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events

from tfs.testing.patience import PATIENCE_S

_UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Trust:
    """What a client needs for TLS: whom it trusts, and who it is."""

    authority: bytes
    key: bytes = b""
    cert: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended."""

    code: int
    message: bytes = b""
    trailers: dict[str, bytes | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What a call sends, and as whom."""

    path: str
    message: bytes
    timeout_s: float
    gzip: bool
    metadata: Sequence[tuple[str, str | bytes]]
    trust: Trust | None


@dataclass(frozen=True, slots=True)
class Peer:
    """Makes one unary call over a connection of its own.

    Attributes:
        name: Of the client.
        send: Makes a call to an address; code -1 is a connection that was refused.

    """

    name: str
    send: Callable[[str, Request], Answer]

    def call(
        self,
        address: str,
        path: str,
        message: bytes,
        *,
        timeout_s: float = PATIENCE_S,
        gzip: bool = False,
        metadata: Sequence[tuple[str, str | bytes]] = (),
        trust: Trust | None = None,
    ) -> Answer:
        """Returns how the call ended."""
        request = Request(path, message, timeout_s, gzip, metadata, trust)
        return self.send(address, request)


def _credentials(trust: Trust) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        trust.authority, trust.key or None, trust.cert or None
    )


def _options(request: Request) -> dict[str, Any]:
    """Returns what both of grpcio's clients are told of a call."""
    return {
        "timeout": request.timeout_s,
        "metadata": tuple(request.metadata),
        "compression": grpc.Compression.Gzip if request.gzip else None,
    }


def _failed(error: Any) -> Answer:
    return Answer(error.code().value[0], b"", dict(error.trailing_metadata() or ()))


def _send_by_grpcio(address: str, request: Request) -> Answer:
    trust = request.trust
    channel = (
        grpc.insecure_channel(address, _UNLIMITED)
        if trust is None
        else grpc.secure_channel(address, _credentials(trust), _UNLIMITED)
    )
    with channel:
        try:
            reply, call = channel.unary_unary(request.path, None, None).with_call(
                request.message, **_options(request)
            )
        except grpc.RpcError as error:
            return _failed(error)
        return Answer(0, reply, dict(call.trailing_metadata() or ()))


def _send_by_aio(address: str, request: Request) -> Answer:
    trust = request.trust

    async def run() -> Answer:
        channel = (
            grpc.aio.insecure_channel(address, _UNLIMITED)
            if trust is None
            else grpc.aio.secure_channel(address, _credentials(trust), _UNLIMITED)
        )
        async with channel:
            try:
                reply: bytes = await channel.unary_unary(request.path, None, None)(
                    request.message, **_options(request)
                )
            except grpc.RpcError as error:
                return _failed(error)
            return Answer(0, reply)

    return asyncio.run(run())


def _send_by_h2(address: str, request: Request) -> Answer:
    try:
        with connect(address, request.trust) as sock:
            return _Conversation(sock).unary(request)
    except OSError:
        return Answer(-1)


H2: Final = Peer("h2", _send_by_h2)
"""The h2 package over a plain socket: no gRPC library at all."""

PEERS: Final = (Peer("grpcio", _send_by_grpcio), Peer("grpcio.aio", _send_by_aio), H2)


def is_ping_answered(address: str) -> bool:
    """Returns whether a PING on an idle connection is answered."""
    with connect(address, None) as sock:
        talk = _Conversation(sock)
        talk.h2.ping(b"12345678")
        while True:
            for event in talk.receive():
                if isinstance(event, h2.events.PingAckReceived):
                    return event.ping_data == b"12345678"


def connect(address: str, trust: Trust | None) -> socket.socket:
    """Returns a connected socket; with TLS it speaks HTTP/2."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), PATIENCE_S)
    if trust is None:
        return sock
    context = ssl.create_default_context(cadata=trust.authority.decode())
    context.set_alpn_protocols(["h2"])
    if trust.cert:
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder, "client.pem")
            pem.write_bytes(trust.key + trust.cert)
            context.load_cert_chain(pem)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


class _Conversation:
    """One HTTP/2 connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding=None)
        )
        self.h2.initiate_connection()

    def receive(self) -> list[h2.events.Event]:
        """Sends what waits; blocks for what comes."""
        self._sock.sendall(self.h2.data_to_send())
        data = self._sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        events: list[h2.events.Event] = self.h2.receive_data(data)
        return events

    def unary(self, request: Request) -> Answer:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, _headers(request))
        body = _zipped(request.message) if request.gzip else request.message
        unsent = struct.pack(">BI", request.gzip, len(body)) + body
        received = b""
        trailers: dict[str, bytes | str] = {}
        has_ended = False
        while True:
            while unsent or not has_ended:
                room = min(
                    self.h2.local_flow_control_window(stream),
                    self.h2.max_outbound_frame_size,
                )
                room = max(0, room)  # a server may take windows back
                part, unsent = unsent[:room], unsent[room:]
                if unsent and not part:
                    break
                has_ended = not unsent
                self.h2.send_data(stream, part, end_stream=has_ended)
            for event in self.receive():
                if isinstance(event, h2.events.DataReceived):
                    received += event.data
                    self.h2.acknowledge_received_data(
                        event.flow_controlled_length, stream
                    )
                elif isinstance(
                    event, h2.events.ResponseReceived | h2.events.TrailersReceived
                ):
                    trailers.update({str(n, "ascii"): v for n, v in event.headers})
                elif isinstance(event, h2.events.StreamReset):
                    unsent, has_ended = b"", True
                    if "grpc-status" not in trailers:
                        return Answer(-1, b"", trailers)
                elif isinstance(event, h2.events.ConnectionTerminated):
                    return Answer(-1, b"", trailers)
            if "grpc-status" in trailers:
                return Answer(int(trailers["grpc-status"]), received[5:], trailers)


def _headers(request: Request) -> list[tuple[str, str | bytes]]:
    headers: list[tuple[str, str | bytes]] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", request.path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{round(request.timeout_s * 1e3)}m"),
    ]
    if request.gzip:
        headers.append(("grpc-encoding", "gzip"))
    for name, value in request.metadata:
        if isinstance(value, bytes):
            value = base64.b64encode(value).rstrip(b"=").decode()
        headers.append((name, value))
    return headers


def _zipped(message: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=31)
    return deflater.compress(message) + deflater.flush()
