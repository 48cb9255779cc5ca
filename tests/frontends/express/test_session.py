"""One accepted socket: how it ends, whom its faults cost, and that it leaves nothing."""

from __future__ import annotations

import gc
import socket
import threading
from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    HOLD,
    STREAM,
    RawClient,
    Rig,
    head,
    hold,
    num_of,
    running,
)
from tests.frontends.express.wire import (
    HELLO,
    data_frame,
    prefixed,
    request,
)
from tests.frontends.scarce_files import files_left
from tfs.core.call import ListenerOptions
from tfs.core.executor import InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.session import Session
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2 import frames
from tfs.frontends.http2.connection import Connection
from tfs.frontends.http2.frames import ErrorCode, Setting
from tfs.testing.fake_clock import FakeClock


def test_a_client_that_closes_its_sending_direction_is_gone(tmp_path: Path) -> None:
    """END_STREAM ends a request; the end of the bytes ends the connection."""
    with running(tmp_path) as rig:
        client = rig.connect()
        client.send(head(1, HOLD) + data_frame(1, prefixed(b"x")))
        rig.settle()
        client.socket.shutdown(socket.SHUT_WR)
        rig.settle()
        assert rig.held[0].cancel.error is not None
        client.read()
        assert client.is_closed


def test_a_fault_of_our_own_costs_one_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed and counted; the loop and the others do not notice."""
    bad, good = rig.connect(), rig.connect()
    bad.send(request(1, b"bad"))

    def fail(call: object) -> None:
        raise AssertionError("meant to fail")

    monkeypatch.setattr("tfs.frontends.express.session.ExpressCall", fail)
    rig.step()
    monkeypatch.undo()
    bad.read()
    assert bad.is_closed
    good.send(request(1, b"good"))
    rig.step()
    assert good.answer(1).messages == [b"good"]
    assert rig.transport.clients.counters.failures == 1
    assert rig.loop.num_failures == 0


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_fault_while_a_round_is_written_costs_one_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_closing: bool
) -> None:
    """What the round brought for the others is written all the same."""
    bad = rig.connect()
    (failing,) = rig.transport.clients.sessions
    good = rig.connect()
    if is_closing:
        bad.send(frames.window_update(0, 0))
    else:  # its answer has to wait
        bad.send(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1))
    good.send(request(1, b"good"))
    write, faults = Session._write, [MemoryError("meant to fail")]

    def fail(session: Session) -> None:
        if faults and session is failing:
            raise faults.pop()
        write(session)

    monkeypatch.setattr(Session, "_write", fail)
    rig.step()
    assert not faults
    assert good.answer(1).messages == [b"good"]
    bad.read()
    assert bad.is_closed
    assert rig.transport.clients.counters.failures == 1
    assert rig.loop.num_failures == 0
    assert len(rig.transport.clients.sessions) == 1


def test_an_old_connection_is_drained_then_closed(tmp_path: Path) -> None:
    """At its age it takes no new calls; those under way have the grace to end."""
    options = ExpressOptions(max_connection_age_s=100.0, max_connection_age_grace_s=20)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(head(1, HOLD) + data_frame(1, prefixed(b"x")))
        rig.settle()
        for _ in range(85):
            rig.advance(1.0)
        client.read()
        assert client.goaway is None
        for _ in range(26):
            if client.goaway is None:
                rig.advance(1.0)
                client.read()
        assert client.goaway is ErrorCode.NO_ERROR
        assert not client.is_closed
        assert rig.held[0].cancel.error is None
        for _ in range(22):
            rig.advance(1.0)
        client.read()
        assert client.is_closed
        assert rig.held[0].cancel.error is not None


def test_who_still_sends_when_it_is_cut_off_reads_why() -> None:
    """Over TCP the kernel resets what is closed too early, and forgets the GOAWAY."""
    loop = ServingLoop(FakeClock(), name="cut off")
    transport = ExpressTransport(loop, executor=InlineExecutor())
    try:
        (address,) = transport.start([ListenerOptions("x", "127.0.0.1:0")], {})
        loop.step()
        with socket.socket() as client:
            client.settimeout(5)
            client.connect(("127.0.0.1", int(address.rpartition(":")[2])))
            client.sendall(HELLO + frames.window_update(0, 0))
            for _ in range(4):
                loop.step()
            assert transport.clients.counters.faults == 1
            for _ in range(20):
                client.sendall(bytes(10_000))
                loop.step()
            seen = b""
            while data := client.recv(65_536):
                seen += data
            goaway = frames.goaway(0, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            assert seen.endswith(goaway)
    finally:
        transport.close()
        loop.close()


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    """A connection beyond the limit is closed at once, without an answer."""
    with running(tmp_path, ExpressOptions(max_connections=2)) as rig:
        clients = [rig.connect(hello=b"") for _ in range(3)]
        rig.step(2)
        for client in clients:
            client.read()
        assert [client.is_closed for client in clients] == [False, False, True]
        assert rig.transport.clients.counters.refused_connections == 1


def test_who_comes_while_no_descriptor_is_free_waits(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """That is logged and counted once a second, and the client is served then."""
    client = RawClient(rig.path)
    rig.clients.append(client)
    client.send(HELLO + request(1))
    counters = rig.transport.clients.counters
    with files_left(0):
        rig.step(50)
        assert counters.failed_accepts == 1
        assert caplog.text.count("event=accept_failed") == 1
        rig.clock.advance(1.0)
        rig.step(50)
        assert counters.failed_accepts == 2
        assert counters.connections == 0
    rig.clock.advance(1.0)
    rig.step(6)
    assert client.answer(1).has_ended


def test_connections_that_come_and_go_leave_nothing(rig: Rig) -> None:
    """Whatever state they were dropped in."""
    for index in range(200):
        client = rig.connect(HELLO[: index % (len(HELLO) + 1)])
        client.close()
        rig.step(2)
    assert not rig.transport.clients.sessions
    assert rig.transport.budget.used_bytes == 0


def test_drain_finishes_what_was_taken_and_closes(rig: Rig) -> None:
    """GOAWAY, the last answers, and the end of each connection in its time."""
    busy, idle = rig.connect(), rig.connect()
    busy.send(hold(1))
    rig.step()
    done: list[bool] = []
    drainer = threading.Thread(
        target=lambda: done.append(rig.transport.drain(rig.clock.now() + 60))
    )
    drainer.start()
    rig.clock.block_until_sleepers(1)
    rig.settle()
    for client in (busy, idle):
        client.read()
        assert client.goaway is ErrorCode.NO_ERROR
    assert not Path(rig.path).exists()
    idle.send(frames.ping(idle.pings[0], ack=True))
    rig.settle()
    idle.read()
    assert idle.is_closed
    rig.advance(1.1)  # the other never answers the ping
    busy.send(request(3))
    rig.settle()
    busy.read()
    assert not busy.is_closed
    rig.held[0].reply(b"finished")
    rig.settle()
    assert busy.answer(1).messages == [b"finished"]
    assert busy.answer(3).messages == []
    assert busy.is_closed
    assert not rig.transport.clients.is_drained
    rig.advance(1.1)  # they have all, and do not end their connections
    drainer.join(10)
    assert done == [True]


def test_a_drain_waits_for_who_still_reads(rig: Rig) -> None:
    """What the client sends while it reads its last answer breaks no connection."""
    client = rig.connect()
    client.send(hold(1))
    rig.step()
    rig.loop.post(rig.transport.clients.begin_drain)
    rig.settle()
    client.read()
    client.send(frames.ping(client.pings[0], ack=True))
    rig.held[0].reply(bytes(50_000))
    rig.settle()
    assert not rig.transport.clients.sessions
    for _ in range(3):
        client.send(frames.ping(b"reading!"))
        rig.advance(1.1)
        assert not rig.transport.clients.is_drained
    assert client.answer(1).messages == [bytes(50_000)]
    client.close()
    rig.settle()
    assert rig.transport.clients.is_drained


def test_a_slow_round_is_counted(rig: Rig) -> None:
    """Something on the loop blocked it; somebody should know."""
    client = rig.connect()
    rig.on_stream = lambda call: rig.clock.advance(0.2)
    client.send(head(1, STREAM) + data_frame(1, prefixed(b"x")))
    rig.step()
    assert rig.transport.clients.counters.slow_rounds == 1


@pytest.mark.parametrize("end", ["leaves", "errs"])
def test_a_closed_connection_is_freed_at_once(rig: Rig, end: str) -> None:
    """A closed connection is freed at once, together with its unread answers."""
    other = rig.connect()
    gc.collect()
    gc.disable()
    try:
        num_before = num_of(Session), num_of(Connection)
        client = rig.connect()
        client.send(request(1, b"x" * 10_000))
        rig.step()
        assert num_of(Session) == num_before[0] + 1
        if end == "errs":
            client.send(frames.window_update(0, 0))
        else:
            client.close()
        rig.settle()
        assert len(rig.connections()) == 1
        other.send(request(1))  # the last caller is remembered
        rig.settle()
        assert (num_of(Session), num_of(Connection)) == num_before
    finally:
        gc.enable()
