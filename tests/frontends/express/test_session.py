"""Sockets, calls and timeouts, in rounds that the test counts and time it owns."""

from __future__ import annotations

import errno
import gc
import gzip
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.express.rig import (
    BOTH,
    FAIL,
    HOLD,
    STREAM,
    RawClient,
    Rig,
    head,
    running,
)
from tests.frontends.express.wire import (
    HELLO,
    PATH,
    data_frame,
    headers_frame,
    prefixed,
    request,
)
from tests.handlers.test_decode_pool import HeldExecutor
from tfs.core.call import ListenerOptions, StreamCall
from tfs.core.errors import Code, NotFound, Unavailable
from tfs.core.executor import InlineExecutor
from tfs.core.serving_loop import ServingLoop
from tfs.frontends.rpc.express import inbox
from tfs.frontends.rpc.express.backlog import Backlog
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.http2 import frames
from tfs.frontends.rpc.express.http2.connection import Connection
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.http2.frames import ErrorCode, Setting
from tfs.frontends.rpc.express.http2.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.http2.response import HTTP_1_ANSWER
from tfs.frontends.rpc.express.listener import Listener
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.session import Session
from tfs.frontends.rpc.express.transport import ExpressTransport
from tfs.frontends.rpc.express.turns import SHARED_S, SHORT
from tfs.testing.fake_clock import FakeClock

WIDE = frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + frames.window_update(
    0, 1 << 30
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path) as rig:
        yield rig


def hold(stream_id: int, *extra: tuple[str, str]) -> bytes:
    """Returns a request for the method that never answers by itself."""
    return head(stream_id, HOLD, *extra) + data_frame(stream_id, prefixed(b"x"))


# -- calls --------------------------------------------------------------------------


def test_a_request_is_answered_within_its_round(rig: Rig) -> None:
    """Read, handled and written in one go."""
    client = rig.connect()
    client.send(request(1))
    rig.step()
    assert client.answer(1).messages == [b"ping"]
    assert client.answer(1).status == "0"


def test_all_requests_of_a_round_are_handled_before_anything_is_written(
    rig: Rig,
) -> None:
    """Natural batching: the schedule hooks see them together."""
    client = rig.connect()
    client.send(b"".join(hold(stream_id) for stream_id in range(1, 40, 2)))
    rig.step()
    assert len(rig.held) == 20


def test_a_handler_that_raises_costs_one_call(rig: Rig) -> None:
    """INTERNAL without details, counted, and the connection lives."""
    client = rig.connect()
    client.send(head(1, FAIL) + data_frame(1, prefixed(b"x")) + request(3))
    rig.step()
    answer = client.answer(1)
    assert answer.status == str(int(Code.INTERNAL))
    assert "meant to fail" not in str(answer.headers)
    assert client.answer(3).messages == [b"ping"]
    assert rig.transport.counters.handler_failures == 1


def test_the_first_finish_wins_and_the_others_are_counted(rig: Rig) -> None:
    """A call ends by its first reply or failure, whatever comes later."""
    client = rig.connect()
    client.send(hold(1))
    rig.step()
    rig.held[0].reply(b"first")
    rig.held[0].reply(b"second")
    rig.held[0].fail(NotFound("third"))
    rig.step()
    assert client.answer(1).messages == [b"first"]
    assert client.answer(1).status == "0"
    assert rig.transport.counters.late_finishes == 2


def test_a_finish_from_another_thread_is_sent_in_the_next_round(rig: Rig) -> None:
    """It is posted to the loop, which alone touches the connection."""
    client = rig.connect()
    client.send(hold(1) + hold(3))
    rig.step()
    first, second = rig.held

    def finish_both() -> None:
        first.reply(b"one")
        second.fail(Unavailable("two"))

    thread = threading.Thread(target=finish_both)
    thread.start()
    thread.join()
    assert client.answer(1).messages == []
    rig.step()
    assert client.answer(1).messages == [b"one"]
    assert client.answer(3).status == "14"


def test_a_deadline_is_exact_to_its_tick(rig: Rig) -> None:
    """A call expires at its deadline or at most 5 ms later, and its handler is told."""
    client = rig.connect()
    client.send(hold(1, ("grpc-timeout", "2S")))
    rig.step()
    (call,) = rig.held
    told: list[str] = []
    call.on_cancel(lambda: told.append("first"))
    assert call.deadline_s == rig.clock.now() + 2.0
    rig.advance(1.999)
    assert not client.answer(1).has_ended
    rig.advance(0.006)
    assert client.answer(1).status == str(int(Code.DEADLINE_EXCEEDED))
    assert told == ["first"]
    assert call.cancel.error is not None
    assert call.cancel.error.code is Code.DEADLINE_EXCEEDED
    call.on_cancel(lambda: told.append("at once"))
    assert told == ["first", "at once"]


def test_a_deadline_passes_also_while_the_request_arrives(rig: Rig) -> None:
    """It counts from the headers; the rest of the request is dropped."""
    client = rig.connect()
    client.send(head(1, HOLD, ("grpc-timeout", "1S")) + data_frame(1, b"\0\0", 0))
    rig.step()
    rig.advance(1.01)
    answer = client.answer(1)
    assert (answer.status, answer.reset) == ("4", ErrorCode.NO_ERROR)
    client.send(data_frame(1, b"\0\0\1x") + request(3))
    rig.step()
    assert client.answer(3).messages == [b"ping"]
    assert rig.held == []


def test_an_answered_call_leaves_no_deadline_behind(rig: Rig) -> None:
    """Nothing is kept of a call that is over."""
    client = rig.connect()
    client.send(head(1, PATH, ("grpc-timeout", "60S")) + data_frame(1, prefixed(b"x")))
    rig.step()
    assert client.answer(1).messages == [b"x"]
    assert len(rig.transport._shared.deadlines) == 0


def test_a_call_answered_in_its_round_never_has_a_deadline_to_watch(rig: Rig) -> None:
    """Most are; one that is held is watched from the end of its round on."""
    deadlines = rig.transport._shared.deadlines
    client = rig.connect()
    timeout = ("grpc-timeout", "60S")
    client.send(head(1, PATH, timeout) + data_frame(1, prefixed(b"x")))
    rig.step()
    assert client.answer(1).messages == [b"x"]
    assert deadlines._ticks == []
    client.send(head(3, HOLD, timeout) + data_frame(3, prefixed(b"x")))
    client.send(head(5, PATH, timeout))
    rig.step()
    assert len(deadlines) == 2


def test_clients_are_told_how_many_streams_there_is_room_for(rig: Rig) -> None:
    """Who knows opens no more: what is refused, many libraries do not send again."""
    clients = [rig.connect() for _ in range(17)]
    rig.step(2)
    for client in clients:
        client.read()
    assert {client.max_streams for client in clients} == {512}
    for client in clients[2:]:
        client.close()
    rig.step()
    rig.advance(3.0)
    for client in clients[:2]:
        client.read()
        assert client.max_streams == 1024
        client.send(request(1))
        rig.step()
        assert client.answer(1).messages == [b"ping"]


def test_a_cancelled_call_counts_until_its_handler_is_done(tmp_path: Path) -> None:
    """The stream is gone at once, its work is not."""
    options = ExpressOptions(limits=ConnectionLimits(max_concurrent_streams=2))
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(hold(1) + hold(3))
        rig.step()
        client.send(
            frames.rst_stream(1, ErrorCode.CANCEL)
            + frames.rst_stream(3, ErrorCode.CANCEL)
            + request(5)
        )
        rig.step()
        assert client.answer(5).reset is ErrorCode.REFUSED_STREAM
        assert [call.cancel.error.code for call in rig.held if call.cancel.error] == [
            Code.CANCELLED,
            Code.CANCELLED,
        ]
        rig.held[0].reply(b"nobody listens")
        client.send(request(7))
        rig.step()
        assert client.answer(7).messages == [b"ping"]
        # The other handler just forgets its call.
        rig.held.clear()
        gc.collect()
        rig.step()
        client.send(hold(9) + hold(11))
        rig.step()
        assert len(rig.held) == 2


def test_a_lost_connection_cancels_its_calls(rig: Rig) -> None:
    """Handlers learn that nobody waits; late answers do no harm."""
    client = rig.connect()
    client.send(hold(1))
    rig.step()
    told: list[bool] = []
    rig.held[0].on_cancel(lambda: told.append(True))
    client.close()
    rig.step()
    assert told == [True]
    rig.held[0].reply(b"nobody listens")
    rig.held.clear()
    rig.settle()
    assert rig.transport.budget.used_bytes == 0


def test_an_unknown_method_is_refused_before_its_body(rig: Rig) -> None:
    """UNIMPLEMENTED, and the rest of the request is dropped."""
    client = rig.connect()
    client.send(head(1, "/nobody.Knows/This"))
    rig.step()
    answer = client.answer(1)
    assert (answer.status, answer.reset) == ("12", ErrorCode.NO_ERROR)


@pytest.mark.parametrize(
    "body",
    [b"", prefixed(b"a") + prefixed(b"b")],
    ids=["no message", "two messages"],
)
@pytest.mark.parametrize("path", [PATH, STREAM])
def test_a_unary_request_is_one_message(rig: Rig, path: str, body: bytes) -> None:
    """gRPC's answer to another number of messages is UNIMPLEMENTED."""
    client = rig.connect()
    client.send(head(1, path) + data_frame(1, body))
    rig.step()
    assert client.answer(1).status == str(int(Code.UNIMPLEMENTED))
    assert rig.served == []
    assert rig.streams == []


def test_what_is_not_grpc_gets_an_http_answer(rig: Rig) -> None:
    """The refusals of the head reach the wire."""
    client = rig.connect()
    client.send(headers_frame(1, b"\x83\x86\x84", frames.END_HEADERS))  # POST /
    rig.step()
    assert dict(client.answer(1).headers)[":status"] == "415"


def test_an_http_1_client_reads_nothing_but_an_http_1_answer(rig: Rig) -> None:
    """SETTINGS sent before it spoke would make its library report HTTP/0.9."""
    client = rig.connect(hello=b"")
    client.send(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
    rig.step(2)
    assert client.socket.recv(1000) == HTTP_1_ANSWER
    client.read()
    assert client.is_closed


# -- streams -------------------------------------------------------------------------


def test_a_server_stream_sends_until_the_client_reads_too_slowly(
    tmp_path: Path,
) -> None:
    """send says no when the bound is reached, and yes again later."""
    options = ExpressOptions(max_stream_queued_bytes=100_000)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(head(1, STREAM) + data_frame(1, prefixed(b"go")))
        rig.step()
        (call,) = rig.streams
        num_sent = 0
        while call.send(b"x" * 10_000):
            num_sent += 1
            rig.settle()
            assert num_sent < 100
        client.send(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
        rig.settle()
        assert call.send(b"last")
        call.finish()
        rig.settle()
        answer = client.answer(1)
        assert answer.messages == [b"x" * 10_000] * num_sent + [b"last"]
        assert answer.status == "0"
        assert not call.send(b"after the end")


def test_a_bidirectional_stream_hears_each_message_and_the_end(rig: Rig) -> None:
    """The first comes with the call, the others later, the end once."""
    heard: list[bytes] = []

    def listen(call: StreamCall) -> None:
        def end() -> None:
            heard.append(b"end")
            call.finish()

        heard.append(bytes(call.message))
        call.on_message(lambda message: heard.append(bytes(message)))
        call.on_half_close(end)

    rig.on_stream = listen
    client = rig.connect()
    client.send(head(1, BOTH) + data_frame(1, prefixed(b"a"), 0))
    rig.step()
    client.send(data_frame(1, prefixed(b"b") + prefixed(b"c"), 0) + data_frame(1, b""))
    rig.step()
    assert heard == [b"a", b"b", b"c", b"end"]
    assert client.answer(1).status == "0"
    assert rig.transport.budget.used_bytes == _granted(rig)


def test_messages_wait_for_a_handler_that_listens_later(rig: Rig) -> None:
    """Nothing is lost, and what waits still counts as received."""
    client = rig.connect()
    client.send(
        head(1, BOTH) + data_frame(1, prefixed(b"a") + prefixed(b"b") + prefixed(b"c"))
    )
    rig.step()
    (call,) = rig.streams
    assert rig.transport.budget.used_bytes > _granted(rig)
    heard: list[bytes] = []
    call.on_half_close(lambda: heard.append(b"end"))
    call.on_message(lambda message: heard.append(bytes(message)))
    assert heard == [b"b", b"c", b"end"]
    call.reply(b"bye")
    rig.step()
    assert client.answer(1).messages == [b"bye"]
    assert rig.transport.budget.used_bytes == _granted(rig)


def _answering_at_length(rig: Rig, heard: list[bytes]) -> Callable[[StreamCall], None]:
    """Answers each message of a stream with 40 KB."""

    def listen(call: StreamCall) -> None:
        def answer(message: bytes | memoryview) -> None:
            heard.append(bytes(message))
            assert call.send(bytes(40_000))

        answer(call.message)
        call.on_message(answer)
        call.on_half_close(call.finish)

    return listen


def test_a_stream_goes_on_as_its_answers_are_read(rig: Rig) -> None:
    """What asks for more waits, so that answers do not; none is lost, nor the end."""
    heard: list[bytes] = []
    rig.on_stream = _answering_at_length(rig, heard)
    client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    asked = b"".join(prefixed(b"%d" % index) for index in range(50))
    client.send(head(1, BOTH) + data_frame(1, asked))
    rig.settle()
    (connection,) = rig.transport.connections()
    assert len(heard) == 2
    assert connection.queued_bytes < 100_000
    more = frames.window_update(0, 100_000) + frames.window_update(1, 100_000)
    while client.answer(1).status is None and len(client.answer(1).messages) <= 50:
        client.send(more)
        rig.settle()
        assert connection.queued_bytes < 250_000
    assert heard == [b"%d" % index for index in range(50)]
    assert client.answer(1).messages == [bytes(40_000)] * 50
    assert client.answer(1).status == "0"
    assert rig.transport.budget.used_bytes == _granted(rig)


def test_a_stream_that_asks_on_and_reads_nothing_fails(rig: Rig) -> None:
    """Messages that wait take memory, too; the connection's other calls are answered."""
    heard: list[bytes] = []
    rig.on_stream = _answering_at_length(rig, heard)
    client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    client.send(head(1, BOTH) + data_frame(1, prefixed(b"?") * 100, 0))
    client.send(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1000}) + request(3))
    rig.settle()
    assert len(heard) == 2
    client.send(frames.window_update(0, 1 << 20) + frames.window_update(1, 1 << 20))
    rig.settle()
    assert client.answer(1).status == str(int(Code.RESOURCE_EXHAUSTED))
    assert client.answer(3).messages == [b"ping"]
    assert rig.transport.budget.used_bytes == _granted(rig)


@pytest.mark.parametrize(
    "later",
    [
        data_frame(1, prefixed(b"?") * 100, 0),
        data_frame(1, prefixed(b"not zipped", compressed=True), 0),
        data_frame(1, b"\x02" + prefixed(b"no such flag"), 0),
        data_frame(1, prefixed(b"too long")[:1] + b"\xff" * 4, 0),
    ],
    ids=["too-many", "damaged", "no-flag", "too-long"],
)
def test_a_handler_is_told_of_a_stream_that_it_did_not_fail(
    rig: Rig, later: bytes
) -> None:
    """It would keep the stream, and with it the connection, for as long as it runs."""
    told: list[str] = []

    def listen(call: StreamCall) -> None:
        call.on_cancel(lambda: told.append("failed"))
        call.on_message(lambda message: None)
        call.send(bytes(100_000))

    rig.on_stream = listen
    client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
    client.send(
        head(1, BOTH, ("grpc-encoding", "gzip")) + data_frame(1, prefixed(b"a"), 0)
    )
    rig.settle()
    assert told == []
    client.send(later)
    rig.settle()
    assert told == ["failed"]


def test_a_bidirectional_stream_without_messages_ends_well(rig: Rig) -> None:
    """There is nothing to answer."""
    client = rig.connect()
    client.send(head(1, BOTH) + data_frame(1, b""))
    rig.step()
    assert client.answer(1).status == "0"
    assert rig.streams == []


def test_a_listener_function_that_raises_fails_its_stream(rig: Rig) -> None:
    """The same containment as for handlers."""

    def listen(call: StreamCall) -> None:
        def fail(message: bytes | memoryview) -> None:
            raise ValueError("meant to fail")

        call.on_message(fail)

    rig.on_stream = listen
    client = rig.connect()
    client.send(head(1, BOTH) + data_frame(1, prefixed(b"a") + prefixed(b"b"), 0))
    rig.step()
    assert client.answer(1).status == str(int(Code.INTERNAL))


def _granted(rig: Rig) -> int:
    return sum(s.connection._window.size for s in rig.transport._sessions)


# -- compression ----------------------------------------------------------------------


def test_a_gzip_request_is_decompressed(rig: Rig) -> None:
    """Only messages with the flag; the order of messages stays."""
    heard: list[bytes] = []

    def listen(call: StreamCall) -> None:
        heard.append(bytes(call.message))
        call.on_message(lambda message: heard.append(bytes(message)))
        call.on_half_close(call.finish)

    rig.on_stream = listen
    client = rig.connect()
    gzipped = prefixed(gzip.compress(b"b" * 1000), compressed=True)
    client.send(
        head(1, BOTH, ("grpc-encoding", "gzip"))
        + data_frame(1, prefixed(b"a") + gzipped + prefixed(b"c") + gzipped)
    )
    client.send(head(3, PATH, ("grpc-encoding", "gzip")) + data_frame(3, gzipped))
    rig.settle()
    assert heard == [b"a", b"b" * 1000, b"c", b"b" * 1000]
    assert client.answer(1).status == "0"
    assert client.answer(3).messages == [b"b" * 1000]


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        ("identity", gzip.compress(b"x", mtime=0), Code.INTERNAL),
        ("gzip", b"not gzip", Code.INTERNAL),
        ("gzip", gzip.compress(b"\0" * 2_000_000, mtime=0), Code.RESOURCE_EXHAUSTED),
    ],
)
def test_bad_compression_fails_the_call(
    tmp_path: Path, encoding: str, body: bytes, code: Code
) -> None:
    """A flag without an encoding, damage, and bombs."""
    options = ExpressOptions(limits=ConnectionLimits(max_message_bytes=1_000_000))
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(
            head(1, PATH, ("grpc-encoding", encoding))
            + data_frame(1, prefixed(body, compressed=True))
        )
        rig.settle()
        assert client.answer(1).status == str(int(code))
        assert rig.served == []


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


# -- rounds and back-pressure -----------------------------------------------------------


def test_answers_nobody_takes_are_bounded_for_the_whole_server(tmp_path: Path) -> None:
    """Those who read too slowly go until the rest fits; who reads is served on."""
    options = ExpressOptions(max_backlog_bytes=400_000)
    closed = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})
    with running(tmp_path, options) as rig:
        slow = [rig.connect(closed) for _ in range(5)]
        for client in slow:
            rig.advance(2.0)
            client.send(head(1) + data_frame(1, prefixed(bytes(60_000))))
            client.send(head(3) + data_frame(3, prefixed(bytes(5_000))))
            rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 5 * 65_010
        late = [rig.connect(closed) for _ in range(2)]
        for client in late:
            client.send(head(1) + data_frame(1, prefixed(bytes(60_000))))
            rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 4 * 65_010 + 2 * 60_005
        for client in slow:
            client.read()
        assert [client.is_closed for client in slow] == [True] + 4 * [False]
        assert slow[0].goaway is ErrorCode.ENHANCE_YOUR_CALM
        good = rig.connect()
        good.send(request(1, b"others"))
        rig.settle()
        assert good.answer(1).messages == [b"others"]
        for client in [*slow, *late]:
            client.close()
        rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 0
        assert rig.transport.counters.timeouts == 1


CLOSED = HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0})


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
    client = rig.connect(CLOSED)
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
        good = rig.connect(HELLO + WIDE)
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
        good = rig.connect(HELLO + WIDE)
        good.send(request(1, b"small"))
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
        good = rig.connect(HELLO + WIDE)
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


def test_slow_readers_are_waited_for(tmp_path: Path) -> None:
    """Who takes 16 KB a second stays; others get more room, by and by."""
    with running(tmp_path, CROWDED) as rig:
        slow = [_clog(rig) for _ in range(3)]
        for client in slow:
            client.send(frames.window_update(0, 1 << 20))
        good = rig.connect(HELLO + WIDE)
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
        good = rig.connect(HELLO + WIDE)
        good.send(head(1))
        left = good.upload(1, prefixed(bytes(5 << 20)), 60_000)
        rig.settle()
        slow = [rig.connect(CLOSED) for _ in range(5)]
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


def test_an_answer_taken_byte_by_byte_is_given_up(tmp_path: Path) -> None:
    """A window of a byte now and then is no progress; 16 KB a second are."""
    with running(tmp_path) as rig:
        client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
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


def test_a_stream_of_answers_is_refused_where_others_wait(tmp_path: Path) -> None:
    """What waits for one client's streams is bounded together; a first message is not."""
    options = ExpressOptions(limits=ConnectionLimits(max_queued_bytes=100_000))
    with running(tmp_path, options) as rig:
        client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
        for stream_id in (1, 3, 5):
            client.send(
                head(stream_id, STREAM) + data_frame(stream_id, prefixed(b"go"))
            )
        rig.settle()
        first, second, third = rig.streams
        assert first.send(bytes(90_000))
        assert second.send(bytes(90_000))
        assert not first.send(b"more")
        assert not second.send(b"more")
        assert third.send(b"first")
        assert not third.send(b"more")


def test_a_flooding_connection_gets_its_turn_and_no_more(tmp_path: Path) -> None:
    """Its surplus waits, others are served in every round, and it in every other."""
    options = ExpressOptions(limits=ConnectionLimits(max_requests_per_round=10))
    with running(tmp_path, options) as rig:
        flood, other = rig.connect(), rig.connect()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100)))
        for index in range(5):
            other.send(request(2 * index + 1, b"other"))
            rig.step()
            assert other.answer(2 * index + 1).messages == [b"other"]
            assert rig.served.count(b"flood") == 10 * (index // 2 + 1)
        rig.settle()
        assert rig.served.count(b"flood") == 100


def test_turns_are_short_beside_one_with_little_to_do(tmp_path: Path) -> None:
    """A flood may take a whole round alone; not where another would wait for it."""
    with running(tmp_path) as rig:
        flood = rig.connect()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100)))
        rig.step()
        assert rig.served.count(b"flood") == 100
        other = rig.connect()
        other.send(request(1, b"other"))
        rig.step()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100, 200)))
        rig.step()
        assert rig.served.count(b"flood") == 100 + SHORT.num_requests
        rig.settle()
        rig.clock.advance(SHARED_S + 1)
        rig.step()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(200, 300)))
        rig.step()
        assert rig.served.count(b"flood") == 300


def test_two_floods_keep_their_long_turns(tmp_path: Path) -> None:
    """Nobody would gain by short ones."""
    with running(tmp_path) as rig:
        floods = [rig.connect(), rig.connect()]
        for start in (0, 100):
            for flood in floods:
                flood.send(
                    b"".join(request(2 * n + 1) for n in range(start, start + 100))
                )
            rig.step()
            assert len(rig.served) == 2 * (start + 100)


def test_a_reply_goes_before_the_rest_of_a_large_one(tmp_path: Path) -> None:
    """Who has more to write than one round takes comes last in the next."""
    with running(tmp_path) as rig:
        large, other = rig.connect(HELLO + WIDE), rig.connect()
        large.send(head(1))
        body = prefixed(b"x" * 200_000)
        while body:
            is_last = len(body) <= 50_000
            body = large.upload(1, body, 50_000)
            if not is_last:
                rig.settle()
        other.send(request(1, b"other"))
        rig.step()
        other.send(request(3, b"other"))
        rig.step()
        assert other.answer(3).messages == [b"other"]
        for _ in range(10):
            large.read()
            rig.settle()
        assert len(large.answer(1).messages[0]) == 200_000


def test_a_round_reads_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """A large upload does not keep the loop for itself."""
    with running(tmp_path, ExpressOptions(max_read_bytes=1000)) as rig:
        client = rig.connect()
        client.send(head(1) + data_frame(1, prefixed(b"x" * 5000)))
        rig.step(3)
        assert rig.served == []
        rig.settle()
        rig.step(5)
        assert rig.served == [b"x" * 5000]


def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Once its answers pile up its requests wait in the kernel, and go on later."""
    options = ExpressOptions(max_unsent_bytes=100_000)
    with running(tmp_path, options) as rig:
        client = rig.connect(HELLO + WIDE)
        body = b"x" * 50_000
        num_sent = 0
        for index in range(400):
            data = request(2 * index + 1, body)
            if client.send_some(data) < len(data):
                break  # a cut request: nothing may follow it
            num_sent += 1
            rig.step()
        assert 0 < len(rig.served) < num_sent
        (session,) = rig.transport._sessions
        assert session._unsent_bytes < 100_000 + 128 * 50_000
        for _ in range(2000):
            client.read()
            rig.step()
            if len(rig.served) >= num_sent:
                break
        rig.settle()
        assert client.answer(2 * num_sent - 1).messages == [body]


def test_large_answers_are_sent_as_the_client_reads(rig: Rig) -> None:
    """More than the socket takes at once arrives whole and in order."""
    client = rig.connect(HELLO + WIDE)
    client.send(hold(1) + hold(3))
    rig.step()
    body = bytes(range(256)) * 20_000
    rig.held[0].reply(body)
    rig.held[1].reply(b"small")
    for _ in range(500):
        rig.step()
        client.read()
    assert client.answer(1).messages == [body]
    assert client.answer(3).messages == [b"small"]


# -- timeouts ------------------------------------------------------------------------


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
    client = rig.connect(HELLO + WIDE)
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
    client = rig.connect(HELLO + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}))
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


# -- the receive budget ----------------------------------------------------------------


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


def test_what_gzip_unpacks_to_is_held_against_the_budget(tmp_path: Path) -> None:
    """A small request that grows counts as what it became, until it is answered."""
    options = ExpressOptions(max_receive_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        body = prefixed(gzip.compress(bytes(600_000)), compressed=True)
        for stream_id in (1, 3):
            client.send(
                head(stream_id, HOLD, ("grpc-encoding", "gzip"))
                + data_frame(stream_id, body)
            )
        rig.settle()
        assert rig.transport.budget.used_bytes > 600_000
        assert client.answer(3).status == str(int(Code.RESOURCE_EXHAUSTED))
        rig.held[0].reply(b"done")
        rig.settle()
        assert rig.transport.budget.used_bytes <= _granted(rig)


def test_what_nobody_waits_for_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that sends bombs and leaves costs no more than what it sent."""
    unpacked = []
    monkeypatch.setattr(inbox, "decompress", lambda *args: unpacked.append(args))
    executor = HeldExecutor()
    with running(tmp_path, executor=executor) as rig:
        client = rig.connect()
        body = prefixed(gzip.compress(bytes(600_000)), compressed=True)
        client.send(head(1, PATH, ("grpc-encoding", "gzip")) + data_frame(1, body))
        rig.settle()
        client.close()
        rig.settle()
        assert len(executor.waiting) == 1
        executor.run_all()
        rig.settle()
        assert not unpacked
        assert rig.transport.counters.failures == 0


# -- containment and the end -----------------------------------------------------------


def test_a_fault_of_our_own_costs_one_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed and counted; the loop and the others do not notice."""
    bad, good = rig.connect(), rig.connect()
    sessions = {s.opened_s: s for s in rig.transport._sessions}
    assert len(sessions) == 1  # equal times: pick by who answers
    bad.send(request(1, b"bad"))

    def fail(call: object) -> None:
        raise AssertionError("meant to fail")

    monkeypatch.setattr("tfs.frontends.rpc.express.session_calls.ExpressCall", fail)
    rig.step()
    monkeypatch.undo()
    bad.read()
    assert bad.is_closed
    good.send(request(1, b"good"))
    rig.step()
    assert good.answer(1).messages == [b"good"]
    assert rig.transport.counters.failures == 1
    assert rig.loop.num_failures == 0


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_fault_while_a_round_is_written_costs_one_connection(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_closing: bool
) -> None:
    """What the round brought for the others is written all the same."""
    bad, good = rig.connect(), rig.connect()
    if is_closing:
        bad.send(frames.window_update(0, 0))
    else:  # its answer has to wait
        bad.send(frames.settings({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1))
    good.send(request(1, b"good"))
    note, faults = Backlog.note, [MemoryError("meant to fail")]

    def fail(*arguments: Any) -> None:
        if faults:
            raise faults.pop()
        note(*arguments)

    monkeypatch.setattr(Backlog, "note", fail)
    rig.step()
    assert not faults
    assert good.answer(1).messages == [b"good"]
    bad.read()
    assert bad.is_closed
    assert rig.transport.counters.failures == 1
    assert rig.loop.num_failures == 0
    assert len(rig.transport._sessions) == 1


def test_a_protocol_fault_says_goodbye(rig: Rig) -> None:
    """GOAWAY with the code, then the socket closes."""
    client = rig.connect()
    client.send(frames.window_update(0, 0))
    rig.step()
    client.read()
    assert client.goaway is ErrorCode.PROTOCOL_ERROR
    assert client.is_closed
    assert rig.transport.counters.faults == 1


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
            assert transport.counters.faults == 1
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
        assert rig.transport.counters.refused_connections == 1


def test_connections_that_come_and_go_leave_nothing(rig: Rig) -> None:
    """Whatever state they were dropped in."""
    for index in range(200):
        client = rig.connect(HELLO[: index % (len(HELLO) + 1)])
        client.close()
        rig.step(2)
    assert not rig.transport._sessions
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
    drainer.join(10)
    assert done == [True]


def test_a_slow_round_is_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Something on the loop blocked it; somebody should know."""
    client = rig.connect()
    rig.on_stream = lambda call: rig.clock.advance(0.2)
    client.send(head(1, STREAM) + data_frame(1, prefixed(b"x")))
    with caplog.at_level("WARNING"):
        rig.step()
    assert "event=slow_round" in caplog.text
    assert rig.transport.counters.slow_rounds == 1


# -- listeners --------------------------------------------------------------------------


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    """A server that died leaves its path behind."""
    path = str(tmp_path / "stale.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    listener = Listener(ListenerOptions("x", f"unix:{path}"))
    listener.close()
    assert not (tmp_path / "stale.sock").exists()


def test_a_unix_socket_in_use_is_refused(tmp_path: Path) -> None:
    """Two servers do not share a path, and the first keeps it."""
    options = ListenerOptions("x", f"unix:{tmp_path / 'used.sock'}")
    listener = Listener(options)
    with pytest.raises(Unavailable, match=r"used\.sock"):
        Listener(options)
    assert (tmp_path / "used.sock").exists()
    listener.close()


def test_a_file_in_the_way_is_not_removed(tmp_path: Path) -> None:
    """Only sockets nobody listens on are."""
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(Unavailable):
        Listener(ListenerOptions("x", f"unix:{path}"))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("address", ["8500", "localhost:http", "unix:relative.sock"])
def test_a_malformed_address_is_refused(address: str) -> None:
    """A malformed address is refused, and the message says what is expected."""
    with pytest.raises(ValueError, match=r"address|absolute"):
        Listener(ListenerOptions("x", address))


def test_ipv6_peers_are_written_with_brackets() -> None:
    """IPv6 addresses have brackets, so that host and port can be told apart."""
    try:
        listener = Listener(ListenerOptions("x", "[::1]:0"))
    except Unavailable:
        pytest.skip("this machine has no IPv6 loopback address")
    with socket.socket(socket.AF_INET6) as client:
        listening = listener.sockets[0]
        listening.setblocking(True)
        client.connect(("::1", int(listener.address.rpartition(":")[2])))
        accepted, peer = listener.accept(listening)
        accepted.close()
    listener.close()
    assert peer.address.startswith("[::1]:")
    assert peer.is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_any_address_is_one_of_either_family(host: str) -> None:
    """0.0.0.0 takes IPv6 clients too, as in grpc, and peers keep their family."""
    listener = Listener(ListenerOptions("x", "0.0.0.0:0"))
    port = int(listener.address.removeprefix("0.0.0.0:"))
    (listening,) = listener.sockets
    if ":" in host and listening.family is socket.AF_INET:
        pytest.skip("this machine has no IPv6")
    listening.setblocking(True)
    with socket.create_connection((host, port)):
        accepted, peer = listener.accept(listening)
        accepted.close()
    with pytest.raises(Unavailable, match=f"0.0.0.0:{port}"):
        Listener(ListenerOptions("y", f"0.0.0.0:{port}"))
    listener.close()
    assert peer.address.rpartition(":")[0].strip("[]") == host
    assert peer.is_loopback


def test_without_ipv6_any_address_is_any_of_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel without it refuses the socket, not the server."""
    real = socket.socket

    def ipv4_only(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", ipv4_only)
    listener = Listener(ListenerOptions("x", "0.0.0.0:0"))
    assert [each.family for each in listener.sockets] == [socket.AF_INET]
    assert listener.address.startswith("0.0.0.0:")
    listener.close()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Makes every name stand for these addresses, each told twice."""

    def getaddrinfo(host: str, port: int, **hints: int) -> list[Any]:
        places: list[Any] = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, port, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in hosts
        ]
        return places * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def num_of(kind: type) -> int:
    """Returns how many there are of a kind that the collector looks after."""
    return sum(type(each) is kind for each in gc.get_objects())


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
        assert len(rig.transport.connections()) == 1
        other.send(request(1))  # the last caller is remembered
        rig.settle()
        assert (num_of(Session), num_of(Connection)) == num_before
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["bad", "reset"])
def test_a_call_that_ends_while_it_is_inflated_is_freed_at_once(
    rig: Rig, end: str
) -> None:
    """What is no gzip, and what nobody waits for, leaves nothing for the collector."""
    client = rig.connect()
    gc.collect()
    gc.disable()
    try:
        num_before = num_of(ExpressCall)
        body = b"not gzip" if end == "bad" else gzip.compress(b"x")
        held = head(1, HOLD, ("grpc-encoding", "gzip"))
        held += data_frame(1, prefixed(body, compressed=True))
        if end == "reset":  # read in the same round: it is on the executor then
            held += frames.rst_stream(1, ErrorCode.CANCEL)
        client.send(held)
        rig.settle()
        rig.held.clear()
        assert num_of(ExpressCall) == num_before
    finally:
        gc.enable()


def test_a_name_is_every_address_it_stands_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server listens on every address of a name, on the same port."""
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    listener = Listener(ListenerOptions("x", "localhost:0"))
    port = int(listener.address.removeprefix("localhost:"))
    names = [each.getsockname() for each in listener.sockets]
    assert names == [("127.0.0.2", port), ("127.0.0.1", port)]
    with pytest.raises(Unavailable, match=f"localhost:{port}"):
        Listener(ListenerOptions("y", f"localhost:{port}"))
    listener.close()
    assert all(each.fileno() < 0 for each in listener.sockets)


def test_what_a_name_stands_for_elsewhere_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hosts file may name ::1 while IPv6 is off; something must be this machine's."""
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    listener = Listener(ListenerOptions("x", "localhost:0"))
    assert [each.getsockname()[0] for each in listener.sockets] == ["127.0.0.1"]
    listener.close()
    resolve_to(monkeypatch, "192.0.2.1")
    with pytest.raises(Unavailable, match=r"cannot listen on elsewhere:0"):
        Listener(ListenerOptions("x", "elsewhere:0"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "what lies there is no socket: remove it, or choose another path"),
        ("absent/socket", "No such file or directory; make its directory first"),
        ("x" * 120, "too long; choose a path of at most 107 bytes"),
    ],
)
def test_a_path_that_cannot_be_a_socket_says_what_to_do(
    tmp_path: Path, name: str, words: str
) -> None:
    """Nobody holds it, so there is nothing to stop; what lies there stays."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(Unavailable, match=words):
        Listener(ListenerOptions("admin", f"unix:{tmp_path / name}"))
    assert (tmp_path / "file").read_text() == "precious"


def test_every_address_of_a_name_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each socket is watched, and let go with the others."""
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    loop = ServingLoop(FakeClock(), name="names")
    transport = ExpressTransport(loop, executor=InlineExecutor())
    try:
        (address,) = transport.start([ListenerOptions("x", "localhost:0")], {})
        loop.step()
        port = int(address.removeprefix("localhost:"))
        for number, host in enumerate(("127.0.0.2", "127.0.0.1"), 1):
            with socket.socket() as client:
                client.connect((host, port))
                loop.step()  # connected is accepted: the kernel has it already
                assert transport.counters.connections == number
    finally:
        transport.close()
        loop.close()
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.2", port))


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answered_call_is_freed_at_once(rig: Rig, compressed: bool) -> None:
    """No cycle keeps its message until the collector comes by, inflated or not."""
    client = rig.connect()
    body = prefixed(gzip.compress(b"x") if compressed else b"x", compressed=compressed)
    client.send(head(1, HOLD, ("grpc-encoding", "gzip")) + data_frame(1, body))
    rig.settle()
    freed: list[bool] = []
    call = rig.held.pop()
    weakref.finalize(call, freed.append, True)
    gc.disable()
    try:
        call.reply(b"done")
        del call
        assert freed == [True]
    finally:
        gc.enable()


WIDE_HELLO = HELLO + WIDE


def test_small_requests_for_long_answers_wait_as_large_ones_do(tmp_path: Path) -> None:
    """Once an answer of their model was long: of a client that reads none, one is begun."""
    with running(tmp_path, CROWDED) as rig:
        first, deaf = rig.connect(WIDE_HELLO), rig.connect(CLOSED)
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
    deaf = rig.connect(CLOSED)
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
        crowd = [rig.connect(HELLO + WIDE) for _ in range(12)]
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
        good = rig.connect(HELLO + WIDE)
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
    options = ExpressOptions(max_receive_bytes=32 << 20, least_open_bytes=2 << 20)
    with running(tmp_path, options) as rig:
        left = {rig.connect(CLOSED): prefixed(bytes(2 << 20)) for _ in range(10)}
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
        crowd = [rig.connect(HELLO + WIDE) for _ in range(6)]
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
        good = rig.connect(HELLO + WIDE)
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
            client = rig.connect(HELLO + WIDE)
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
