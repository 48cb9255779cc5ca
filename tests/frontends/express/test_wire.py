"""What a socket does not take at once: sent as its client reads, and bounded until then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    Rig,
    head,
    hold,
    running,
)
from tests.frontends.express.wire import (
    CLOSED_HELLO,
    WIDE_HELLO,
    prefixed,
    request,
)
from tfs.frontends.express.client_state import ExpressOptions


def test_a_reply_goes_before_the_rest_of_a_large_one(tmp_path: Path) -> None:
    """Who has more to write than one round takes comes last in the next."""
    with running(tmp_path) as rig:
        large, other = rig.connect(WIDE_HELLO), rig.connect()
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


def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Once its answers pile up its requests wait in the kernel, and go on later."""
    options = ExpressOptions(max_unsent_bytes=100_000)
    with running(tmp_path, options) as rig:
        client = rig.connect(WIDE_HELLO)
        body = b"x" * 50_000
        num_sent = 0
        for index in range(800):
            data = request(2 * index + 1, body)
            if client.send_some(data) < len(data):
                break  # a cut request: nothing may follow it
            num_sent += 1
            rig.step()
        assert 0 < len(rig.served) < num_sent
        (session,) = rig.transport.clients.sessions
        assert session.wire.unsent_bytes < 100_000 + 32 * 50_000
        last = 2 * num_sent - 1
        for _ in range(2000):
            rig.step()
            if client.answer(last).has_ended:
                break
        assert client.answer(last).messages == [body]


def test_large_answers_are_sent_as_the_client_reads(rig: Rig) -> None:
    """More than the socket takes at once arrives whole and in order."""
    client = rig.connect(WIDE_HELLO)
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


def test_answers_that_wait_let_go_of_their_batch_in_portions(rig: Rig) -> None:
    """A part of a batch would keep the whole of it; copying all at once would take long."""
    client = rig.connect(CLOSED_HELLO)
    client.send(b"".join(hold(stream_id) for stream_id in (1, 3, 5, 7)))
    rig.step()
    size = 5 << 20
    batch = bytearray(4 * size)
    for index, call in enumerate(rig.held):
        call.reply_parts([memoryview(batch)[index * size : (index + 1) * size]])
    rig.step()
    with pytest.raises(BufferError):
        batch.clear()
    rig.settle()
    batch.clear()
