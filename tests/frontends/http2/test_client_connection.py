"""Our own calls over HTTP/2, against a server that no one here wrote (the library h2)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.express.wire import parse_frames
from tfs.codec.call_error import error_of
from tfs.core.call import Metadata
from tfs.core.errors import Code, ResourceExhausted, ServingError, Unavailable
from tfs.frontends.http2 import frames
from tfs.frontends.http2.client_connection import ClientConnection
from tfs.frontends.http2.frames import ConnectionFault, FrameType
from tfs.frontends.http2.hpack_decoder import encode_literal
from tfs.frontends.http2.unary_request import Outcome, UnaryRequest
from tfs.frontends.status_details import status_details

PATH = "/a.B/C"
OK = [(b"grpc-status", b"0")]
HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


@dataclass
class Asked:
    """A request as the server got it."""

    headers: dict[bytes, bytes]
    data: bytes = b""
    is_whole: bool = False
    reset: int | None = None


@dataclass
class Pair:
    """A client and a server, whose bytes reach each other when ``meet`` is called."""

    settings: dict[h2.settings.SettingCodes, int] = field(default_factory=dict)
    address: str = "host:1"
    is_secure: bool = False

    def __post_init__(self) -> None:
        self.refused: list[UnaryRequest] = []
        self.client = ClientConnection(
            self.address, self.is_secure, self.refused.append, error_of
        )
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self.server = h2.connection.H2Connection(config)
        self.server.local_settings = h2.settings.Settings(
            client=False, initial_values=self.settings
        )
        self.server.initiate_connection()
        self.asked: dict[int, Asked] = {}
        self.grants = True  # whether the server widens its windows

    def ask(
        self,
        message: bytes = b"request",
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> tuple[UnaryRequest, list[Outcome]]:
        outcomes: list[Outcome] = []
        request = UnaryRequest(PATH, message, timeout_s, metadata, outcomes.append)
        self.client.begin(request)
        return request, outcomes

    def meet(self, piece: int = 1 << 20) -> None:
        """Exchanges bytes, in pieces of so many, until neither has any."""
        while True:
            self.client.fill(1 << 16)
            to_server = b"".join(self.client.out)
            self.client.out.clear()
            if to_server:
                for event in self.server.receive_data(to_server):
                    self._on_event(event)
            to_client = self.server.data_to_send()
            for start in range(0, len(to_client), piece):
                self.client.receive(to_client[start : start + piece])
            if not to_server and not to_client:
                return

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.asked[event.stream_id] = Asked(dict(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            self.asked[event.stream_id].data += event.data
            if self.grants:
                size = event.flow_controlled_length
                self.server.acknowledge_received_data(size, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.asked[event.stream_id].is_whole = True
        elif isinstance(event, h2.events.StreamReset):
            self.asked[event.stream_id].reset = event.error_code

    def answer(
        self,
        stream_id: int,
        message: bytes = b"answer",
        *,
        trailers: list[tuple[bytes, bytes]] = OK,
        pad: int | None = None,
        frame_size: int = 1 << 14,
    ) -> None:
        self.server.send_headers(stream_id, HEAD)
        body = prefixed(message)
        for start in range(0, len(body), frame_size):
            part = body[start : start + frame_size]
            self.server.send_data(stream_id, part, pad_length=pad)
        self.server.send_headers(stream_id, trailers, end_stream=True)


@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=5),
    piece=st.sampled_from([1, 7, 1000, 1 << 20]),
    pad=st.sampled_from([None, 0, 9]),
    frame_size=st.sampled_from([3, 1000, 16_000]),
)
def test_every_answer_comes_whole_to_who_asked(
    sizes: list[int], piece: int, pad: int | None, frame_size: int
) -> None:
    """However bytes are cut, frames padded and headers compressed; in whatever order."""
    if piece < 1000:
        sizes = [size % 500 for size in sizes]
    if frame_size < 1000:
        sizes = [size % 900 for size in sizes]
    pair = Pair()
    outcomes = [pair.ask(bytes([index]) * 3)[1] for index in range(len(sizes))]
    pair.meet()
    assert [each.data[5:] for each in pair.asked.values()] == [
        bytes([index]) * 3 for index in range(len(sizes))
    ]
    for stream_id, size in reversed([*zip(pair.asked, sizes, strict=True)]):
        answer = b"%d" % stream_id * size
        pair.answer(stream_id, answer, pad=pad, frame_size=frame_size)
    pair.meet(piece)
    assert outcomes == [
        [b"%d" % key * size] for key, size in zip(pair.asked, sizes, strict=True)
    ]
    assert pair.client.is_idle


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_request_begins_as_grpc_wants_it(is_secure: bool) -> None:
    """Its path, deadline and metadata, binary values too; in the same bytes each time."""
    pair = Pair(address="host:1" if is_secure else "unix:/a/b", is_secure=is_secure)
    metadata = (
        *(("tfs-priority", "low"), ("x-bin", b"\x00\xff\x01\x02")),
        *(("no", "\x01"), ("x", "\xe9")),
    )
    pair.server.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    pair.ask(b"m" * 10, 6.9987, metadata)
    pair.meet()
    assert pair.asked[1].headers == {
        b":method": b"POST",
        b":scheme": b"https" if is_secure else b"http",
        b":path": PATH.encode(),
        b":authority": b"host:1" if is_secure else b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
        b"tfs-priority": b"low",
        b"x-bin": b"AP8BAg",
        b"x": b"\xe9",
        b"grpc-timeout": b"7000m",
    }
    assert pair.asked[1].data == prefixed(b"m" * 10)
    assert pair.asked[1].is_whole


@pytest.mark.parametrize(
    ("timeout_s", "text"),
    [
        (0.0, b"1m"),
        (0.0101, b"11m"),
        (0.999, b"999m"),
        (61.234, b"61300m"),
        (99_960.0, b"100000S"),
        (3.6e11, b"99999999S"),
    ],
)
def test_what_is_left_is_told_in_three_digits(timeout_s: float, text: bytes) -> None:
    """Never less than there is, and in eight digits at most."""
    pair = Pair()
    pair.ask(timeout_s=timeout_s)
    pair.meet()
    assert pair.asked[1].headers[b"grpc-timeout"] == text


def test_a_long_request_is_sent_as_the_server_s_windows_allow() -> None:
    """And others go on beside it."""
    pair = Pair({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 40_000})
    pair.meet()
    pair.grants = False
    long = bytes(range(256)) * 1000
    pair.ask(long)
    pair.meet()
    assert len(pair.asked[1].data) == 40_000
    _, outcomes = pair.ask(b"short")
    pair.meet()
    assert pair.asked[3].is_whole
    pair.answer(3)
    pair.grants = True
    pair.server.increment_flow_control_window(40_000)
    pair.server.increment_flow_control_window(40_000, 1)
    pair.meet()
    assert outcomes == [b"answer"]
    assert pair.asked[1].data == prefixed(long)
    assert pair.asked[1].is_whole


@given(
    sizes=st.lists(st.integers(0, 50_000), min_size=1, max_size=4),
    windows=st.lists(st.integers(0, 70_000), min_size=1, max_size=4),
    frame_size=st.sampled_from([1 << 14, 1 << 17]),
)
def test_no_window_is_exceeded(
    sizes: list[int], windows: list[int], frame_size: int
) -> None:
    """Neither a stream's, which the server may change, nor that of all together."""
    pair = Pair()
    pair.grants = False
    pair.server.update_settings({h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_size})
    window = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
    for each in windows:
        pair.server.update_settings({window: each})
        pair.meet()
        for size in sizes:
            pair.ask(b"x" * size)
        pair.meet()
    pair.server.update_settings({window: 1 << 20})
    for each in (1 << 20, 1):
        pair.server.increment_flow_control_window(each)
    pair.meet()
    assert [len(each.data) - 5 for each in pair.asked.values()] == sizes * len(windows)
    assert all(each.is_whole for each in pair.asked.values())


def test_a_server_may_answer_for_ever() -> None:
    """It gets as much window back as it used, also for answers that nobody waits for."""
    pair = Pair()
    pair.client.out.clear()
    frame = frames.frame(FrameType.DATA, 0, 1, bytes(1 << 18))
    num_frames = 3 * 4097
    for _ in range(num_frames):
        pair.client.receive(frame)
    updates = [bytes(each) for each in pair.client.out]
    assert updates == [frames.window_update(0, 4097 << 18)] * 3


def test_a_long_head_is_sent_in_parts() -> None:
    """A server takes 16 KB in a frame."""
    pair = Pair()
    text = "".join(chr(33 + index % 90) for index in range(40_000))
    pair.ask(metadata=(("long", text),))
    pair.meet()
    assert pair.asked[1].headers[b"long"] == text.encode()
    assert pair.asked[1].is_whole


def test_no_more_run_at_a_time_than_the_server_takes() -> None:
    """The others wait, and those that are given up meanwhile are never sent."""
    pair = Pair({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    pair.meet()
    asked = [pair.ask(b"%d" % index) for index in range(4)]
    pair.meet()
    pair.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 9})
    pair.meet()
    assert [*pair.asked] == [1, 3]
    pair.client.give_up(asked[2][0])
    pair.answer(1)
    pair.answer(3)
    pair.meet()
    pair.answer(5)
    pair.meet()
    assert pair.asked[5].data == prefixed(b"3")
    assert [outcomes for _, outcomes in asked] == [
        [b"answer"],
        [b"answer"],
        [],
        [b"answer"],
    ]


def test_nothing_is_sent_before_the_server_says_how_much_it_takes() -> None:
    """Some punish a client that has opened too many by then."""
    pair = Pair({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    asked = [pair.ask() for _ in range(3)]
    pair.client.give_up(asked[1][0])
    (hello,) = pair.client.out
    assert [
        each.frame_type for each in parse_frames(bytes(hello)[len(frames.PREFACE) :])
    ] == [
        FrameType.SETTINGS,
        FrameType.WINDOW_UPDATE,
    ]
    pair.meet()
    pair.answer(1)
    pair.meet()
    pair.answer(3)
    pair.meet()
    assert [outcomes for _, outcomes in asked] == [[b"answer"], [], [b"answer"]]


def test_who_gives_up_hears_no_more() -> None:
    """The server is told, and the connection goes on."""
    pair = Pair()
    request, outcomes = pair.ask()
    _, others = pair.ask()
    pair.meet()
    pair.answer(1)
    pair.client.give_up(request)
    pair.answer(3)
    pair.meet()
    assert (outcomes, others) == ([], [b"answer"])
    pair.client.give_up(request)
    pair.meet()
    late, _ = pair.ask(b"x" * 100_000)
    pair.client.give_up(late)
    assert not pair.client.has_sendable
    pair.meet()
    assert pair.asked[5].reset == 8
    assert pair.client.is_idle


def failed(pair: Pair, outcomes: list[Outcome]) -> ServingError:
    pair.meet()
    (error,) = outcomes
    assert isinstance(error, ServingError)
    return error


def test_an_error_comes_as_the_server_told_it() -> None:
    """Its code, its words in any language, and how long to wait."""
    pair = Pair()
    wait = ResourceExhausted("queue full", retry_after_s=1.5)
    details = status_details(wait)
    assert details is not None
    told = [
        (b"grpc-status", b"8"),
        (b"grpc-message", b"100%25 f%C3%BCll"),
        (b"grpc-status-details-bin", base64.b64encode(details).rstrip(b"=")),
    ]
    _, outcomes = pair.ask()
    pair.meet()
    half = encode_literal(b"grpc-message", b"of who is gone")
    pair.client.receive(
        frames.frame(FrameType.HEADERS, 0, 99, half)
        + frames.frame(FrameType.CONTINUATION, frames.END_HEADERS, 99, half)
    )
    pair.answer(1, trailers=told)
    error = failed(pair, outcomes)
    assert (error.code, error.retry_after_s) == (Code.RESOURCE_EXHAUSTED, 1.5)
    assert error.message == "100% füll"
    _, outcomes = pair.ask()
    pair.meet()
    pair.server.send_headers(3, [*HEAD, (b"grpc-status", b"5")], end_stream=True)
    error = failed(pair, outcomes)
    assert (error.code, error.message) == (Code.NOT_FOUND, "NOT_FOUND")


@given(st.lists(st.sampled_from([1, 3, 5, 7, 9]), max_size=12))
def test_headers_are_read_as_the_server_compressed_them(statuses: list[int]) -> None:
    """The same bytes may mean another thing later; also behind those of who gave up."""
    pair = Pair()
    heard = [pair.ask() for _ in statuses]
    pair.meet()
    expected: list[int] = []
    for index, status in enumerate(statuses):
        if index % 3 == 1:
            pair.client.give_up(heard[index][0])
        else:
            expected.append(status)
        pair.answer(2 * index + 1, trailers=[(b"grpc-status", b"%d" % status)])
        pair.client.receive(pair.server.data_to_send())
    codes = [each.code for _, outcomes in heard for each in outcomes]  # type: ignore[union-attr]
    assert codes == expected


@pytest.mark.parametrize(
    ("status", "code"),
    [(b"503", Code.UNAVAILABLE), (b"404", Code.UNIMPLEMENTED), (b"200", Code.UNKNOWN)],
)
def test_an_answer_that_is_not_grpc_s_is_an_error(status: bytes, code: Code) -> None:
    """Its code follows from the HTTP status by gRPC's own table."""
    pair = Pair()
    _, outcomes = pair.ask()
    pair.meet()
    pair.server.send_headers(1, [(b":status", b"103")])
    is_bare = status == b"503"
    pair.server.send_headers(1, [(b":status", status)], end_stream=is_bare)
    if not is_bare:
        pair.server.send_data(1, b"<html>", end_stream=True)
    assert failed(pair, outcomes).code is code


@pytest.mark.parametrize(
    "body",
    [b"", b"\0\0", prefixed(b"x", 1), prefixed(b"x") + prefixed(b"y"), b"\0\0\0\0\x09"],
)
def test_an_answer_is_one_plain_message(body: bytes) -> None:
    """None, half of one, a compressed one, two of them: INTERNAL."""
    pair = Pair()
    _, outcomes = pair.ask()
    pair.meet()
    pair.server.send_headers(1, HEAD)
    pair.server.send_data(1, body)
    pair.server.send_headers(1, OK, end_stream=True)
    assert failed(pair, outcomes).code is Code.INTERNAL


@pytest.mark.parametrize(
    ("reset", "code"),
    [
        (7, Code.UNAVAILABLE),
        (8, Code.CANCELLED),
        (11, Code.RESOURCE_EXHAUSTED),
        (2, Code.INTERNAL),
        (99, Code.INTERNAL),
    ],
)
def test_a_call_that_is_reset_fails(reset: int, code: Code) -> None:
    """By gRPC's own table; a server that refuses it may be one of several."""
    pair = Pair()
    _, outcomes = pair.ask()
    pair.meet()
    pair.client.receive(
        frames.frame(FrameType.RST_STREAM, 0, 1, frames.pack_uint32(reset))
    )
    assert failed(pair, outcomes).code is code


def test_an_answer_before_the_request_is_whole_ends_it() -> None:
    """A server that refuses a long one need not read it."""
    pair = Pair()
    pair.grants = False
    _, outcomes = pair.ask(b"x" * 200_000)
    pair.meet()
    pair.server.send_headers(1, [*HEAD, (b"grpc-status", b"8")], end_stream=True)
    assert failed(pair, outcomes).code is Code.RESOURCE_EXHAUSTED
    assert pair.client.is_idle
    assert not pair.client.has_sendable
    assert pair.asked[1].reset is not None


def test_a_server_that_leaves_finishes_what_it_began() -> None:
    """What it had not begun can be sent again elsewhere, once."""
    pair = Pair()
    begun, outcomes = pair.ask()
    message = b"x" * 100_000
    again, others = pair.ask(message)
    pair.meet()
    pair.client.receive(frames.goaway(1, frames.ErrorCode.NO_ERROR))
    assert pair.client.is_leaving
    assert pair.refused == [again]
    pair.answer(1)
    pair.meet()
    assert outcomes == [b"answer"]
    assert begun.stream_id == 1
    other = Pair()
    other.client.begin(again)
    other.meet()
    assert other.asked[1].data == prefixed(message)
    other.client.receive(frames.goaway(0, frames.ErrorCode.NO_ERROR))
    assert not other.refused
    (error,) = others
    assert isinstance(error, Unavailable)


def test_a_server_that_leaves_is_sent_nothing_more() -> None:
    """What waits for others to end goes elsewhere, with those that were not begun."""
    pair = Pair({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    (begun, outcomes), *others = (pair.ask() for _ in range(4))
    pair.meet()
    pair.client.receive(frames.goaway(begun.stream_id, frames.ErrorCode.NO_ERROR))
    assert pair.refused == [again for again, _ in others]
    assert pair.client.out == []
    pair.answer(1)
    pair.meet()
    assert outcomes == [b"answer"]
    assert pair.client.is_idle


@pytest.mark.parametrize("is_twice", [True, False])
def test_an_outcome_may_give_up_others(is_twice: bool) -> None:
    """They hear nothing, also where all of a connection end at once."""
    pair = Pair({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    heard: list[int] = []
    requests: list[UnaryRequest] = []

    def hear(index: int) -> None:
        heard.append(index)
        for each in requests[1:]:
            pair.client.give_up(each)

    for index in range(4):
        done = partial(lambda index, _: hear(index), index)
        requests.append(UnaryRequest(PATH, b"", None, (), done))
        requests[-1].was_refused = is_twice
        pair.client.begin(requests[-1])
    pair.meet()
    if is_twice:
        pair.client.receive(frames.goaway(0, frames.ErrorCode.NO_ERROR))
    else:
        pair.client.end(Unavailable("lost"))
    assert heard == [0]


def test_a_lost_connection_fails_all_its_requests() -> None:
    """Those that wait for others, too."""
    pair = Pair({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    pair.meet()
    asked = [pair.ask()[1] for _ in range(3)]
    error = Unavailable("lost")
    pair.client.end(error)
    assert asked == [[error]] * 3
    assert pair.client.is_idle


def test_a_ping_is_answered() -> None:
    """Servers find dead connections by it."""
    pair = Pair()
    pair.server.ping(b"12345678")
    pair.meet()
    pair.client.receive(frames.ping(b"87654321"))
    assert pair.client.out == [frames.ping(b"87654321", ack=True)]


def _headers(block: bytes, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(FrameType.HEADERS, flags, 1, block)


FAULTS: dict[str, Callable[[], bytes]] = {
    "HTTP/1": lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "too long a frame": lambda: frames.frame_head(FrameType.DATA, 0, 1, 1 << 20),
    "DATA on stream 0": lambda: frames.frame(FrameType.DATA, 0, 0, b""),
    "a push": lambda: frames.frame(FrameType.PUSH_PROMISE, 4, 1, b"\0\0\0\2"),
    "padding": lambda: frames.frame(FrameType.DATA, frames.PADDED, 1, b"\x09x"),
    "HPACK": lambda: _headers(b"\xff\xff\xff\xff\xff"),
    "an endless loop": lambda: frames.settings({frames.Setting.MAX_FRAME_SIZE: 0}),
    "no block goes on": lambda: frames.frame(FrameType.CONTINUATION, 4, 1, b""),
    "inside a block": lambda: _headers(b"", 0) + frames.ping(b"12345678"),
    "endless headers": lambda: (
        _headers(b"", 0)
        + 9
        * frames.frame(FrameType.CONTINUATION, 0, 1, encode_literal(b"a", b"b" * 9000))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_breaks_the_protocol_ends_the_connection(fault: str) -> None:
    """Nothing is guessed about what a server may have meant."""
    pair = Pair()
    pair.ask()
    pair.meet()
    with pytest.raises(ConnectionFault):
        pair.client.receive(FAULTS[fault]())
