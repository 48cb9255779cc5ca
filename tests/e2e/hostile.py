"""Hostile clients, each a bounded conversation over one connection."""

from __future__ import annotations

import contextlib
import gzip
import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Final

from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
)
from tests.frontends.hostile_heads import conversations
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode, FrameType, Setting
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
_PATIENCE_S: Final = 2.0
_LARGEST_SEND: Final = 65_536

NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket says that has to wait, encrypted or not."""


CLAIMS: Final[tuple[tuple[str, types_pb2.DataType, object], ...]] = (
    ("float_val", types_pb2.DT_FLOAT, 1.5),
    ("double_val", types_pb2.DT_DOUBLE, 1.5),
    ("int_val", types_pb2.DT_INT32, 1),
    ("int_val", types_pb2.DT_UINT8, 1),
    ("int64_val", types_pb2.DT_INT64, 1),
    ("bool_val", types_pb2.DT_BOOL, True),
    ("string_val", types_pb2.DT_STRING, b"x"),
    ("half_val", types_pb2.DT_HALF, 1),
    ("half_val", types_pb2.DT_BFLOAT16, 1),
    ("scomplex_val", types_pb2.DT_COMPLEX64, 1.5),
    ("dcomplex_val", types_pb2.DT_COMPLEX128, 1.5),
    ("uint32_val", types_pb2.DT_UINT32, 1),
    ("uint64_val", types_pb2.DT_UINT64, 1),
)
"""The typed fields of tensors, each with a type that uses it and a value."""


class Victim:
    """One connection to the server, over TLS if there is a context.

    Sending never blocks for long.
    """

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.socket.setblocking(False)
        self.is_closed = False

    def send(self, data: bytes) -> bool:
        """Sends, and throws away what comes; False when the server has closed."""
        view = memoryview(data)
        while view and not self.is_closed:
            readable, writable, _ = select.select(
                [self.socket], [self.socket], [], _PATIENCE_S
            )
            if not readable and not writable:
                return False  # it takes nothing any more: that is an answer, too
            try:
                if readable and not self.socket.recv(1 << 16):
                    self.is_closed = True
                if writable:
                    view = view[self.socket.send(view[:_LARGEST_SEND]) :]
            except NOT_NOW:
                continue
            except OSError:
                self.is_closed = True
        return not self.is_closed

    def listen(self, for_s: float = 0.1) -> None:
        """Throws away what comes for a while, or until the server closes."""
        end_s = time.monotonic() + for_s
        while not self.is_closed and (left_s := end_s - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left_s)[0]:
                return
            try:
                self.is_closed = not self.socket.recv(1 << 16)
            except NOT_NOW:
                continue
            except OSError:
                self.is_closed = True


def head(stream_id: int, *extra: tuple[str, str], flags: int | None = None) -> bytes:
    """Returns the HEADERS frame of a Predict."""
    block = literal_block(grpc_headers(*extra, path=PREDICT))
    if flags is None:
        return headers_frame(stream_id, block)
    return headers_frame(stream_id, block, flags)


def predict(change: Callable[[predict_pb2.PredictRequest], object]) -> bytes:
    """Returns a Predict with something changed."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "scale"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (1, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = struct.pack("<2f", 1.0, 2.0)
    change(request)
    return request.SerializeToString()


GOOD: Final = predict(lambda request: None)


def call(stream_id: int, message: bytes, *extra: tuple[str, str]) -> bytes:
    """Returns the frames of a Predict, DATA cut to what any server takes."""
    body = prefixed(message)
    cuts = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    sent = head(stream_id, *extra)
    for index, cut in enumerate(cuts):
        sent += data_frame(stream_id, cut, int(index == len(cuts) - 1))
    return sent


def _flood(piece: Callable[[int], bytes], num_pieces: int) -> Callable[..., None]:
    def attack(victim: Victim, rng: random.Random) -> None:
        if not victim.send(HELLO):
            return
        for index in range(num_pieces):
            if not victim.send(piece(index)):
                return

    return attack


def _truncated(victim: Victim, rng: random.Random) -> None:
    whole = HELLO + call(1, GOOD) + frames.ping(b"12345678") + call(3, GOOD)
    victim.send(whole[: rng.randrange(len(whole))])


def _mutated(victim: Victim, rng: random.Random) -> None:
    whole = bytearray(HELLO + call(1, GOOD) + call(3, GOOD))
    for _ in range(rng.randint(1, 8)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    victim.send(bytes(whole))
    victim.listen()


def _heads(victim: Victim, rng: random.Random) -> None:
    """Header blocks that no good client sends."""
    (sent,) = conversations(rng.randrange(1 << 30), PREDICT, 1)
    victim.send(sent)
    victim.listen()


def _noise(victim: Victim, rng: random.Random) -> None:
    victim.send(rng.choice([b"", HELLO]) + rng.randbytes(rng.randrange(1, 50_000)))


def _oversized(victim: Victim, rng: random.Random) -> None:
    kind = rng.choice([FrameType.DATA, FrameType.HEADERS, FrameType.SETTINGS])
    size = rng.choice([16_385, 1 << 20, (1 << 24) - 1])
    victim.send(HELLO + struct.pack(">IBI", size << 8 | kind, 0, 1) + bytes(200_000))


def _claims(victim: Victim, rng: random.Random) -> None:
    """Messages that claim far more than they hold."""
    size = rng.choice([1 << 20, 1 << 28, (1 << 32) - 1])
    victim.send(HELLO)
    for stream_id in range(1, 41, 2):
        victim.send(
            head(stream_id) + data_frame(stream_id, struct.pack(">BI", 0, size))
        )
    victim.listen()


def _payloads(victim: Victim, rng: random.Random) -> None:
    """Requests that are gRPC's and no good."""

    def shape(*sizes: int) -> Callable[[predict_pb2.PredictRequest], None]:
        def change(request: predict_pb2.PredictRequest) -> None:
            dims = request.inputs["x"].tensor_shape
            dims.Clear()
            for size in sizes:
                dims.dim.add(size=size)

        return change

    messages = [
        predict(shape(*[1] * 100_000)),
        predict(shape(-5, 2)),
        predict(shape(1 << 62, 1 << 62)),
        predict(shape(10**9, 2)),
        GOOD.replace(b"scale", b"\xff\xfe\xfd\xfc\xfb"),
        b"\xff" * 1000,
        GOOD[:-5],
        rng.randbytes(3000),
        b"\x0a\xff\xff\xff\xff\x0f" + GOOD,
    ]
    victim.send(HELLO)
    for index, message in enumerate(messages):
        victim.send(call(2 * index + 1, message))
        victim.listen(0.05)


def _bombs(victim: Victim, rng: random.Random) -> None:
    body = gzip.compress(bytes(30 << 20))
    sent = struct.pack(">BI", 1, len(body)) + body
    victim.send(HELLO)
    for stream_id in (1, 3):
        victim.send(
            head(stream_id, ("grpc-encoding", "gzip")) + data_frame(stream_id, sent)
        )
    victim.listen()


def _windows(victim: Victim, rng: random.Random) -> None:
    """A window of nothing, then a byte at a time, then far too much."""
    victim.send(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    for stream_id in range(1, 101, 2):
        victim.send(call(stream_id, GOOD))
    for stream_id in range(1, 101, 2):
        victim.send(frames.window_update(stream_id, 1))
    victim.send(frames.settings({Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1}))
    victim.send(frames.window_update(0, (1 << 31) - 1) * 2)
    victim.listen()


def _deaf(victim: Victim, rng: random.Random) -> None:
    """Asks for answers and never reads one."""
    with contextlib.suppress(OSError):
        victim.socket.send(HELLO)
        for stream_id in range(1, 201, 2):
            victim.socket.send(call(stream_id, GOOD))


def _unread_pongs(victim: Victim, rng: random.Random) -> None:
    """Pings on and on, and never reads an answer."""
    with contextlib.suppress(OSError):
        victim.socket.send(HELLO)
        for _ in range(1000):
            victim.socket.send(frames.ping(b"12345678") * 50)


def _claimed_elements(victim: Victim, rng: random.Random) -> None:
    """A billion elements in each typed field, from one value and from none."""
    victim.send(HELLO)
    stream_id = 1
    for name, dtype, value in CLAIMS:
        for values in ([value], []):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "scale"
            tensor = request.inputs["x"]
            tensor.dtype = dtype
            tensor.tensor_shape.dim.add(size=10**9)
            getattr(tensor, name).extend(values)
            victim.send(call(stream_id, request.SerializeToString()))
            stream_id += 2
    victim.listen()


def _cookies(index: int) -> bytes:
    """Returns a request with forty cookies, in as many pieces as may be."""
    pieces = [b"\x10\x06cookie\x05%05d" % number * 3 for number in range(14)]
    stream_id = 2 * index + 1
    sent = head(stream_id, flags=0)
    for piece in pieces:
        sent += frames.frame(FrameType.CONTINUATION, 0, stream_id, piece)
    return sent + frames.frame(
        FrameType.CONTINUATION, frames.END_HEADERS, stream_id, b""
    )


def _slow(victim: Victim, rng: random.Random) -> None:
    """A byte now, the next one never."""
    whole = HELLO + call(1, GOOD)
    cut = rng.randrange(1, len(whole))
    victim.send(whole[:cut])
    victim.listen(0.01)
    victim.send(whole[cut : cut + 1])


def _dropped(victim: Victim, rng: random.Random) -> None:
    """Opened, and gone."""


def _refused_and_gone(victim: Victim, rng: random.Random) -> None:
    """A malformed call and good ones, from who is gone when the first one is refused."""
    malformed = head(1, ("X", "y")) + data_frame(1, prefixed(GOOD))
    calls = (call(stream_id, GOOD) for stream_id in range(3, 61, 2))
    victim.send(HELLO)
    victim.listen(0.05)
    # The connection ends by a reset, so nothing can be sent over it.
    reset = struct.pack("ii", 1, 0)
    victim.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    victim.send(malformed + b"".join(calls))


Attack = Callable[[Victim, random.Random], None]

ATTACKS: Final[dict[str, Attack]] = {
    "truncated": _truncated,
    "mutated": _mutated,
    "noise": _noise,
    "malformed heads": _heads,
    "oversized frames": _oversized,
    "claimed lengths": _claims,
    "bad payloads": _payloads,
    "gzip bombs": _bombs,
    "window games": _windows,
    "never reads": _deaf,
    "slow": _slow,
    "dropped": _dropped,
    "rapid reset": _flood(
        lambda index: (
            head(2 * index + 1) + frames.rst_stream(2 * index + 1, ErrorCode.CANCEL)
        ),
        1500,
    ),
    "pings": _flood(lambda index: frames.ping(b"12345678") * 20, 200),
    "settings": _flood(
        lambda index: frames.settings({Setting.MAX_FRAME_SIZE: 20_000}) * 20, 200
    ),
    "continuation": _flood(
        lambda index: (
            head(1, flags=0)
            if index == 0
            else frames.frame(FrameType.CONTINUATION, 0, 1, b"")
        ),
        2000,
    ),
    "empty data": _flood(
        lambda index: head(1) if index == 0 else frames.frame(FrameType.DATA, 0, 1),
        2000,
    ),
    "hpack bomb": _flood(
        lambda index: headers_frame(
            2 * index + 1,
            b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4000 if index == 0 else b"\xbe" * 16_000,
        ),
        50,
    ),
    "padding": _flood(
        lambda index: (
            head(1)
            if index == 0
            else frames.frame(FrameType.DATA, frames.PADDED, 1, b"\xfe" + bytes(254))
            * 20
        ),
        100,
    ),
    "cookies": _flood(_cookies, 100),
    "priorities": _flood(
        lambda _: frames.frame(FrameType.PRIORITY, 0, 1, bytes(4) + b"\x10") * 100, 100
    ),
    "unknown frames": _flood(lambda _: struct.pack(">IBI", 0x20, 0, 0) * 100, 200),
    "windows by one": _flood(lambda _: frames.window_update(0, 1) * 100, 100),
    "windows in midstream": _flood(
        lambda index: (
            head(2 * index + 1)
            + data_frame(2 * index + 1, prefixed(GOOD))
            + frames.settings({Setting.INITIAL_WINDOW_SIZE: index % 3})
        ),
        400,
    ),
    "unread pongs": _unread_pongs,
    "refused and gone": _refused_and_gone,
    "claimed elements": _claimed_elements,
}


def attack(
    address: str, name: str, seed: int, tls: ssl.SSLContext | None = None
) -> None:
    """Plays one conversation; returns when it is over, the connection closed."""
    try:
        victim = Victim(address, tls)
    except OSError:
        return  # turned away at the door
    with victim.socket:
        ATTACKS[name](victim, random.Random(seed))
