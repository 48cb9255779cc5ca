"""An express transport whose loop is stepped by the test, and clients of it.

Everything runs on the test's thread, over Unix sockets, which deliver at once; time
is a fake clock's. A round is what :meth:`Rig.step` says it is.
"""

from __future__ import annotations

import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpack import Decoder

from tests.frontends.express.wire import (
    HELLO,
    PATH,
    Answer,
    Sent,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    parse_frames,
    prefixed,
)
from tfs.core.call import (
    BurstCall,
    Call,
    ListenerOptions,
    MethodKind,
    RpcMethod,
    StreamCall,
    TlsSource,
)
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2 import frames
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.frames import ErrorCode, FrameType
from tfs.testing.fake_clock import FakeClock

HOLD = "/tfs.test.Echo/Hold"
STREAM = "/tfs.test.Echo/Stream"
BOTH = "/tfs.test.Echo/Both"
FAIL = "/tfs.test.Echo/Fail"
BURST = "/tfs.test.Echo/Burst"
GROW = "/tfs.test.Echo/Grow"


class RawClient:
    """Sends bytes, collects frames. Never blocks."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self.is_closed = False
        self.data = b""
        self.answers: dict[int, Answer] = {}
        self.pings: list[bytes] = []
        self.window = frames.DEFAULT_WINDOW  # what we may send
        self.initial_window = frames.DEFAULT_WINDOW  # of each stream
        self.granted: Counter[int] = Counter()  # beyond that, by stream
        self.uploaded: Counter[int] = Counter()  # by stream
        self.goaway: ErrorCode | None = None
        self.goaway_reason = ""
        self.max_streams = 0  # as the server said last
        self.decoder = Decoder()

    def send(self, data: bytes) -> None:
        """Sends all of it; it must fit into the socket's buffer."""
        assert self.socket.send(data) == len(data)

    def send_some(self, data: bytes) -> int:
        """Returns how much the kernel took."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    def upload_politely(self, stream_id: int, data: bytes, max_bytes: int) -> bytes:
        """Does as :meth:`upload`, and keeps to the stream's window as well."""
        self.read()
        window = self.initial_window + self.granted[stream_id]
        left = max(0, window - self.uploaded[stream_id])
        return self.upload(stream_id, data, min(left, max_bytes))

    def upload(self, stream_id: int, data: bytes, max_bytes: int = 10_000) -> bytes:
        """Sends as much of a request's last message as may be; returns the rest."""
        self.read()
        size = min(self.window, len(data), max_bytes)
        if size:
            self.uploaded[stream_id] += size
            ends = frames.END_STREAM if size == len(data) else 0
            self.send(data_frame(stream_id, data[:size], ends))
            self.window -= size
        return data[size:]

    def read(self, most_bytes: int | None = None) -> None:
        """Takes what has arrived, or about as many bytes of it."""
        left = float("inf") if most_bytes is None else most_bytes
        while left > 0:
            try:
                data = self.socket.recv(int(min(left, 1 << 20)))
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self.is_closed = True
                break
            left -= len(data)
            self.data += data
        whole = _whole_frames(self.data)
        for sent in parse_frames(self.data[:whole]):
            self._collect(sent)
        self.data = self.data[whole:]

    def answer(self, stream_id: int) -> Answer:
        """Returns what has arrived of an answer."""
        self.read()
        return self.answers.setdefault(stream_id, Answer())

    def close(self) -> None:
        self.socket.close()

    def _collect(self, sent: Sent) -> None:
        self.answers.setdefault(sent.stream_id, Answer()).take(sent, self.decoder)
        if sent.frame_type == FrameType.WINDOW_UPDATE and not sent.stream_id:
            self.window += int.from_bytes(sent.payload, "big")
        elif sent.frame_type == FrameType.WINDOW_UPDATE:
            self.granted[sent.stream_id] += int.from_bytes(sent.payload, "big")
        elif sent.frame_type == FrameType.GOAWAY:
            self.goaway = sent.error
            self.goaway_reason = sent.payload[8:].decode()
        elif sent.frame_type == FrameType.SETTINGS and not sent.is_ack:
            said = dict(frames.parse_settings(sent.payload))
            self.max_streams = said.get(
                frames.Setting.MAX_CONCURRENT_STREAMS, self.max_streams
            )
            self.initial_window = said.get(
                frames.Setting.INITIAL_WINDOW_SIZE, self.initial_window
            )
        elif sent.frame_type == FrameType.PING and not sent.is_ack:
            self.pings.append(sent.payload)


def _whole_frames(data: bytes) -> int:
    index = 0
    while len(data) - index >= frames.HEAD_SIZE:
        end = index + frames.HEAD_SIZE + (frames.unpack_head(data, index)[0] >> 8)
        if end > len(data):
            break
        index = end
    return index


class Rig:
    """The transport under test.

    Attributes:
        held: Calls of the method HOLD, which answers nothing by itself, and those of
            GROW that have room.
        room_bytes: How much room calls of GROW ask for.
        is_all: Whether that is all that they take.
        streams: Calls of STREAM and BOTH.
        bursts: Calls of the method BURST, as they were handed over together; it answers
            nothing by itself.
        on_burst: Is told of each burst.
        served: Messages in the order in which handlers saw them.
        num_large_notes: How often the transport told of memory to be returned.
        stats: Where it publishes its numbers.

    """

    def __init__(
        self,
        folder: Path,
        options: ExpressOptions | None = None,
        executor: Executor | None = None,
        tls: TlsSource | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock, name="rig")
        self.num_large_notes = 0
        self.stats = Stats()
        self.transport = ExpressTransport(
            self.loop,
            options,
            executor or InlineExecutor(),
            self.stats,
            on_large_message=self._note_large,
        )
        self.held: list[Call] = []
        self.room_bytes = 0
        self.is_all = False
        self.streams: list[StreamCall] = []
        self.bursts: list[list[BurstCall]] = []
        self.on_burst: Callable[[Sequence[BurstCall]], None] | None = None
        self.served: list[bytes] = []
        self.on_stream: Callable[[StreamCall], None] | None = None
        self.clients: list[RawClient] = []
        self.path = str(folder / "express.sock")
        self.transport.start(
            [ListenerOptions("test", f"unix:{self.path}", tls=tls)],
            {
                method.path: method
                for method in (
                    RpcMethod(PATH, self._echo),
                    RpcMethod(HOLD, self.held.append),
                    RpcMethod(GROW, self._grow),
                    RpcMethod(FAIL, self._fail),
                    RpcMethod(BURST, self._echo, burst_handler=self._burst),
                    RpcMethod(STREAM, self._stream, MethodKind.SERVER_STREAM),
                    RpcMethod(BOTH, self._stream, MethodKind.BIDIRECTIONAL),
                )
            },
        )
        self.step()

    def connections(self) -> list[Connection]:
        """Returns the open ones, which must not be changed."""
        return [session.connection for session in self.transport.clients.sessions]

    def step(self, num_rounds: int = 1) -> None:
        """Runs rounds: at most this many, fewer when there is nothing to do at once."""
        for _ in range(num_rounds):
            self.loop.step()

    def settle(self) -> None:
        """Runs rounds until the loop has nothing left to do at this time."""
        for _ in range(200):
            due_s = self.loop.step()
            if due_s is None or due_s > self.clock.now():
                break
        self.loop.step()

    def advance(self, duration_s: float) -> None:
        """Lets time pass and the timers run."""
        self.clock.advance(duration_s)
        self.settle()

    def connect(self, hello: bytes = HELLO) -> RawClient:
        client = RawClient(self.path)
        self.clients.append(client)
        if hello:
            client.send(hello)
        self.step(2)
        client.read()
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.transport.close()
        self.loop.close()

    def _note_large(self) -> None:
        self.num_large_notes += 1

    def _echo(self, call: Call) -> None:
        self.served.append(bytes(call.message))
        call.reply(bytes(call.message))

    def _burst(self, calls: Sequence[BurstCall]) -> None:
        self.served += [bytes(call.message) for call in calls]
        self.bursts.append(list(calls))
        if self.on_burst is not None:
            self.on_burst(calls)

    def _grow(self, call: Call) -> None:
        if call.take_room(self.room_bytes, is_all=self.is_all):
            self.held.append(call)

    def _fail(self, call: Call) -> None:
        raise ValueError("meant to fail")

    def _stream(self, call: StreamCall) -> None:
        self.streams.append(call)
        if self.on_stream is not None:
            self.on_stream(call)


@contextmanager
def running(
    folder: Path,
    options: ExpressOptions | None = None,
    executor: Executor | None = None,
    tls: TlsSource | None = None,
) -> Iterator[Rig]:
    rig = Rig(folder, options, executor, tls)
    try:
        yield rig
    finally:
        rig.close()


def head(stream_id: int, path: str = PATH, *extra: tuple[str, str]) -> bytes:
    """Returns the HEADERS frame of a call of ``path``."""
    return headers_frame(stream_id, literal_block(grpc_headers(*extra, path=path)))


def hold(stream_id: int, *extra: tuple[str, str]) -> bytes:
    """Returns a request for the method that never answers by itself."""
    return head(stream_id, HOLD, *extra) + data_frame(stream_id, prefixed(b"x"))


def num_of(kind: type) -> int:
    """Returns how many there are of a kind that the collector looks after."""
    return sum(type(each) is kind for each in gc.get_objects())
