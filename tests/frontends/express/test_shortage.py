"""Who waits, and who is cut off, while unread answers take the memory for requests."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.express.rig import (
    GROW,
    HOLD,
    RawClient,
    Rig,
    head,
    hold,
    running,
)
from tests.frontends.express.wire import (
    CLOSED_HELLO,
    WIDE_HELLO,
    data_frame,
    prefixed,
    request,
)
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.frames import ErrorCode


def _upload(rig: Rig, client: RawClient, stream_id: int, size: int) -> None:
    """Sends a whole request of that size."""
    client.send(head(stream_id))
    left = prefixed(bytes(size))
    for _ in range(100):
        left = client.upload(stream_id, left, 60_000)
        rig.settle()
        if not left:
            return
    raise AssertionError("there was no room for it")


CROWDED = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=4 << 20)
"""Four megabytes are open to all, one to each reader."""


def _clog(rig: Rig) -> RawClient:
    """Returns a client that has three answers to read, and a request that waits."""
    client = rig.connect(CLOSED_HELLO)
    for stream_id in (1, 3, 5):
        _upload(rig, client, stream_id, 400_000)
    _upload(rig, client, 7, 100_000)
    return client


def test_requests_wait_for_whoever_asked_to_read(tmp_path: Path) -> None:
    """Large ones of a client that leaves much unread, which gets no room for more."""
    with running(tmp_path, CROWDED) as rig:
        client = _clog(rig)
        assert len(rig.served) == 3
        headroom = rig.transport._shared.headroom
        assert headroom.waiting_bytes == 100_000
        client.send(request(9, b"small"))
        rig.settle()
        assert rig.served[3:] == [b"small"]
        client.send(frames.window_update(1, 1 << 20) + frames.window_update(0, 1 << 20))
        rig.settle()
        assert len(rig.served) == 5
        assert headroom.waiting_bytes == 0
        assert not rig.transport._shared.waiting


def _exchange(rig: Rig, client: RawClient, stream_id: int, left: bytes) -> bytes:
    """Sends what there is room for, and reads; returns what is left of the request."""
    for _ in range(30):
        left = client.upload(stream_id, left, 60_000)
        rig.settle()
        client.read()
    return left


def test_a_client_that_reads_waits_for_nobody(tmp_path: Path) -> None:
    """As long as there is room for answers, large requests of others are begun."""
    with running(tmp_path, CROWDED) as rig:
        _clog(rig)
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        assert _exchange(rig, good, 1, prefixed(bytes(300_000))) == b""
        assert len(good.answer(1).messages[0]) == 300_000


def test_a_request_given_up_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    """A waiting request is forgotten if its client gives it up or disconnects."""
    with running(tmp_path, CROWDED) as rig:
        client, other = _clog(rig), _clog(rig)
        shared = rig.transport._shared
        assert shared.headroom.waiting_bytes == 200_000
        client.send(frames.rst_stream(7, ErrorCode.CANCEL))
        rig.settle()
        assert shared.headroom.waiting_bytes == 100_000
        other.close()
        rig.settle()
        assert shared.headroom.waiting_bytes == 0
        client.send(frames.window_update(1, 1 << 20) + frames.window_update(0, 1 << 20))
        rig.settle()
        assert len(rig.served) == 6
        client.close()
        rig.settle()
        assert not shared.waiting
        assert rig.transport.budget.used_bytes == 0


def test_who_reads_nothing_makes_way_where_others_wait(tmp_path: Path) -> None:
    """Large requests wait for it for a second or two; small ones not at all."""
    with running(tmp_path, CROWDED) as rig:
        deaf = [_clog(rig) for _ in range(3)]
        good = rig.connect(WIDE_HELLO)
        good.send(request(1, b"small"))
        good.window -= len(prefixed(b"small"))
        rig.settle()
        assert good.answer(1).messages == [b"small"]
        good.send(head(3))
        left = _exchange(rig, good, 3, prefixed(bytes(900_000)))
        assert not good.answer(3).has_ended
        for _ in range(4):
            rig.advance(1.0)
            left = _exchange(rig, good, 3, left)
        assert rig.num_scarcity_notes
        assert len(good.answer(3).messages[0]) == 900_000
        for client in deaf:
            client.read()
        gone = [client.goaway for client in deaf if client.is_closed]
        assert gone
        assert set(gone) == {ErrorCode.ENHANCE_YOUR_CALM}


def test_who_reads_nothing_makes_way_however_little_it_leaves_unread(
    tmp_path: Path,
) -> None:
    """If a whole request waits for it: beside 1.2 MB unread 3.5 of 4 MB have no room."""
    with running(tmp_path, CROWDED) as rig:
        deaf = _clog(rig)
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        left = _exchange(rig, good, 1, prefixed(bytes(3_500_000)))
        for _ in range(4):
            left = _exchange(rig, good, 1, left)
            rig.advance(1.0)
        _exchange(rig, good, 1, left)
        assert len(good.answer(1).messages[0]) == 3_500_000
        deaf.read()
        assert deaf.goaway is ErrorCode.ENHANCE_YOUR_CALM


def test_memory_of_answers_is_told_of_when_it_is_free(tmp_path: Path) -> None:
    """Once after the last of them, however long nobody read them."""
    with running(tmp_path, CROWDED) as rig:
        client = _clog(rig)
        for _ in range(5):
            rig.advance(1.0)
        num_before = rig.num_large_notes
        client.close()
        rig.settle()
        rig.advance(1.0)
        assert rig.num_large_notes == num_before + 1
        rig.advance(5.0)
        assert rig.num_large_notes == num_before + 1


def test_a_crowd_that_opens_no_windows_leaves_little_unread(tmp_path: Path) -> None:
    """Its short answers are refused once far too many wait; who reads gets its own.

    Later those that wait are cut off, though nobody waits for room.
    """
    with running(tmp_path, CROWDED) as rig:
        good = rig.connect()
        good.send(request(1, bytes(60_000)))
        rig.settle()
        crowd = [rig.connect(CLOSED_HELLO) for _ in range(200)]
        for client in crowd:
            client.send(request(1, bytes(60_000)))
            rig.settle()
        headroom = rig.transport._shared.headroom
        most_bytes = headroom.most_unread_bytes
        assert most_bytes < headroom.unread_bytes < most_bytes + 100_000
        refused = [each for each in crowd if each.answer(1).status == "14"]
        assert len(crowd) - len(refused) == headroom.unread_bytes // 60_000
        good.read()
        good.send(frames.window_update(0, 60_000) + request(3, bytes(60_000)))
        rig.settle()
        assert good.answer(3).messages == [bytes(60_000)]
        for _ in range(8):
            rig.advance(1.0)
        assert headroom.unread_bytes <= headroom.open_to_answers_bytes
        for client in refused:
            client.read()
            assert not client.is_closed


def test_slow_readers_are_waited_for(tmp_path: Path) -> None:
    """Who takes 16 KB a second stays; others get more room, by and by."""
    with running(tmp_path, CROWDED) as rig:
        slow = [_clog(rig) for _ in range(3)]
        for client in slow:
            client.send(frames.window_update(0, 1 << 20))
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        left = prefixed(bytes(900_000))
        for _ in range(20):
            for client in slow:
                for stream_id in (1, 3, 5):
                    client.send(frames.window_update(stream_id, 6_000))
            left = _exchange(rig, good, 1, left)
            rig.advance(1.0)
            for client in slow:
                client.read()
        assert len(good.answer(1).messages[0]) == 900_000
        assert not any(client.is_closed for client in slow)
        assert all(len(client.answer(1).body) == 120_000 for client in slow)


def test_an_upload_in_turn_waits_for_readers_however_slow(tmp_path: Path) -> None:
    """What it waits for is not its client's fault, so it is not refused for it."""
    with running(tmp_path, CROWDED) as rig:
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        left = good.upload(1, prefixed(bytes(5 << 20)), 60_000)
        rig.settle()
        slow = [rig.connect(CLOSED_HELLO) for _ in range(5)]
        for client in slow:
            client.send(frames.window_update(0, 2 << 20) + hold(1))
        rig.settle()
        for call in rig.held:
            call.reply(bytes(1 << 20))
        rig.settle()
        assert rig.transport.budget.headroom.is_full
        for _ in range(60):
            left = _exchange(rig, good, 1, left)
            rig.advance(1.0)
            for client in slow:
                client.send(frames.window_update(1, 50_000))
                client.read()
        assert good.answer(1).status == "0", good.answer(1)
        assert len(good.answer(1).messages[0]) == 5 << 20
        assert not any(client.is_closed for client in slow)


def test_small_requests_for_long_answers_wait_as_large_ones_do(tmp_path: Path) -> None:
    """Once an answer of their model was long: of a client that reads none, one is begun."""
    with running(tmp_path, CROWDED) as rig:
        first, deaf = rig.connect(WIDE_HELLO), rig.connect(CLOSED_HELLO)
        first.send(head(1, HOLD) + data_frame(1, prefixed(b"ask")))
        rig.settle()
        rig.held.pop().reply(bytes(3 << 20))
        for _ in range(40):
            rig.settle()
            first.read()
        for stream_id in range(1, 21, 2):
            deaf.send(head(stream_id, HOLD) + data_frame(stream_id, prefixed(b"ask")))
        rig.settle()
        assert len(rig.held) == 1
        rig.held.pop().reply(bytes(3 << 20))
        rig.settle()
        assert not rig.held
        assert rig.transport._shared.headroom.begun_bytes == 0
        deaf.send(frames.window_update(1, 4 << 20) + frames.window_update(0, 4 << 20))
        for _ in range(40):
            rig.settle()
            deaf.read()
        assert len(rig.held) == 1


def _after_one_long_answer(rig: Rig) -> RawClient:
    """Returns a client that reads no answers and has one of 3 MB, to a short request."""
    deaf = rig.connect(CLOSED_HELLO)
    deaf.send(head(1, HOLD) + data_frame(1, prefixed(b"ask")))
    rig.settle()
    rig.held.pop().reply(bytes(3 << 20))
    rig.settle()
    return deaf


def test_a_client_with_short_answers_waits_for_no_others_long_ones(
    tmp_path: Path,
) -> None:
    """Of the same model; a client of which nothing is known waits."""
    with running(tmp_path, CROWDED) as rig:
        good, new = rig.connect(WIDE_HELLO), rig.connect(WIDE_HELLO)
        good.send(request(1, b"ask"))
        rig.settle()
        _after_one_long_answer(rig)
        for stream_id in (3, 5, 7):
            good.send(request(stream_id, b"ask"))
            rig.settle()
            assert good.answer(stream_id).messages == [b"ask"]
        new.send(request(1, b"ask"))
        rig.settle()
        assert not new.answer(1).has_ended
        shared = rig.transport._shared
        assert shared.headroom.begun_bytes == 0
        good.close()
        rig.settle()
        assert not shared.answer_sizes._short


def test_a_long_answer_where_short_ones_were_expected_needs_room(
    tmp_path: Path,
) -> None:
    """Beside four times the open 4 MB it is refused; the client's next request waits."""
    with running(tmp_path, CROWDED) as rig:
        sly = rig.connect(WIDE_HELLO)
        sly.send(request(1, b"ask"))
        rig.settle()
        deaf = _after_one_long_answer(rig)
        for stream_id in (3, 5):
            sly.send(head(stream_id, HOLD) + data_frame(stream_id, prefixed(b"ask")))
        rig.settle()
        assert len(rig.held) == 2
        rig.held.pop().reply(bytes(14 << 20))
        rig.held.pop().reply_parts([bytes(14 << 20)])
        rig.settle()
        for stream_id in (3, 5):
            assert sly.answer(stream_id).status == "14"
        sly.send(head(7, HOLD) + data_frame(7, prefixed(b"ask")))
        rig.settle()
        assert not rig.held
        deaf.close()
        rig.settle()
        assert len(rig.held) == 1
        rig.held.pop().reply(bytes(3 << 20))
        for _ in range(40):
            rig.settle()
            sly.read()
        assert len(sly.answer(7).messages[0]) == 3 << 20


def test_requests_that_stand_for_much_begin_as_answers_are_read(
    tmp_path: Path,
) -> None:
    """One of a crowd at a time, though none was long, and no answer of its model.

    Those that wait go on in turn; one that is gone while it waits leaves nothing.
    """
    with running(tmp_path, CROWDED) as rig:
        rig.room_bytes = 3 << 20
        crowd = [rig.connect(CLOSED_HELLO) for _ in range(5)]
        for client in crowd:
            client.send(head(1, GROW) + data_frame(1, prefixed(b"ask")))
            rig.settle()
        assert len(rig.held) == 1
        rig.held.pop().reply(bytes(3 << 20))
        rig.settle()
        assert not rig.held
        crowd.pop().close()
        crowd[1].send(frames.rst_stream(1, ErrorCode.CANCEL))
        crowd[0].send(frames.window_update(1, 4 << 20))
        crowd[0].send(frames.window_update(0, 4 << 20))
        for index in range(2):
            for _ in range(40):
                rig.settle()
                for client in crowd:
                    client.read()
            assert len(rig.held) == 1 - index // 2
            rig.held.pop().reply(b"short")
        rig.settle()
        assert not rig.held
        room = rig.transport._shared.room
        assert not room.wanted
        room.forget_ended()
        assert room.headroom.begun_bytes == 0


def test_a_request_does_not_wait_for_room_that_it_has_taken_itself(
    tmp_path: Path,
) -> None:
    """It was begun for a long answer, and turns out to stand for more."""
    with running(tmp_path, CROWDED) as rig:
        client = rig.connect(WIDE_HELLO)
        client.send(head(1, GROW) + data_frame(1, prefixed(b"ask")))
        rig.settle()
        rig.held.pop().reply(bytes(3 << 20))
        for _ in range(40):
            rig.settle()
            client.read()
        for stream_id, num_bytes in ((3, 4 << 20), (5, 40 << 20), (7, 40 << 20)):
            rig.room_bytes = num_bytes
            client.send(head(stream_id, GROW) + data_frame(stream_id, prefixed(b"ask")))
            rig.settle()
            assert len(rig.held) == 1
            rig.held.pop().reply(b"short")
            rig.settle()
            assert client.answer(stream_id).messages == [b"short"]


def test_a_request_that_grows_little_waits_for_nobody(tmp_path: Path) -> None:
    """It is answered however much others leave unread."""
    with running(tmp_path, CROWDED) as rig:
        _after_one_long_answer(rig)
        other = prefixed(b"\x0a\x05\x0a\x03abc")  # of another model
        for room_bytes, num_held in ((3 << 20, 0), (60_000, 1)):
            rig.room_bytes = room_bytes
            client = rig.connect(WIDE_HELLO)
            client.send(head(1, GROW) + data_frame(1, other))
            rig.settle()
            assert len(rig.held) == num_held


def test_who_read_long_answers_may_ask_for_as_many_at_a_time(tmp_path: Path) -> None:
    """However many wait for others to be read."""
    with running(tmp_path, CROWDED) as rig:
        client = rig.connect(WIDE_HELLO)
        num_begun = []
        stream_id = 1
        for _ in range(5):
            client.send(
                b"".join(
                    head(each, HOLD) + data_frame(each, prefixed(b"ask"))
                    for each in range(stream_id, stream_id + 20, 2)
                )
            )
            stream_id += 20
            for _ in range(10):
                rig.settle()
                num_begun.append(len(rig.held))
                while rig.held:
                    rig.held.pop().reply(bytes(2 << 20))
                for _ in range(40):
                    rig.settle()
                    client.read()
        assert max(num_begun) >= 5
