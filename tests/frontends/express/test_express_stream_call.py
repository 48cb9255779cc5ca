"""Calls with streams of messages, whose handlers listen, answer and are told of the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    BOTH,
    STREAM,
    Rig,
    head,
    running,
)
from tests.frontends.express.wire import (
    CLOSED_HELLO,
    data_frame,
    prefixed,
    request,
)
from tfs.core.call import StreamCall
from tfs.core.errors import Code
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames


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
    assert rig.transport.budget.used_bytes == 0


def test_a_handler_hears_of_messages_whose_answers_are_not_read(rig: Rig) -> None:
    """What becomes of them is the handler's to say, by what send tells it."""
    client = rig.connect(CLOSED_HELLO)
    sent: list[bool] = []

    def listen(call: StreamCall) -> None:
        call.on_message(lambda message: sent.append(call.send(bytes(1 << 20))))

    rig.on_stream = listen
    client.send(head(1, BOTH) + data_frame(1, prefixed(b"?") * 10, 0) + request(3))
    client.send(frames.window_update(3, 1000))
    rig.settle()
    assert sent == [True] * 4 + [False] * 5
    assert client.answer(3).messages == [b"ping"]


@pytest.mark.parametrize(
    "later",
    [
        data_frame(1, prefixed(b"not zipped", compressed=True), 0),
        data_frame(1, b"\x02" + prefixed(b"no such flag"), 0),
        data_frame(1, prefixed(b"too long")[:1] + b"\xff" * 4, 0),
    ],
    ids=["damaged", "no-flag", "too-long"],
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
    client = rig.connect(CLOSED_HELLO)
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


def test_a_stream_of_answers_is_refused_where_others_wait(tmp_path: Path) -> None:
    """A connection may have a quarter of the budget unread; a first message is sent."""
    options = ExpressOptions(max_receive_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        client = rig.connect(CLOSED_HELLO)
        for stream_id in (1, 3, 5):
            client.send(
                head(stream_id, STREAM) + data_frame(stream_id, prefixed(b"go"))
            )
        rig.settle()
        first, second, third = rig.streams
        assert first.send(bytes(130_000))
        assert second.send(bytes(130_000))
        rig.settle()
        assert not first.send(bytes(10_000))
        assert not second.send(bytes(10_000))
        assert third.send(b"first")
