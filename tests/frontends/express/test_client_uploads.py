"""Large requests of many clients, which finish in turn out of one budget of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    HOLD,
    head,
    running,
)
from tests.frontends.express.wire import (
    CLOSED_HELLO,
    PATH,
    WIDE_HELLO,
    data_frame,
    headers_frame,
    prefixed,
    request,
)
from tfs.core.errors import Code
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.frames import ErrorCode


def test_uploads_have_the_reserve_in_turn(tmp_path: Path) -> None:
    """Who sends one after the other lets those in between that came later."""
    options = ExpressOptions(max_receive_bytes=800_000, least_open_bytes=100_000)
    with running(tmp_path, options) as rig:
        clients = [rig.connect() for _ in range(3)]
        for client in clients:
            client.send(head(1, HOLD) + head(3, HOLD))
        sent = {
            client: {1: prefixed(bytes(150_000)), 3: prefixed(bytes(150_000))}
            for client in clients
        }
        for _ in range(300):
            for client in clients:
                for stream_id, left in sent[client].items():
                    if left:
                        sent[client][stream_id] = client.upload(stream_id, left)
                        break
            rig.settle()
            for call in rig.held:
                call.reply(b"done")
            rig.held.clear()
        assert not any(left for each in sent.values() for left in each.values())
        assert rig.clock.now() == 1000.0  # without a timeout's help


def test_a_starved_upload_goes_on_when_others_are_done(tmp_path: Path) -> None:
    """Windows come back as soon as bytes are released."""
    options = ExpressOptions(max_receive_bytes=150_000)
    with running(tmp_path, options) as rig:
        first, second = rig.connect(), rig.connect()
        message = prefixed(b"x" * 60_000)
        first.send(head(1, HOLD) + data_frame(1, message))
        second.send(head(1, HOLD) + data_frame(1, message))
        rig.settle()
        first.read()
        second.read()
        window = frames.DEFAULT_WINDOW - len(message)
        second.send(head(3) + data_frame(3, prefixed(b"y" * 9000)[:window], 0))
        rig.settle()
        assert rig.served == []
        rig.held[0].reply(b"done")
        rig.held[1].reply(b"done")
        rig.settle()
        second.send(data_frame(3, prefixed(b"y" * 9000)[window:]))
        rig.settle()
        assert rig.served == [b"y" * 9000]


def test_uploads_beyond_the_budget_finish_in_turn(tmp_path: Path) -> None:
    """Five of 90 KB in 400 KB: nobody waits for what another one holds."""
    with running(tmp_path, ExpressOptions(max_receive_bytes=400_000)) as rig:
        clients = [rig.connect() for _ in range(5)]
        left = {}
        for client in clients:
            client.send(head(1))
            left[client] = prefixed(b"x" * 90_000)
        for _ in range(200):
            for client in clients:
                if left[client]:
                    left[client] = client.upload(1, left[client])
            rig.settle()
        assert rig.served == [b"x" * 90_000] * 5
        assert rig.transport.budget.used_bytes <= 400_000
        assert rig.clock.now() == 1000.0  # without a timeout's help


def test_an_upload_that_starves_too_long_fails(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED, for the youngest; so nothing waits for itself forever."""
    options = ExpressOptions(max_receive_bytes=200_000)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(head(1) + head(3))
        left = {1: prefixed(b"x" * 120_000), 3: prefixed(b"y" * 120_000)}
        for _ in range(40):
            for stream_id in left:
                left[stream_id] = client.upload(stream_id, left[stream_id])
            rig.settle()
        assert all(left.values())
        for _ in range(8):
            rig.advance(1)
        assert client.answer(3).status == str(int(Code.RESOURCE_EXHAUSTED))
        assert not client.answer(1).has_ended


@pytest.mark.parametrize("trickle", [0, 100])
def test_uploads_that_dawdle_make_way_for_those_that_starve(
    tmp_path: Path, trickle: int
) -> None:
    """They would hold the budget for as long as a body may take.

    Their connections are drained, so that what they may still send is free as well.
    """
    with running(tmp_path, ExpressOptions(max_receive_bytes=400_000)) as rig:
        slow = {rig.connect(): prefixed(b"s" * 300_000) for _ in range(4)}
        for client in slow:
            client.send(head(1))
            for _ in range(40):
                slow[client] = client.upload(1, slow[client])
                rig.settle()
        quick = rig.connect()
        quick.send(head(1))
        wanted = prefixed(b"q" * 150_000)
        for _ in range(40):
            for client, left in slow.items():
                if trickle and not client.answer(1).has_ended:
                    slow[client] = client.upload(1, left, trickle)
            for _ in range(20):
                wanted = quick.upload(1, wanted)
                rig.settle()
            if not wanted:
                break
            rig.advance(1)
        assert rig.served == [b"q" * 150_000]
        assert rig.clock.now() >= 1005.0
        for _ in range(20):  # now they wait for each other
            rig.advance(1)
            rig.settle()
        failed = [client for client in slow if client.answer(1).has_ended]
        assert failed
        statuses = {client.answer(1).status for client in failed}
        assert statuses == {str(int(Code.RESOURCE_EXHAUSTED))}
        assert ErrorCode.NO_ERROR in [client.goaway for client in failed]


def test_uploads_may_dawdle_where_nobody_waits(tmp_path: Path) -> None:
    """Half a minute of silence is a bad line, not an attack."""
    with running(tmp_path, ExpressOptions(max_receive_bytes=400_000)) as rig:
        client = rig.connect()
        client.send(head(1))
        left = client.upload(1, prefixed(b"s" * 30_000), 20_000)
        for _ in range(30):
            rig.advance(1)
        client.upload(1, left, 20_000)
        rig.settle()
        assert rig.served == [b"s" * 30_000]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_message_that_can_never_fit_is_refused_by_its_length(
    tmp_path: Path, is_compressed: bool
) -> None:
    """It is refused at once, naming the limit, without a hint, and nothing is kept."""
    options = ExpressOptions(max_receive_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        before = rig.transport.budget.used_bytes
        message = prefixed(b"x" * (1 << 20), is_compressed)
        client.send(head(1, PATH, ("grpc-encoding", "gzip")))
        client.upload(1, message)
        rig.settle()
        answer = client.answer(1)
        assert answer.status == str(int(Code.RESOURCE_EXHAUSTED))
        assert "(1048576 vs. 983041 bytes" in str(answer.headers)
        assert "grpc-status-details-bin" not in dict(answer.headers)
        assert rig.transport.budget.used_bytes <= before
        client.send(request(3))
        rig.settle()
        assert client.answer(3).messages == [b"ping"]


def test_an_upload_need_not_wait_for_a_crowd_that_stalls(tmp_path: Path) -> None:
    """Who goes on is next: of twenty that hold what they got, each would take seconds."""
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        for _ in range(20):
            stalled = rig.connect()
            stalled.send(head(1))
            left = prefixed(bytes(1 << 20))
            for _ in range(10):
                left = stalled.upload(1, left, 60_000)
                rig.settle()
        good = rig.connect()
        good.send(head(1))
        left = prefixed(bytes(1 << 20))
        while left:
            for _ in range(30):
                left = good.upload(1, left, 60_000)
                rig.settle()
            rig.advance(0.25)
        assert rig.clock.now() < 1008.0
        assert rig.served == [bytes(1 << 20)]


_BEGINNING = prefixed(bytes(1 << 20))[:PREFIX_SIZE]


@pytest.mark.parametrize("num_streams", [1, 4])
def test_a_crowd_that_sends_all_but_the_end_holds_nobody_up(
    tmp_path: Path, num_streams: int
) -> None:
    """Each has its turn for a second; what it holds is free before the next one's.

    Whatever its client makes of it that one stream is to go on at a time.
    """
    options = ExpressOptions(max_receive_bytes=64 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        size = (1 << 20) + PREFIX_SIZE
        crowd = [rig.connect() for _ in range(20)]
        left = {
            (client, 2 * index + 1): size - 1
            for client in crowd
            for index in range(num_streams)
        }
        for client, stream_id in left:
            client.send(head(stream_id) + data_frame(stream_id, _BEGINNING, 0))
            client.window -= PREFIX_SIZE
            left[client, stream_id] -= PREFIX_SIZE

        def send_all() -> None:
            for (client, stream_id), num_bytes in left.items():
                client.read()
                num_bytes = min(num_bytes, client.window, 16_384)
                if num_bytes > 0 and not client.is_closed:
                    client.send(data_frame(stream_id, bytes(num_bytes), 0))
                    client.window -= num_bytes
                    left[client, stream_id] -= num_bytes

        for _ in range(100):
            send_all()
            rig.settle()
        good = rig.connect()
        good.send(head(1))
        wanted = prefixed(bytes(1 << 20))
        most_bytes = 0
        while wanted and rig.clock.now() < 1020.0:
            for _ in range(20):
                send_all()
                wanted = good.upload(1, wanted, 60_000)
                rig.settle()
                most_bytes = max(most_bytes, rig.transport.budget.used_bytes)
            rig.advance(0.25)
        assert rig.clock.now() < 1006.0
        own_bytes = 21 * frames.DEFAULT_WINDOW
        assert most_bytes < (4 << 20) + own_bytes + size


def test_who_came_last_is_not_who_has_its_second_turn(tmp_path: Path) -> None:
    """Clients with one upload behind another do not keep a new one waiting."""
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        upload = prefixed(bytes(1 << 20))
        crowd = [rig.connect(WIDE_HELLO) for _ in range(12)]
        left = dict.fromkeys(crowd, b"")
        ids = dict.fromkeys(crowd, -1)

        def send_all() -> None:
            for client in crowd:
                if not left[client]:
                    ids[client] += 2
                    client.send(head(ids[client]))
                    left[client] = upload
                left[client] = client.upload(ids[client], left[client], 60_000)

        for _ in range(40):
            send_all()
            rig.settle()
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        wanted = prefixed(b"good" * (1 << 18))
        num_before = len(rig.served)
        for _ in range(1000):
            send_all()
            wanted = good.upload(1, wanted, 60_000)
            rig.settle()
            if not wanted:
                break
        assert not wanted
        assert len(rig.served) - num_before < 8


def test_who_takes_no_answer_has_its_upload_last(tmp_path: Path) -> None:
    """Nothing of an answer, as its windows say; others have finished before."""
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        left = {rig.connect(CLOSED_HELLO): prefixed(bytes(1 << 20)) for _ in range(10)}
        for client in left:
            client.send(head(1))
            for _ in range(10):
                left[client] = client.upload(1, left[client], 60_000)
                rig.settle()
        good = rig.connect()
        good.send(head(1))
        wanted = prefixed(b"good" * 100_000)
        for _ in range(100):
            for client in left:
                if client.answer(1).has_ended or client.is_closed:
                    continue
                left[client] = client.upload(1, left[client], 60_000)
            wanted = good.upload(1, wanted, 60_000)
            rig.settle()
            if not wanted:
                break
        assert not wanted
        assert len([each for each in left.values() if not each]) <= 2
        assert rig.clock.now() == 1000.0


@pytest.mark.parametrize("end", ["reset", "trailers"])
def test_who_never_finishes_an_upload_has_one_turn_at_a_time(
    tmp_path: Path, end: str
) -> None:
    """Another begun in its place, at once, is for the next turn.

    Who resets it keeps the room that was granted for it no longer than its connection.
    """
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        upload = prefixed(bytes(1 << 20))
        crowd = [rig.connect(WIDE_HELLO) for _ in range(6)]
        left = dict.fromkeys(crowd, upload)
        ids = dict.fromkeys(crowd, 1)
        for client in crowd:
            client.send(head(1))

        def send_all() -> None:
            for client in crowd:
                client.read()
                if client.is_closed:
                    continue
                left[client] = client.upload(ids[client], left[client], 60_000)
                if len(left[client]) < 400_000:
                    old = ids[client]
                    ids[client] += 2
                    left[client] = upload
                    client.send(
                        frames.rst_stream(old, ErrorCode.CANCEL)
                        if end == "reset"
                        else headers_frame(old, b"\x00\x01a\x01b", 5)
                    )
                    client.send(head(ids[client]))

        for _ in range(40):
            send_all()
            rig.settle()
        good = rig.connect(WIDE_HELLO)
        good.send(head(1))
        wanted = prefixed(b"good" * (1 << 18))
        for _ in range(400):
            send_all()
            wanted = good.upload(1, wanted, 60_000)
            rig.settle()
            if not wanted:
                break
        assert not wanted
        assert rig.served == [b"good" * (1 << 18)]


def test_uploads_wait_while_as_many_are_worked_on(tmp_path: Path) -> None:
    """Not all of the budget is for a model, or a decoder, that takes its time."""
    options = ExpressOptions(max_receive_bytes=64 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        left = {}
        for _ in range(20):
            client = rig.connect(WIDE_HELLO)
            client.send(head(1, HOLD))
            left[client] = prefixed(bytes(1 << 20))

        def go_on(num_rounds: int) -> None:
            for _ in range(num_rounds):
                for client in left:
                    left[client] = client.upload(1, left[client], 60_000)
                rig.settle()

        go_on(300)
        assert 4 <= len(rig.held) <= 6  # of one megabyte; four are open to all
        num_answered = 0
        for _ in range(10):
            num_answered += len(rig.held)
            for call in rig.held:
                call.reply(b"done")
            rig.held.clear()
            go_on(60)
        assert num_answered == 20
        assert rig.clock.now() == 1000.0


def test_an_upload_that_the_server_keeps_waiting_is_not_too_slow(
    tmp_path: Path,
) -> None:
    """Its time is what it took while it could go on; it fails once it does not go on."""
    options = ExpressOptions(max_receive_bytes=64 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        left = {}
        for _ in range(20):
            client = rig.connect(WIDE_HELLO)
            client.send(head(1, HOLD))
            left[client] = prefixed(bytes(1 << 20))
        silent = rig.connect(WIDE_HELLO)
        silent.send(head(1, HOLD))
        silent.upload(1, prefixed(bytes(1 << 20)), 60_000)

        def go_on(num_rounds: int) -> None:
            for _ in range(num_rounds):
                for client in left:
                    left[client] = client.upload(1, left[client], 60_000)
                rig.settle()

        go_on(300)
        assert len(rig.held) <= 6
        for _ in range(100):
            rig.advance(1.0)
            go_on(1)
        num_answered = 0
        for _ in range(10):
            num_answered += len(rig.held)
            for call in rig.held:
                call.reply(b"done")
            rig.held.clear()
            go_on(60)
            rig.advance(1.0)
        assert num_answered == 20
        for _ in range(80):
            rig.advance(1.0)
        assert silent.answer(1).status in ("4", "8")


@pytest.mark.parametrize("bytes_per_s", [17_000, 300_000])
def test_an_upload_that_takes_long_passes_its_turn_on(
    tmp_path: Path, bytes_per_s: int
) -> None:
    """After a second if it is slow, else after four, and keeps what was sent of it."""
    options = ExpressOptions(max_receive_bytes=128 << 20)
    with running(tmp_path, options) as rig:
        crowd = dict.fromkeys([rig.connect() for _ in range(20)], b"")
        for client in crowd:
            client.send(head(1))
            crowd[client] = prefixed(bytes(8 << 20))

        def all_go_on() -> None:
            for client, left in crowd.items():
                crowd[client] = client.upload(1, left, bytes_per_s // 4)
                rig.settle()

        for _ in range(80):
            all_go_on()
            rig.advance(0.25)
        good = rig.connect()
        good.send(head(1))
        wanted = prefixed(b"good" * (1 << 18))
        begun_s = rig.clock.now()
        while wanted and rig.clock.now() < begun_s + 60.0:
            all_go_on()
            for _ in range(20):
                wanted = good.upload(1, wanted, 60_000)
                rig.settle()
            rig.advance(0.25)
        assert rig.clock.now() < begun_s + 10.0
        assert not any(client.is_closed for client in crowd)
        assert rig.transport.budget.used_bytes < 32 << 20


def test_interrupted_uploads_take_a_bounded_share_of_the_limit(
    tmp_path: Path,
) -> None:
    """A quarter, and what is open to all; then uploads are finished, however slow."""
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        crowd = dict.fromkeys([rig.connect() for _ in range(30)], b"")
        for client in crowd:
            client.send(head(1))
            crowd[client] = prefixed(bytes(4 << 20))
        turns = []
        most_bytes = 0
        for _ in range(240):
            for client, left in crowd.items():
                crowd[client] = client.upload(1, left, 50_000)
                rig.settle()
            rig.advance(0.25)
            turns.append(rig.transport._shared.favoured)
            most_bytes = max(most_bytes, rig.transport.budget.used_bytes)
        assert len(set(turns[:40])) > 5
        assert len(set(turns[-20:])) < 5
        assert any(not left for left in crowd.values())
        own_bytes = 30 * frames.DEFAULT_WINDOW
        assert most_bytes < (2 << 20) + (8 << 20) + (4 << 20) + own_bytes


@pytest.mark.parametrize("num_clients", [2, 3, 5])
def test_clients_with_many_uploads_at_once_finish_all(
    tmp_path: Path, num_clients: int
) -> None:
    """They send a part of each in turn, and go on with all once there is room for all."""
    options = ExpressOptions(max_receive_bytes=4_000_000, least_open_bytes=400_000)
    with running(tmp_path, options) as rig:
        clients = [rig.connect(WIDE_HELLO) for _ in range(num_clients)]
        left = {client: dict[int, bytes]() for client in clients}
        next_id = dict.fromkeys(clients, 1)
        for index in range(600):
            for client in clients:
                uploads = left[client]
                while len(uploads) < 8 and next_id[client] < 40:
                    client.send(head(next_id[client]))
                    uploads[next_id[client]] = prefixed(bytes(200_000))
                    next_id[client] += 2
                order = list(uploads)
                for stream_id in order[index % 3 :] + order[: index % 3]:
                    uploads[stream_id] = client.upload_politely(
                        stream_id, uploads[stream_id], 16_384
                    )
                    if not uploads[stream_id]:
                        del uploads[stream_id]
            rig.settle()
        assert not any(left.values())
        assert len(rig.served) == 20 * num_clients
        assert rig.clock.now() == 1000.0  # without a timeout's help
