"""How long a client may keep the server waiting: connections, requests and answers."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.express.rig import (
    BOTH,
    HOLD,
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
from tfs.core.errors import Code
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.frames import ErrorCode


def test_many_streams_are_looked_at_in_several_rounds(tmp_path: Path) -> None:
    """Timeouts of thousands of streams pass without a long round; none is left out."""
    with running(tmp_path) as rig:
        clients = [rig.connect() for _ in range(3)]
        for client in clients:
            for first in range(0, 700, 100):
                client.send(
                    b"".join(head(2 * n + 1, HOLD) for n in range(first, first + 100))
                )
                rig.settle()
        rig.clock.advance(61.0)
        rig.step()
        sessions = list(rig.transport._sessions)
        num_left = [len(session.connection.streams) for session in sessions]
        assert sorted(num_left) == [0, 0, 700]
        rig.settle()
        assert not any(session.connection.streams for session in sessions)
        rig.advance(2.0)
        assert rig.transport.counters.timeouts == 3 * 700


def test_an_answer_taken_byte_by_byte_is_given_up(tmp_path: Path) -> None:
    """A window of a byte now and then is no progress; 16 KB a second are."""
    with running(tmp_path) as rig:
        client = rig.connect(CLOSED_HELLO)
        for stream_id in (1, 3):
            client.send(head(stream_id))
            body = prefixed(bytes(1_000_000))
            while body:
                body = client.upload(stream_id, body, 60_000)
                rig.settle()
        client.send(frames.window_update(0, 2_000_000))
        for _round in range(4):
            client.send(frames.window_update(1, 1) + frames.window_update(3, 200_000))
            for _ in range(4):
                rig.settle()
                client.read()
            rig.advance(10.0)
        assert client.answer(1).reset is ErrorCode.CANCEL
        assert client.answer(3).reset is None
        assert len(client.answer(3).body) == 800_000


def test_a_silent_connection_is_closed(rig: Rig) -> None:
    """No preface within the handshake's time."""
    client = rig.connect(hello=b"")
    rig.advance(9)
    client.read()
    assert not client.is_closed
    rig.advance(2)
    client.read()
    assert client.is_closed
    assert rig.transport.counters.timeouts == 1


def test_a_frame_left_unfinished_closes_its_connection(rig: Rig) -> None:
    """Slow loris, one byte at a time."""
    client = rig.connect()
    for byte in head(1)[:12]:
        client.send(bytes((byte,)))
        rig.advance(1)
    client.read()
    assert client.is_closed
    assert client.goaway is ErrorCode.ENHANCE_YOUR_CALM


def test_a_body_that_does_not_come_fails_its_call(rig: Rig) -> None:
    """The connection and its other calls go on."""
    client = rig.connect()
    client.send(head(1) + data_frame(1, b"\0\0\0", 0))
    for _ in range(59):
        rig.advance(1)
    assert not client.answer(1).has_ended
    rig.advance(3)
    assert client.answer(1).status == str(int(Code.DEADLINE_EXCEEDED))
    client.send(request(3))
    rig.step()
    assert client.answer(3).messages == [b"ping"]


def test_a_slow_but_steady_body_is_given_time(tmp_path: Path) -> None:
    """At the least rate and above, any message may take as long as it takes."""
    options = ExpressOptions(body_timeout_s=5, min_body_bytes_per_s=1000)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(head(1))
        data = prefixed(b"x" * 20_000)
        for index in range(0, len(data), 1000):
            part = data[index : index + 1000]
            last = index + 1000 >= len(data)
            client.send(data_frame(1, part, frames.END_STREAM if last else 0))
            rig.advance(1)
        assert client.answer(1).status == "0"


def test_a_bidirectional_stream_may_be_silent_but_not_within_a_message(
    rig: Rig,
) -> None:
    """Reflection clients keep their stream open for as long as they like."""
    client = rig.connect()
    client.send(head(1, BOTH) + data_frame(1, prefixed(b"a"), 0))
    rig.advance(200)
    assert not client.answer(1).has_ended
    client.send(data_frame(1, b"\0\0", 0))
    rig.step()
    rig.advance(59)
    assert not client.answer(1).has_ended
    rig.advance(3)
    assert client.answer(1).status == str(int(Code.DEADLINE_EXCEEDED))


def test_a_client_that_takes_nothing_is_closed(rig: Rig) -> None:
    """What waits for it in our memory does so for a bounded time."""
    client = rig.connect(WIDE_HELLO)
    client.send(hold(1))
    rig.step()
    rig.held[0].reply(b"x" * 10_000_000)
    rig.step(5)
    rig.advance(29)
    assert rig.transport._sessions
    rig.advance(3)
    assert not rig.transport._sessions
    client.read()
    assert client.is_closed


def test_an_answer_that_no_window_comes_for_is_dropped(rig: Rig) -> None:
    """Flow control cannot be used to park memory in the server."""
    client = rig.connect(CLOSED_HELLO)
    client.send(request(1))
    rig.step()
    for _ in range(33):
        rig.advance(1)
    assert client.answer(1).reset is ErrorCode.CANCEL
    (session,) = rig.transport._sessions
    assert session.connection.queued_bytes == 0


def test_an_idle_connection_is_drained(tmp_path: Path) -> None:
    """GOAWAY and close; a connection in use stays."""
    with running(tmp_path, ExpressOptions(idle_timeout_s=100)) as rig:
        idle, used = rig.connect(), rig.connect()
        for index in range(60):
            rig.advance(2)
            used.send(request(2 * index + 1))
            rig.step()
        idle.read()
        used.read()
        assert idle.is_closed
        assert idle.goaway is ErrorCode.NO_ERROR
        assert not used.is_closed


def test_a_dead_client_is_noticed_by_its_silence(rig: Rig) -> None:
    """A ping after minutes without a byte; no answer, no connection."""
    silent, alive = rig.connect(), rig.connect()
    for _ in range(320):
        rig.advance(1)
        alive.read()
        for payload in alive.pings:
            alive.send(frames.ping(payload, ack=True))
        alive.pings.clear()
    rig.advance(5)
    silent.read()
    alive.read()
    assert silent.pings
    assert silent.is_closed
    assert not alive.is_closed
