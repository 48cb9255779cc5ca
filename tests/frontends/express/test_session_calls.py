"""Calls on one connection, from their first bytes until nobody works on them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    HOLD,
    STREAM,
    Rig,
    head,
    hold,
    running,
)
from tests.frontends.express.wire import (
    PATH,
    data_frame,
    headers_frame,
    prefixed,
    request,
)
from tfs.core.errors import Code
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.state import ConnectionLimits


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


@pytest.mark.parametrize("path", [PATH, HOLD])
def test_an_answered_call_leaves_no_deadline_behind(rig: Rig, path: str) -> None:
    """The loop is not woken for a call that is over, whenever it was answered."""
    client = rig.connect()
    client.send(head(1, path, ("grpc-timeout", "2S")) + data_frame(1, prefixed(b"x")))
    rig.step()
    for call in rig.held:
        call.reply(b"x")
    rig.advance(2.1)
    assert client.answer(1).messages == [b"x"]
    assert rig.transport.clients.counters.cut_off_calls == 0


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


def test_nothing_is_left_of_calls_that_are_reset_and_dropped_in_turn(rig: Rig) -> None:
    """A call may lie where one lay of which the loop has yet to hear that it is gone."""
    client = rig.connect()
    for first_id in range(1, 200, 20):
        rig.held.clear()
        for each in range(first_id, first_id + 20, 2):
            client.send(hold(each) + frames.rst_stream(each, ErrorCode.CANCEL))
        rig.step()
        assert len(rig.held) == 10
    rig.held.clear()
    rig.settle()
    assert [each.state.num_cut_off for each in rig.connections()] == [0]
    assert rig.transport.budget.used_bytes == 0


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
