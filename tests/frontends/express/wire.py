"""A client's half of HTTP/2 for tests: raw frames, and a recorder of events."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from hpack import Decoder, Encoder

from tfs.core.errors import ServingError
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http2 import frames
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.frames import ErrorCode, FrameType, Setting
from tfs.frontends.http2.state import ConnectionLimits
from tfs.frontends.http2.stream import Stream

PATH = "/tfs.test.Echo/Say"
HELLO = frames.PREFACE + frames.settings({})
OPEN_WINDOWS = frames.settings(
    {Setting.INITIAL_WINDOW_SIZE: 1 << 30}
) + frames.window_update(0, 1 << 30)
"""What a client says that lets the server send any answer at once."""
WIDE_HELLO = HELLO + OPEN_WINDOWS
CLOSED_HELLO = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
"""The beginning of a client that takes no byte of an answer until it opens a window."""

GRPC_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)

Events = list[tuple[object, ...]]


def grpc_headers(*extra: tuple[str, str], **replaced: str) -> list[tuple[str, str]]:
    """Returns a request's headers; ``path="/x"`` replaces ":path" and so on."""
    headers = [
        (name, replaced.get(name.strip(":").replace("-", "_"), value))
        for name, value in GRPC_HEADERS
    ]
    return [*headers, *extra]


def literal_block(headers: list[tuple[str, str]]) -> bytes:
    """Returns a header block that leaves the dynamic table alone."""
    encoder = Encoder()
    return b"".join(
        encoder.add((name.encode(), value.encode()), sensitive=True)
        for name, value in headers
    )


BLOCK = literal_block(grpc_headers())
"""The header block of a plain request."""


"""The same as grpcio gets it, however it was compressed."""


def headers_frame(
    stream_id: int, block: bytes = BLOCK, flags: int = frames.END_HEADERS
) -> bytes:
    return frames.frame(FrameType.HEADERS, flags, stream_id, block)


def prefixed(message: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def data_frame(stream_id: int, payload: bytes, flags: int = frames.END_STREAM) -> bytes:
    return frames.frame(FrameType.DATA, flags, stream_id, payload)


def request(stream_id: int, message: bytes = b"ping") -> bytes:
    """Returns the frames of a whole unary request."""
    return headers_frame(stream_id) + data_frame(stream_id, prefixed(message))


@dataclass
class Sent:
    """One frame the server sent."""

    frame_type: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def error(self) -> ErrorCode:
        """The code of an RST_STREAM or GOAWAY."""
        offset = 4 if self.frame_type == FrameType.GOAWAY else 0
        return ErrorCode(struct.unpack_from(">I", self.payload, offset)[0])

    @property
    def is_ack(self) -> bool:
        return bool(self.flags & frames.ACK)


def parse_frames(data: bytes) -> list[Sent]:
    """Cuts bytes into frames; they must be whole."""
    found = []
    index = 0
    while index < len(data):
        word, flags, stream_id = frames.unpack_head(data, index)
        end = index + frames.HEAD_SIZE + (word >> 8)
        assert end <= len(data), "a frame is cut off"
        found.append(
            Sent(word & 0xFF, flags, stream_id, data[index + frames.HEAD_SIZE : end])
        )
        index = end
    return found


@dataclass
class Answer:
    """What a client sees of one stream."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    trailers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    has_ended: bool = False
    reset: ErrorCode | None = None

    @property
    def status(self) -> str | None:
        return dict(self.headers + self.trailers).get("grpc-status")

    @property
    def messages(self) -> list[bytes]:
        found = []
        body = self.body
        while body:
            _, size = struct.unpack_from(">BI", body)
            found.append(body[5 : 5 + size])
            body = body[5 + size :]
        return found

    def take(self, sent: Sent, decoder: Decoder) -> None:
        """Adds a frame of the stream; ``decoder`` is the connection's."""
        if sent.frame_type == FrameType.HEADERS:
            headers = [(str(n), str(v)) for n, v in decoder.decode(sent.payload)]
            if self.headers:
                self.trailers = headers
            else:
                self.headers = headers
        elif sent.frame_type == FrameType.DATA:
            self.body += sent.payload
        elif sent.frame_type == FrameType.RST_STREAM:
            self.reset = sent.error
        if sent.frame_type in (FrameType.HEADERS, FrameType.DATA) and (
            sent.flags & frames.END_STREAM
        ):
            self.has_ended = True


class Recorder:
    """Collects a connection's events; ``answer`` decides what to do with requests."""

    def __init__(self) -> None:
        self.events: Events = []
        self.connection: Connection | None = None
        self.answer: Callable[[Stream, bytes], None] | None = None
        self.opened: dict[int, Stream] = {}
        self._partial: dict[int, bytes] = {}

    def on_open(self, stream: Stream) -> None:
        self.opened[stream.id] = stream
        self.events.append(("open", stream.id, stream.head.path))

    def on_request(self, stream: Stream, message: bytes) -> None:
        self.events.append(("request", stream.id, message))
        if self.answer is not None:
            self.answer(stream, message)

    def on_message(
        self, stream: Stream, message: memoryview, is_compressed: bool
    ) -> None:
        self.events.append(("message", stream.id, bytes(message), is_compressed))
        self._partial[stream.id] = bytes(message)

    def on_end(self, stream: Stream) -> None:
        self.events.append(("end", stream.id))
        message = self._partial.pop(stream.id, None)
        if self.answer is not None and message is not None:
            self.answer(stream, message)

    def on_fault(self, stream: Stream, error: ServingError) -> None:
        self.events.append(("fault", stream.id, error.code.name))
        assert self.connection is not None
        self.connection.sender.send_error(stream, error)
        self.connection.state.budget.release_all(stream)

    def on_reset(self, stream: Stream) -> None:
        self.events.append(("reset", stream.id))
        assert self.connection is not None
        self.connection.state.budget.release_all(stream)

    def on_output(self) -> None:
        self.events.append(("output",))


class Wire:
    """A connection under test with everything around it; time is ``now_s``."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        budget: MemoryBudget | None = None,
        echo: bool = False,
        hello: bool = True,
    ) -> None:
        self.now_s = 100.0
        self.posted: list[Callable[[], None]] = []
        self.recorder = Recorder()
        self.budget = budget or MemoryBudget(256 << 20, self.posted.append)
        self.connection = Connection(
            self.recorder, self.budget, limits or ConnectionLimits(), self.now_s
        )
        self.recorder.connection = self.connection
        if echo:
            self.recorder.answer = self.reply
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.answers: dict[int, Answer] = {}
        if hello:
            self.feed(HELLO)
            self.sent()

    @property
    def events(self) -> Events:
        """The events since the last look."""
        events = self.recorder.events
        self.recorder.events = []
        return events

    def reply(self, stream: Stream, message: bytes) -> None:
        self.connection.sender.send_reply(stream, message)
        self.connection.state.budget.release_all(stream)

    def feed(self, data: bytes) -> bool:
        return self.connection.receive(data, self.now_s)

    def feed_all(self, data: bytes) -> None:
        """Feeds ``data`` and the rounds it takes to use it up."""
        has_more = self.feed(data)
        while has_more:
            has_more = self.feed(b"")

    def run_posted(self) -> None:
        """Runs what was posted to the loop."""
        while self.posted:
            self.posted.pop(0)()

    def sent(self) -> list[Sent]:
        """Takes the frames sent since the last look, DATA filled in."""
        sender = self.connection.sender
        sender.fill(1 << 30)
        data = b"".join(sender.out)
        sender.out.clear()
        found = parse_frames(data)
        for sent in found:
            self.answers.setdefault(sent.stream_id, Answer()).take(sent, self.decoder)
        return found

    def sent_types(self) -> list[str]:
        return [FrameType(sent.frame_type).name for sent in self.sent()]

    def answer(self, stream_id: int) -> Answer:
        """Returns what the client has seen of a stream so far."""
        self.sent()
        return self.answers.setdefault(stream_id, Answer())

    def goaway(self) -> ErrorCode | None:
        """Takes what was sent; returns the code of the last GOAWAY."""
        codes = [s.error for s in self.sent() if s.frame_type == FrameType.GOAWAY]
        return codes[-1] if codes else None
