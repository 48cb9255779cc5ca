"""Requests that a round brings for one method are handed over and answered together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.frontends.express.rig import BURST, FAIL, Rig, head, running
from tests.frontends.express.wire import HELLO, PATH, data_frame, prefixed
from tfs.core.call import BurstCall
from tfs.core.errors import Code, DeadlineExceeded, NotFound
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode, Setting
from tfs.frontends.http2.state import ConnectionLimits


def ask(
    stream_id: int, body: bytes, path: str = BURST, *extra: tuple[str, str]
) -> bytes:
    """Returns a whole request."""
    return head(stream_id, path, *extra) + data_frame(stream_id, prefixed(body))


def answer_all(calls: Sequence[BurstCall]) -> None:
    calls[0].reply_all(calls, [bytes(call.message) * 2 for call in calls])


def test_a_round_is_one_burst_over_all_connections(rig: Rig) -> None:
    """What several clients sent is one burst; each gets its own answers, in one write."""
    rig.on_burst = answer_all
    clients = [rig.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(b"".join(ask(n, b"%d%d" % (number, n)) for n in (1, 3, 5)))
    rig.step()
    assert [len(burst) for burst in rig.bursts] == [9]
    for number, client in enumerate(clients):
        for n in (1, 3, 5):
            answer = client.answer(n)
            assert answer.messages == [b"%d%d" % (number, n) * 2]
            assert answer.status == "0"
    assert not any(c.streams for c in rig.connections())
    assert rig.transport.budget.used_bytes == 0


def test_bursts_keep_the_order_of_methods(rig: Rig) -> None:
    """A request of another method is handled after those that came before it."""
    client = rig.connect()
    client.send(ask(1, b"a") + ask(3, b"b") + ask(5, b"c", PATH) + ask(7, b"d"))
    rig.step()
    assert rig.served == [b"a", b"b", b"c", b"d"]
    assert [len(burst) for burst in rig.bursts] == [2, 1]


def test_requests_in_several_frames_are_handed_over_with_the_others(rig: Rig) -> None:
    """It makes no difference to a handler in how many frames a request came."""
    client = rig.connect()
    parts = data_frame(3, prefixed(b"bcd")[:-2], 0) + data_frame(3, b"cd")
    client.send(
        ask(1, b"a") + head(3, BURST) + parts + ask(5, b"e") + ask(7, b"f", PATH)
    )
    rig.step()
    assert [[bytes(call.message) for call in burst] for burst in rig.bursts] == [
        [b"a", b"bcd", b"e"]
    ]
    assert rig.served == [b"a", b"bcd", b"e", b"f"]
    answer_all(rig.bursts[0])
    rig.step()
    assert client.answer(3).messages == [b"bcdbcd"]


def test_requests_in_several_frames_follow_those_of_other_methods(rig: Rig) -> None:
    """What came before for another method is handed over before them."""
    client = rig.connect()
    other = head(3, PATH) + data_frame(3, prefixed(b"b"), 0) + data_frame(3, b"")
    client.send(ask(1, b"a") + other + ask(5, b"c"))
    rig.step()
    assert rig.served == [b"a", b"b", b"c"]


def test_a_request_reset_at_once_is_handed_over_cancelled(rig: Rig) -> None:
    """Its handler sees it and hears that nobody waits for it any more."""
    client = rig.connect()
    client.send(ask(1, b"a") + ask(3, b"b") + frames.rst_stream(1, ErrorCode.CANCEL))
    rig.step()
    (burst,) = rig.bursts
    assert [call.cancel.error is not None for call in burst] == [True, False]
    assert burst[0].cancel.error is not None
    assert burst[0].cancel.error.code is Code.CANCELLED
    answer_all(burst)
    rig.step()
    assert client.answer(3).messages == [b"bb"]
    assert not client.answer(1).headers
    assert rig.transport.clients.counters.late_finishes == 1


@pytest.mark.parametrize("ending", ["reset", "lost", "late"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_ended_harms_none_that_came_with_it(
    rig: Rig, ending: str, fails: bool
) -> None:
    """A handler that answers at once finds it ended; the others get their answers."""

    def answer(calls: Sequence[BurstCall]) -> None:
        for call in calls:
            if fails and bytes(call.message) == b"a":
                call.fail(NotFound("no such model"))
            else:
                call.reply(bytes(call.message))

    rig.on_burst = answer
    first, second = rig.connect(), rig.connect()
    after = {
        "reset": frames.rst_stream(1, ErrorCode.CANCEL),
        "lost": frames.frame(0x3, 0, 1, b"too short"),
        "late": b"",
    }[ending]
    extra = (("grpc-timeout", "1n"),) if ending == "late" else ()
    first.send(ask(1, b"a", BURST, *extra) + ask(3, b"d") + after)
    second.send(ask(1, b"b") + ask(3, b"c"))
    if ending == "late":
        rig.clock.advance(0.1)
    rig.settle()
    assert [second.answer(n).messages for n in (1, 3)] == [[b"b"], [b"c"]]
    assert [second.answer(n).status for n in (1, 3)] == ["0", "0"]
    if ending == "reset":
        assert not first.answer(1).headers
    if ending != "lost":
        assert first.answer(3).messages == [b"d"]
    assert rig.transport.clients.counters.handler_failures == 0
    assert not any(c.state.num_cut_off for c in rig.connections())


def test_a_lost_connection_still_hands_over(rig: Rig) -> None:
    """Requests of a client that breaks the rules right behind them are known to end."""
    client = rig.connect()
    client.send(ask(1, b"a") + frames.frame(0x3, 0, 1, b"too short"))
    rig.settle()
    (burst,) = rig.bursts
    assert burst[0].cancel.error is not None


def test_a_deadline_that_passes_at_once_is_told_to_the_handler(rig: Rig) -> None:
    """A request whose deadline passes in the round of its arrival is still handed over."""
    client = rig.connect()
    client.send(ask(1, b"a", BURST, ("grpc-timeout", "1m")))
    rig.step()
    rig.advance(1.0)
    (burst,) = rig.bursts
    assert isinstance(burst[0].cancel.error, DeadlineExceeded)
    assert client.answer(1).status == str(int(Code.DEADLINE_EXCEEDED))


def test_a_burst_handler_that_raises_fails_its_calls(rig: Rig) -> None:
    """Those not answered yet fail with INTERNAL; the connection goes on."""
    client = rig.connect()

    def answer_one(calls: Sequence[BurstCall]) -> None:
        calls[0].reply(b"fine")
        raise ValueError("meant to fail")

    rig.on_burst = answer_one
    client.send(ask(1, b"a") + ask(3, b"b") + ask(5, b"c"))
    rig.step()
    assert client.answer(1).messages == [b"fine"]
    for stream_id in (3, 5):
        assert client.answer(stream_id).status == str(int(Code.INTERNAL))
    client.send(ask(7, b"d", PATH))
    rig.step()
    assert client.answer(7).status == "0"


def test_answers_from_another_thread_are_sent(rig: Rig) -> None:
    """``reply_all`` may come from anywhere."""
    client = rig.connect()
    client.send(ask(1, b"a") + ask(3, b"b"))
    rig.step()
    thread = threading.Thread(target=answer_all, args=rig.bursts)
    thread.start()
    thread.join()
    rig.step()
    assert [client.answer(n).messages for n in (1, 3)] == [[b"aa"], [b"bb"]]


def test_calls_that_ended_are_left_out(rig: Rig) -> None:
    """A call that was answered before the others of its burst keeps that answer."""
    client = rig.connect()
    client.send(ask(1, b"a") + ask(3, b"b"))
    rig.step()
    (burst,) = rig.bursts
    burst[0].reply(b"first")
    answer_all(burst)
    rig.step()
    assert [client.answer(n).messages for n in (1, 3)] == [[b"first"], [b"bb"]]
    assert rig.transport.clients.counters.late_finishes == 1


@pytest.mark.parametrize("window", [0, 3, 9, 40])
def test_answers_keep_to_the_clients_windows(rig: Rig, window: int) -> None:
    """What does not fit waits, whole answers go first; nothing is lost or repeated."""
    rig.on_burst = answer_all
    hello = frames.settings({Setting.INITIAL_WINDOW_SIZE: window})
    client = rig.connect(HELLO[:24] + hello)
    bodies = {n: b"%d" % n * (n + 1) for n in (1, 3, 5, 7)}
    client.send(b"".join(ask(n, body) for n, body in bodies.items()))
    rig.settle()
    for n, body in bodies.items():
        if len(body) * 2 + 5 <= window:
            assert client.answer(n).messages == [body * 2]
    client.send(
        b"".join(
            frames.window_update(n, 1000)
            for n in bodies
            if not client.answer(n).has_ended
        )
    )
    rig.settle()
    for n, body in bodies.items():
        assert client.answer(n).messages == [body * 2]


def test_long_answers_take_the_ordinary_way(tmp_path: Path) -> None:
    """Small and long answers, and one that is longer than the server sends."""
    limits = ConnectionLimits(max_message_bytes=100_000)
    with running(tmp_path, ExpressOptions(limits=limits)) as rig:
        sizes = {1: 10, 3: 4096, 5: 4097, 7: 60_000, 9: 100_001}
        rig.on_burst = lambda calls: calls[0].reply_all(
            calls, [b"x" * int(bytes(call.message)) for call in calls]
        )
        client = rig.connect()
        client.send(frames.window_update(0, 1 << 20))
        client.send(b"".join(ask(n, b"%d" % size) for n, size in sizes.items()))
        rig.settle()
        for n, size in sizes.items():
            answer = client.answer(n)
            if size > limits.max_message_bytes:
                assert answer.status == str(int(Code.RESOURCE_EXHAUSTED))
            else:
                assert [len(message) for message in answer.messages] == [size]


def test_another_methods_failure_is_its_own(rig: Rig) -> None:
    """A handler that raises between two bursts takes neither with it."""
    rig.on_burst = answer_all
    client = rig.connect()
    client.send(ask(1, b"a") + ask(3, b"x", FAIL) + ask(5, b"b"))
    rig.step()
    assert [client.answer(n).status for n in (1, 3, 5)] == ["0", "13", "0"]
