"""What grpcio gets of a client's frames, and what it does not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import hpack
import pytest

from tests.frontends.express.wire import (
    LITERALS,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    parse_frames,
)
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.frames import (
    PREFACE,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
)
from tfs.frontends.rpc.grpcio.answer_frames import AnswerFrames
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.client_heads import ClientHeads, HeadLimits
from tfs.frontends.rpc.grpcio.request_frames import FloodError, RequestFrames
from tfs.frontends.rpc.heads.hpack_decoder import encode_literal


def make(
    gate: CallGate, most_calls: int, on_refused: Callable[[bytes], None]
) -> RequestFrames:
    return RequestFrames(gate, most_calls, ClientHeads(HeadLimits()), on_refused)


def _refuse_none(reset: bytes) -> None:
    raise AssertionError("a good call was refused")


class Rig:
    """One connection, or two, at one gate."""

    def __init__(self, most_calls: int = 64) -> None:
        self.now_s = 0.0
        self.gate = CallGate(lambda: self.now_s)
        self.most_calls = most_calls
        self.refused: list[bytes] = []
        self.client = self.connect()

    def connect(self) -> RequestFrames:
        client = make(self.gate, self.most_calls, self.refused.append)
        assert client.take(PREFACE) == PREFACE
        return client


def begin(stream_id: int, num_bytes: int = 0) -> bytes:
    """Returns a request's headers, of about that size if they would be shorter."""
    missing = b"x" * max(0, num_bytes - len(LITERALS))
    more = encode_literal(b"x", missing) if missing else b""
    return headers_frame(stream_id, LITERALS + more)


def send_all(client: RequestFrames, pieces: list[bytes], passed: list[bytes]) -> None:
    passed.extend(map(client.take, pieces))


def test_frames_pass_as_they_come_however_they_are_cut() -> None:
    """Every byte of an ordinary conversation, in order; but half a head is kept."""
    sent = PREFACE + frames.settings({}) + begin(1) + data_frame(1, bytes(5000), 0)
    sent += frames.ping(b"12345678") + data_frame(1, b"", 1) + begin(3)
    rng = random.Random(7)
    for _ in range(50):
        client = make(CallGate(lambda: 0.0), 64, _refuse_none)
        passed = b""
        index = 0
        while index < len(sent):
            size = rng.choice([1, 3, 9, 50, 6000])
            passed += client.take(sent[index : index + size])
            assert passed == sent[: len(passed)]
            index += size
            assert min(index, len(sent)) - len(passed) < 9 + 9 + len(LITERALS)
        assert passed == sent
        assert client.num_held_bytes == 0


def test_headers_in_several_frames_pass_together() -> None:
    """grpcio gets none of them before the last one is there."""
    rig = Rig()
    first = headers_frame(1, LITERALS[:50], 0)
    last = frames.frame(FrameType.CONTINUATION, frames.END_HEADERS, 1, LITERALS[50:])
    assert rig.client.take(first) == b""
    assert rig.client.take(last[:15]) == b""
    assert rig.client.take(last[15:] + data_frame(1, b"x")) == (
        begin(1) + data_frame(1, b"x")
    )


@pytest.mark.parametrize("size", [0, 100, 16_384])
def test_headers_without_end_end_the_connection(size: int) -> None:
    """After 64 KB, or a hundred frames of nothing; nothing of them has passed."""
    rig = Rig()
    more = frames.frame(FrameType.CONTINUATION, 0, 1, bytes(size))
    passed = [rig.client.take(headers_frame(1, LITERALS, 0))]
    with pytest.raises(FloodError, match="without end"):
        send_all(rig.client, [more] * 130, passed)
    assert b"".join(passed) == b""
    assert rig.client.num_held_bytes < 70_000


def test_frames_between_headers_end_the_connection() -> None:
    """RFC 9113, section 4.3: nothing may come between the frames of a block."""
    rig = Rig()
    with pytest.raises(FloodError, match="within a block"):
        rig.client.take(headers_frame(1, LITERALS, 0) + frames.ping(b"12345678"))


def test_a_call_too_many_waits_until_another_is_over() -> None:
    """The frames of calls under way pass it, and it keeps its own."""
    rig = Rig(most_calls=2)
    client = rig.client
    both = begin(1) + begin(3)
    assert client.take(both) == both
    assert client.take(begin(5) + data_frame(5, b"later")) == b""
    assert client.take(begin(7)) == b""
    window = frames.window_update(0, 9)
    assert client.take(data_frame(1, b"now") + window) == data_frame(1, b"now") + window
    assert client.let_in() == b""
    client.note_ended(1)
    assert client.let_in() == begin(5) + data_frame(5, b"later")
    assert client.let_in() == b""
    client.note_ended(3)
    assert client.let_in() == begin(7)
    assert client.num_held_bytes == 0


def test_no_call_begins_within_another_frame() -> None:
    """One that waits begins after the frame of which grpcio has a part."""
    rig = Rig(most_calls=1)
    client = rig.client
    client.take(begin(1))
    assert client.take(begin(3)) == b""
    data = data_frame(1, bytes(100), 0)
    assert client.take(data[:50]) == data[:50]
    client.note_ended(1)
    assert client.let_in() == client.let_in_next() == b""
    assert client.take(data[50:]) == data[50:]
    assert client.let_in() == begin(3)


def test_a_waiting_call_begins_though_its_last_frame_is_not_whole() -> None:
    """What is missing of the frame follows."""
    rig = Rig(most_calls=1)
    client = rig.client
    data = data_frame(3, bytes(100))
    client.take(begin(1))
    assert client.take(begin(3) + data[:50]) == b""
    client.note_ended(1)
    assert client.let_in() == begin(3) + data[:50]
    assert client.take(data[50:]) == data[50:]


def test_long_headers_wait_for_those_of_other_calls() -> None:
    """Calls under way have 128 KB of them on one connection; one alone always begins."""
    rig = Rig()
    size = 16_000
    num_passed = 0
    for index in range(20):
        num_passed += bool(rig.client.take(begin(2 * index + 1, size)))
    assert num_passed == (128 << 10) // size
    rig.client.note_ended(1)
    assert rig.client.let_in() == begin(2 * num_passed + 1, size)


def test_nothing_more_is_read_while_much_is_held_back() -> None:
    """A quarter of a megabyte of one connection is enough."""
    rig = Rig(most_calls=1)
    rig.client.take(begin(1))
    for index in range(1, 30):
        rig.client.take(begin(2 * index + 1, 16_000))
        assert rig.client.is_full is (rig.client.num_held_bytes > 1 << 18)
    assert rig.client.is_full


def take_all(client: RequestFrames) -> None:
    """Has grpcio hand over all calls of a client."""
    for _ in range(64):
        client.note_taken()


def fill(rig: Rig) -> None:
    """Has other connections begin calls, so that none may have more than 16."""
    for _ in range(128):
        other = rig.connect()
        for index in range(16):
            other.take(begin(2 * index + 1))
            take_all(other)
    assert rig.gate.may_begin(15)
    assert not rig.gate.may_begin(16)


def test_bodies_never_wait_behind_the_calls_of_other_connections() -> None:
    """They use up the window that the calls under way need, and so none would ever end."""
    rig = Rig()
    fill(rig)
    client = rig.client
    for stream_id in range(1, 33, 2):
        assert client.take(begin(stream_id))
        take_all(client)
    assert client.take(begin(33) + data_frame(33, bytes(1000))) == b""
    assert client.waits_for_others
    assert client.take(begin(35)) == b""
    assert client.let_in() == b""
    body = data_frame(35, bytes(1100))
    assert client.take(body[:50]) == b""
    assert client.let_in() == begin(33) + data_frame(33, bytes(1000))
    assert client.take(body[50:]) == client.let_in() == b""
    more = data_frame(35, bytes(1000))
    assert client.take(more) == b""
    assert client.let_in() == begin(35) + body + more
    assert client.num_held_bytes == 0


def test_no_client_fills_the_queue_of_calls_that_grpcio_has_not_handed_over() -> None:
    """One alone may have 23 of them, sixty have fewer than 300; each may have one."""
    rig = Rig()
    sent = b"".join(begin(stream_id) for stream_id in range(1, 129, 2))
    assert len(rig.client.take(sent)) == 23 * len(begin(1))
    for _ in range(40):
        rig.client.note_taken()
        assert rig.client.let_in()
    others = [rig.connect() for _ in range(60)]
    for other in others:
        other.take(sent)
    assert rig.gate.num_fresh < 300
    client = rig.connect()
    assert client.take(begin(1)) == begin(1)


def test_nobody_waits_for_the_queue_that_others_have_filled() -> None:
    """Whoever has less than half of what others have on average goes on."""
    rig = Rig()
    for _ in range(20):
        other = rig.connect()
        assert other.take(begin(1))
        other.note_taken()
        for stream_id in range(3, 83, 2):
            other.take(begin(stream_id) + data_frame(stream_id, bytes(3000)))
            other.let_in()
    assert rig.gate.num_fresh == 800
    assert rig.gate.num_queuing == 20
    sent = b"".join(begin(stream_id) for stream_id in range(1, 129, 2))
    assert len(rig.client.take(sent)) == 20 * len(begin(1))
    rig.client.close()
    assert rig.gate.num_queuing == 20


def test_bodies_do_not_wait_for_the_queue_of_calls_to_be_handed_over() -> None:
    """Meanwhile the calls under way could send nothing, as if their client were stuck."""
    rig = Rig()
    for _ in range(600):
        rig.connect().take(begin(1))
    client = rig.client
    assert client.take(begin(1)) == begin(1)
    client.note_taken()
    assert client.take(begin(3)) == begin(3)
    assert client.take(begin(5) + data_frame(5, bytes(2000), 0)) == b""
    assert client.let_in() == b""
    assert client.take(data_frame(5, bytes(2000))) == b""
    assert len(client.let_in()) > 4000


@pytest.mark.parametrize("state", ["sent", "a stream", "reset", "not handed over"])
def test_bodies_wait_if_no_request_that_is_read_needs_their_window(state: str) -> None:
    """Otherwise sixty clients would fill the queue, and memory, with short requests."""
    rig = Rig()
    fill(rig)
    client = rig.client
    for stream_id in range(1, 33, 2):
        ends = frames.END_STREAM if state == "sent" else 0
        assert client.take(begin(stream_id) + data_frame(stream_id, b"x", ends))
        if state != "not handed over":
            client.note_taken(is_read=state != "a stream")
    if state == "reset":
        client.take(frames.rst_stream(1, ErrorCode.CANCEL))
        for stream_id in range(3, 33, 2):
            client.take(data_frame(stream_id, b"x"))
        assert client.take(begin(33)) == begin(33)
    sent = begin(35) + data_frame(35, bytes(4000))
    assert client.take(sent) == client.let_in() == b""
    client.note_ended(31)
    assert client.let_in() == sent


def given_up(client: RequestFrames, stream_id: int, body: bytes = b"") -> bytes:
    """Has a call held back, and reset; returns what grpcio gets of it."""
    assert client.take(begin(stream_id) + body) == b""
    assert client.take(frames.rst_stream(stream_id, ErrorCode.CANCEL)) == b""
    return client.let_in()


def test_a_call_that_is_given_up_while_it_waits_never_begins() -> None:
    """grpcio gets none of its headers; its body, for the connection's window."""
    rig = Rig(most_calls=1)
    client = rig.client
    client.take(begin(1))
    client.note_taken()
    body = data_frame(3, b"body", 0)
    assert given_up(client, 3, body) == body + frames.rst_stream(3, ErrorCode.CANCEL)
    assert (rig.gate.num_calls, client.num_held_bytes) == (1, 0)
    assert client.take(begin(5)) == b""
    assert given_up(client, 7) == b""
    client.note_ended(1)
    assert client.let_in() == begin(5) + frames.rst_stream(7, ErrorCode.CANCEL)


def test_a_call_that_was_handed_over_counts_no_more_when_it_is_reset() -> None:
    """Only what grpcio has not handed over stays there; so nobody waits for these."""
    rig = Rig()
    for stream_id in range(1, 129, 2):
        rig.client.take(begin(stream_id))
        rig.client.note_taken()
    assert rig.gate.num_calls == 64
    for stream_id in range(1, 129, 2):
        rig.client.take(frames.rst_stream(stream_id, ErrorCode.CANCEL))
    assert rig.gate.num_calls == 0


def test_calls_that_are_reset_before_they_are_handed_over_count_until_then() -> None:
    """In the order in which they came; a later one that has ended shows it, too."""
    rig = Rig()
    client = rig.client
    for stream_id in (1, 3, 5):
        client.take(begin(stream_id) + frames.rst_stream(stream_id, ErrorCode.CANCEL))
    client.take(begin(7))
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (4, 4)
    client.note_taken()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (3, 3)
    client.note_ended(7)
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (0, 0)


def test_who_has_given_up_all_calls_may_begin_one_more() -> None:
    """It shows when the others are gone; if that one is given up as well, others wait."""
    rig = Rig(most_calls=4)
    client = rig.client
    for stream_id in (1, 3, 5, 7, 9):
        reset = frames.rst_stream(stream_id, ErrorCode.CANCEL)
        assert client.take(begin(stream_id))
        assert client.take(reset) == reset
    assert client.take(begin(11)) == b""
    assert client.let_in() == b""
    rig.now_s = 0.25
    rig.gate.look()
    assert client.let_in() == begin(11)


def test_calls_that_are_reset_by_the_thousand_end_the_connection() -> None:
    """A thousand at once are taken, and a thousand in a second."""
    rig = Rig()
    pieces = [
        begin(stream_id) + frames.rst_stream(stream_id, ErrorCode.CANCEL)
        for stream_id in range(1, 10_000, 2)
    ]
    for index, piece in enumerate(pieces[:4000]):
        rig.now_s = index / 1000
        rig.client.take(piece)
        rig.client.let_in()
    with pytest.raises(FloodError, match="resets them"):
        send_all(rig.client, pieces[4000:], [])
    assert rig.gate.num_calls < 64


def test_a_call_whose_headers_are_not_whole_yet_begins_when_they_are() -> None:
    """grpcio gets nothing of them before they were checked."""
    rig = Rig(most_calls=1)
    client = rig.client
    client.take(begin(1))
    call = begin(3)
    assert client.take(call[:15]) == b""
    client.note_ended(1)
    assert client.let_in() == b""
    after = data_frame(3, bytes(100))
    assert client.take(call[15:] + after) == call + after


@pytest.mark.parametrize(
    "frame",
    [
        frames.settings({}),
        frames.ping(b"12345678"),
        frames.window_update(0, 1),
        frames.frame(FrameType.PRIORITY, 0, 1, bytes(5)),
        frames.frame(0xBB, 0, 0, b""),
        data_frame(1, b"", 0),
        data_frame(1, b"x", 0),
    ],
    ids=["settings", "ping", "window", "priority", "unknown", "nothing", "scrap"],
)
def test_frames_that_ask_for_nothing_end_the_connection(frame: bytes) -> None:
    """A thousand at once, and a hundred a second, are taken; no more."""
    rig = Rig()
    assert rig.client.take(frame * 1000) == frame * 1000
    rig.now_s += 2
    assert rig.client.take(frame * 200) == frame * 200
    with pytest.raises(FloodError, match="nothing"):
        rig.client.take(frame)


def test_windows_of_who_calls_and_reads_are_no_flood() -> None:
    """Twenty frames a call, and one for each 2 KB that it is answered."""
    rig = Rig()
    window = frames.window_update(0, 1)
    for stream_id in range(1, 1000, 2):
        rig.client.take(begin(stream_id) + data_frame(stream_id, b"x") + window * 20)
        rig.client.note_ended(stream_id)
    for _ in range(100):
        rig.client.note_answered(1 << 20)
        rig.client.take(window * 512)


def test_data_of_calls_that_are_over_asks_for_nothing() -> None:
    """What was under way when the server ended a call is taken; not megabytes."""
    rig = Rig()
    rig.client.take(begin(1))
    rig.client.note_ended(1)
    data = data_frame(1, bytes(16_384), 0)
    for _ in range(1000):
        assert rig.client.take(data) == data
    with pytest.raises(FloodError, match="nothing"):
        send_all(rig.client, [data] * 30, [])


def test_calls_without_end_that_wait_end_the_connection() -> None:
    """Clients know how many calls they may have."""
    rig = Rig()
    pieces = [begin(stream_id) for stream_id in range(1, 10_000, 2)]
    with pytest.raises(FloodError, match="begins calls without end"):
        send_all(rig.client, pieces, [])


def trailers(stream_id: int, name: bytes = b"x") -> bytes:
    """Returns headers behind a request."""
    flags = frames.END_HEADERS | frames.END_STREAM
    return headers_frame(stream_id, encode_literal(name, b"y"), flags)


def test_headers_after_a_request_end_it() -> None:
    """They mean nothing to gRPC, so grpcio gets no more than that."""
    rig = Rig()
    rig.client.take(begin(1) + data_frame(1, b"x", 0))
    assert rig.client.take(trailers(1)) == data_frame(1, b"")
    assert (rig.client.num_held_bytes, rig.refused) == (0, [])
    assert rig.client.take(begin(3)) == begin(3)
    rig.client.note_ended(1)
    assert rig.client.take(trailers(1)) == b""


@pytest.mark.parametrize("block", [LITERALS, encode_literal(b"X", b"y"), b""])
def test_malformed_headers_after_a_request_reset_its_stream(block: bytes) -> None:
    """Pseudo-headers, or names in upper case, or headers that do not end the request."""
    rig = Rig()
    rig.client.take(begin(1))
    reset = frames.rst_stream(1, ErrorCode.PROTOCOL_ERROR)
    flags = frames.END_HEADERS | (frames.END_STREAM if block else 0)
    assert rig.client.take(headers_frame(1, block, flags)) == reset
    assert rig.refused == [reset]
    assert rig.client.take(headers_frame(1, block, flags)) == b""
    assert len(rig.refused) == 1


def test_headers_after_a_request_end_the_connection_if_they_had_to_wait() -> None:
    """They are compressed by what came before them, so they could not pass it."""
    rig = Rig(most_calls=1)
    rig.client.take(begin(1))
    rig.client.take(begin(3))
    with pytest.raises(FloodError, match="within a call"):
        rig.client.take(trailers(1))


def malformed(*extra: tuple[str, str]) -> list[tuple[str, str]]:
    """Returns the headers of a request whose path is no text."""
    return grpc_headers(*extra, path="/\xff")


def encode(encoder: hpack.Encoder, headers: list[tuple[str, str]]) -> bytes:
    """Returns a block that may change the dynamic table."""
    return encoder.encode([(name, value.encode("latin-1")) for name, value in headers])


def passed_heads(passed: bytes) -> list[tuple[int, list[tuple[str, str]]]]:
    """Returns the streams that begin, and their headers."""
    decoder = hpack.Decoder()
    return [
        (
            sent.stream_id,
            [(str(name), str(value)) for name, value in decoder.decode(sent.payload)],
        )
        for sent in parse_frames(passed)
        if sent.frame_type == FrameType.HEADERS
    ]


def test_a_malformed_request_never_reaches_grpcio() -> None:
    """Its stream is reset; later requests that are compressed by its headers are read."""
    rig = Rig()
    encoder = hpack.Encoder()
    good = grpc_headers(("x-a", "said before"))
    sent = headers_frame(1, encode(encoder, malformed(("x-a", "said before"))))
    sent += data_frame(1, b"body") + headers_frame(3, encode(encoder, good))
    for cut in range(len(sent)):
        rig = Rig()
        passed = rig.client.take(sent[:cut]) + rig.client.take(sent[cut:])
        assert passed.startswith(data_frame(1, b"body"))
        assert passed_heads(passed) == [(3, good)]
        assert rig.refused == [frames.rst_stream(1, ErrorCode.PROTOCOL_ERROR)]
        assert (rig.gate.num_calls, rig.client.num_held_bytes) == (1, 0)


def test_a_malformed_request_that_waits_is_refused_in_its_turn() -> None:
    """Those before and behind it, given up or not, are read as they were compressed."""
    rig = Rig(most_calls=1)
    client, encoder = rig.client, hpack.Encoder()
    rounds = [grpc_headers(("x-a", str(index))) for index in range(6)]
    rounds[2] = malformed(("x-a", "0"))
    for index, headers in enumerate(rounds):
        frame = headers_frame(2 * index + 1, encode(encoder, headers))
        passed = client.take(frame + data_frame(2 * index + 1, b"", 0))
        assert bool(passed) is (index == 0)
    client.take(frames.rst_stream(3, ErrorCode.CANCEL))
    begun = []
    for stream_id in (1, 7, 9):
        client.note_ended(stream_id)
        begun += passed_heads(client.let_in())
    assert begun == [(7, rounds[3]), (9, rounds[4]), (11, rounds[5])]
    assert rig.refused == [frames.rst_stream(5, ErrorCode.PROTOCOL_ERROR)]
    assert client.num_held_bytes == 0


NO_GRPC = grpc_headers(content_type="application/json")
ANSWER = encode_literal(b":status", b"415")


def answered(stream_id: int) -> bytes:
    """Returns the answer to a request that is not gRPC."""
    return headers_frame(stream_id, ANSWER, frames.END_HEADERS | frames.END_STREAM)


def test_a_request_that_is_not_grpc_is_answered_and_never_reaches_grpcio() -> None:
    """By an HTTP status; what has not come of it is not wanted any more."""
    rig = Rig()
    block = hpack.Encoder().encode(NO_GRPC)
    hello = frames.settings({Setting.HEADER_TABLE_SIZE: 4096, Setting.ENABLE_PUSH: 0})
    body = data_frame(1, b"{")
    assert rig.client.take(hello + headers_frame(1, block)) == hello
    assert rig.client.take(body) == body
    enough = frames.rst_stream(1, ErrorCode.NO_ERROR)
    assert rig.refused.pop() == answered(1) + enough
    flags = frames.END_HEADERS | frames.END_STREAM
    assert rig.client.take(headers_frame(3, literal_block(NO_GRPC), flags)) == b""
    assert rig.refused == [answered(3)]
    assert (rig.gate.num_calls, rig.client.num_held_bytes) == (0, 0)
    assert rig.client.take(begin(5)) == begin(5)


@pytest.mark.parametrize(
    "sent",
    [
        [frames.settings({Setting.HEADER_TABLE_SIZE: 4095})],
        [frames.settings({Setting.ENABLE_PUSH: 0})[:12], bytes(3)],
        [frames.settings({Setting.ENABLE_PUSH: 0})[:9], b"\0\2\0\0\0\0"],
        [frames.frame(FrameType.SETTINGS, 0, 0, bytes(6) * 65)],
        [frames.frame(FrameType.SETTINGS, 0, 0, bytes(5))],
    ],
    ids=["smaller table", "cut", "cut behind its head", "many", "no setting"],
)
def test_who_may_want_a_smaller_table_is_not_sent_headers_of_ours(
    sent: list[bytes],
) -> None:
    """Strict clients would end the connection, so a request that is not gRPC is reset."""
    rig = Rig()
    for piece in sent:
        rig.client.take(piece)
    assert rig.client.take(headers_frame(1, literal_block(NO_GRPC))) == b""
    assert rig.refused == [frames.rst_stream(1, ErrorCode.PROTOCOL_ERROR)]


def test_headers_that_are_too_long_reset_their_stream() -> None:
    """Clients make RESOURCE_EXHAUSTED of that; few bytes may stand for many headers."""
    rig = Rig()
    repeated = b"\x40" + encode_literal(b"x", b"y" * 3000)[1:] + b"\xbe" * 5
    assert rig.client.take(headers_frame(1, LITERALS + repeated)) == b""
    assert rig.refused == [frames.rst_stream(1, ErrorCode.ENHANCE_YOUR_CALM)]
    assert rig.client.take(begin(3)) == begin(3)


def test_malformed_requests_without_end_end_the_connection() -> None:
    """They are limited as resets are."""
    rig = Rig()
    pieces = [headers_frame(stream_id, b"") for stream_id in range(1, 10_000, 2)]
    with pytest.raises(FloodError, match="resets"):
        send_all(rig.client, pieces, [])
    assert len(rig.refused) == 1000


@pytest.mark.parametrize(
    "sent",
    [
        headers_frame(1, b"\xff\xff\x03"),
        headers_frame(1, LITERALS[:-1]),
        headers_frame(1, LITERALS + b"\x3e"),
        headers_frame(1, b"\xff" + LITERALS, frames.END_HEADERS | frames.PADDED),
        begin(2),
        begin(0),
        frames.frame(FrameType.CONTINUATION, frames.END_HEADERS, 1, LITERALS),
    ],
    ids=["index", "cut", "late", "padding", "even", "none", "continuation"],
)
def test_headers_that_cannot_be_read_are_a_fault_of_the_connection(sent: bytes) -> None:
    """Nothing that follows could be understood; grpcio gets nothing of it."""
    rig = Rig()
    with pytest.raises(ConnectionFault):
        rig.client.take(sent)


def test_grpcio_gets_no_padding_and_no_priority() -> None:
    """It takes padding for headers."""
    rig = Rig()
    flags = frames.END_HEADERS | frames.PADDED | frames.PRIORITIZED
    payload = b"\x02" + bytes(4) + b"\x10" + LITERALS + b"\x83\x84"
    assert rig.client.take(headers_frame(1, payload, flags)) == begin(1)


def test_a_connection_that_ends_gives_its_calls_back() -> None:
    """Those that grpcio has not handed over count until it has, or has dropped them."""
    rig = Rig()
    for stream_id in (1, 3, 5):
        rig.client.take(begin(stream_id))
    rig.client.take(frames.rst_stream(5, ErrorCode.CANCEL))
    rig.client.note_taken()
    rig.client.close()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (2, 2)
    rig.gate.note_orphan_taken()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (1, 1)
    rig.now_s = 0.25
    rig.gate.look()
    assert (rig.gate.num_calls, rig.gate.num_fresh) == (0, 0)


ANSWERS = (
    headers_frame(1, LITERALS, frames.END_HEADERS),
    data_frame(1, bytes(300), 0),
    headers_frame(1, LITERALS, frames.END_HEADERS | frames.END_STREAM),
    frames.settings({}),
    data_frame(3, b"x", 1),
    frames.rst_stream(5, ErrorCode.CANCEL),
    frames.ping(b"12345678", ack=True),
)


def test_streams_that_the_server_ends_are_known_however_frames_are_cut() -> None:
    """By the flag at the end of a stream, or a reset."""
    sent = b"".join(ANSWERS)
    for size in (1, 2, 5, 10, 100, 1000):
        answers = AnswerFrames()
        ended = [
            stream_id
            for index in range(0, len(sent), size)
            for stream_id in answers.ended(sent[index : index + size])
        ]
        assert ended == [1, 3, 5]


def test_the_ends_of_frames_are_known_however_they_are_cut() -> None:
    """Between two frames others may be sent, but not before the first."""
    sent = b"".join(ANSWERS)
    ends = set(itertools.accumulate(map(len, ANSWERS)))
    for size in (1, 2, 5, 10, 100, 1000):
        answers = AnswerFrames()
        assert not answers.is_between
        for index in range(0, len(sent), size):
            cut = min(index + size, len(sent))
            answers.ended(sent[index:cut])
            assert answers.is_between is (cut in ends)
            last = max((end for end in ends if index < end <= cut), default=index)
            assert answers.num_whole == last - index
