"""While room is short one upload of a connection goes on, and then the next."""

from __future__ import annotations

from tests.frontends.express.wire import parse_frames
from tfs.frontends.rpc.express.http2.messages import MessageAssembler
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import OPENED, REQUESTED
from tfs.frontends.rpc.express.http2.upload_turns import NARROW_WINDOW, UploadTurns
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    FrameType,
    unpack_uint32,
)
from tfs.frontends.rpc.heads.request_head import RequestHead

MIB = 1 << 20


def uploading(stream_id: int, size: int, num_arrived: int) -> Stream:
    """Returns a stream whose request has arrived in part."""
    stream = Stream(stream_id, RequestHead("/tfs.test.Echo/Say"), OPENED, 0, 0.0)
    stream.assembler = MessageAssembler(64 * MIB)
    part = b"\0" + size.to_bytes(4, "big") + bytes(num_arrived)
    assert not list(stream.assembler.feed(memoryview(part)))
    stream.received_bytes = len(part)
    return stream


class Client:
    """What a client makes of the frames: its streams' windows, by RFC 9113.

    Attributes:
        windows: What it may still send on each.
    """

    def __init__(self, *streams: Stream) -> None:
        self._initial = LARGEST_WINDOW
        self.windows = {
            each.id: LARGEST_WINDOW - each.received_bytes for each in streams
        }

    def take(self, data: bytes) -> None:
        for sent in parse_frames(data):
            if sent.frame_type == FrameType.SETTINGS:
                initial = int(unpack_uint32(sent.payload, 2)[0])
                for stream_id in self.windows:
                    self.windows[stream_id] += initial - self._initial
                self._initial = initial
            else:
                self.windows[sent.stream_id] += int(unpack_uint32(sent.payload)[0])
            assert all(each <= LARGEST_WINDOW for each in self.windows.values())


def test_a_lone_upload_needs_no_turn_of_its_own() -> None:
    """The room that it needs is what it misses, and its client is told nothing."""
    streams = {1: uploading(1, 10 * MIB, MIB)}
    turns = UploadTurns(streams)
    assert turns.next_turn() == (9 * MIB, b"")
    assert turns.has_turn
    assert not turns.is_narrow


def test_the_upload_that_misses_least_goes_on_alone() -> None:
    """The others' windows are used up; its own suffices for all that it misses."""
    streams = {each: uploading(each, 10 * MIB, each * MIB) for each in (1, 3, 5)}
    turns = UploadTurns(streams)
    client = Client(*streams.values())
    num_bytes, out = turns.next_turn()
    client.take(out)
    assert 5 * MIB <= num_bytes <= 5 * MIB + 3 * DEFAULT_WINDOW
    assert turns.stream is streams[5]
    assert client.windows[5] == 5 * MIB
    assert client.windows[1] < 0
    assert client.windows[3] < 0


def test_uploads_that_have_no_turn_take_next_to_nothing() -> None:
    """However many there are, and whether they have begun: it stays until their turns."""
    streams = {each: uploading(each, MIB, 1000) for each in range(1, 33, 2)}
    for each in range(33, 65, 2):
        streams[each] = Stream(each, RequestHead("/tfs.test.Echo/Say"), OPENED, 0, 0.0)
    turns = UploadTurns(streams)
    client = Client(*streams.values())
    num_bytes, out = turns.next_turn()
    client.take(out)
    chosen = turns.stream
    assert chosen is not None
    assert num_bytes <= chosen.missing_bytes + 31 * NARROW_WINDOW
    for other in streams.values():
        if other is not chosen:
            assert 0 < client.windows[other.id] <= NARROW_WINDOW


def test_an_upload_goes_on_alone_before_others_have_sent_anything() -> None:
    """They would use what was meant for it, and keep that until their own turns."""
    streams = {1: uploading(1, MIB, 1000)}
    streams[3] = Stream(3, RequestHead("/tfs.test.Echo/Say"), OPENED, 0, 0.0)
    turns = UploadTurns(streams)
    client = Client(*streams.values())
    client.take(turns.next_turn()[1])
    assert turns.is_narrow
    assert client.windows == {1: streams[1].missing_bytes, 3: NARROW_WINDOW}


def test_what_others_send_before_they_are_told_to_wait_is_granted_again() -> None:
    """It was meant for them; else nothing would be left for the one that goes on."""
    streams = {each: uploading(each, MIB, 1000) for each in (1, 3)}
    turns = UploadTurns(streams)
    num_bytes, _ = turns.next_turn(2 * MIB)
    assert num_bytes >= 2 * MIB + streams[1].missing_bytes
    num_bytes, _ = turns.next_turn(2 * MIB)
    assert num_bytes < 2 * MIB


def test_all_go_on_when_the_one_in_turn_is_whole() -> None:
    """Windows are widened only then; widened twice, one would exceed HTTP/2's limit."""
    streams = {each: uploading(each, 10 * MIB, each * MIB) for each in (1, 3)}
    turns = UploadTurns(streams)
    client = Client(*streams.values())
    client.take(turns.next_turn()[1])
    assert turns.end() == b""
    assert turns.is_narrow
    client.windows[3] -= 7 * MIB  # what it missed; the client waits for the answer
    streams[3].state = REQUESTED
    assert not turns.has_turn
    client.take(turns.end())
    assert not turns.is_narrow
    assert client.windows[1] == LARGEST_WINDOW - streams[1].received_bytes


def test_uploads_of_which_nothing_came_have_room_for_their_beginning() -> None:
    """How long they are is what it says."""
    stream = Stream(1, RequestHead("/tfs.test.Echo/Say"), OPENED, 0, 0.0)
    turns = UploadTurns({1: stream})
    assert turns.next_turn() == (DEFAULT_WINDOW, b"")
    assert not turns.has_turn


def feed(stream: Stream, num_bytes: int) -> None:
    """Has more of a request arrive."""
    assert stream.assembler is not None
    assert not list(stream.assembler.feed(memoryview(bytes(num_bytes))))
    stream.received_bytes += num_bytes


def test_room_that_others_used_is_missed_by_an_upload_that_goes_on() -> None:
    """As soon as it is missed, not when nothing is left."""
    stream = uploading(1, 10 * MIB, MIB)
    turns = UploadTurns({1: stream})
    assert not turns.is_short(0)
    turns.next_turn()
    feed(stream, MIB)
    assert turns.is_short(8 * MIB - 1)
    assert not turns.is_short(8 * MIB)


def test_an_upload_that_began_later_may_use_what_the_first_was_lent() -> None:
    """Nobody had told its client to wait, so it is told now, and lent as much again."""
    streams = {1: uploading(1, 10 * MIB, MIB)}
    turns = UploadTurns(streams)
    turns.next_turn()
    streams[3] = uploading(3, 10 * MIB, 9 * MIB)
    assert not turns.is_short(DEFAULT_WINDOW)  # the client has not used all of it
    assert turns.is_short(0)
    num_bytes, out = turns.next_turn()
    assert turns.is_narrow
    assert turns.stream is streams[3]
    assert num_bytes >= MIB
    assert out


def test_an_upload_of_which_nothing_comes_is_helped_once() -> None:
    """Then its client does something else with what it is lent, until it goes on."""
    stream = uploading(1, 10 * MIB, MIB)
    turns = UploadTurns({1: stream})
    turns.next_turn()
    assert turns.is_short(0)
    turns.next_turn()
    assert not turns.is_short(0)
    feed(stream, MIB)
    assert turns.is_short(0)
    turns.next_turn()
    assert turns.is_short(0)


def test_who_goes_on_with_others_is_given_no_more_for_the_one_in_turn() -> None:
    """No more is granted once others send more than was under way and they need no turn for."""
    streams = {each: uploading(each, 10 * MIB, each * MIB) for each in (1, 3)}
    turns = UploadTurns(streams)
    turns.next_turn(DEFAULT_WINDOW)
    assert turns.stream is streams[3]
    assert not turns.is_short(0)
    streams[3].received_bytes += MIB
    streams[1].received_bytes += DEFAULT_WINDOW + NARROW_WINDOW
    assert turns.is_short(0)
    streams[1].received_bytes += 1
    assert not turns.is_short(0)
