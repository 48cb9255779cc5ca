"""Compressed messages: unpacked in order, within bounds, and only for who still waits."""

from __future__ import annotations

import gc
import gzip
from pathlib import Path

import pytest

from tests.frontends.express.rig import (
    BOTH,
    HOLD,
    Rig,
    head,
    num_of,
    running,
)
from tests.frontends.express.wire import (
    PATH,
    WIDE_HELLO,
    data_frame,
    prefixed,
)
from tfs.core.call import StreamCall
from tfs.core.errors import Code
from tfs.frontends import inflation
from tfs.frontends.express.call import ExpressCall
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.state import ConnectionLimits
from tfs.testing.held_executor import HeldExecutor


def gzipped(stream_id: int, num_bytes: int, path: str = HOLD) -> bytes:
    """Returns a call whose message unpacks to so many bytes."""
    body = prefixed(gzip.compress(bytes(num_bytes)), compressed=True)
    return head(stream_id, path, ("grpc-encoding", "gzip")) + data_frame(
        stream_id, body
    )


def test_a_gzip_request_is_decompressed(rig: Rig) -> None:
    """Only messages with the flag; the order of messages stays."""
    heard: list[bytes] = []

    def listen(call: StreamCall) -> None:
        heard.append(bytes(call.message))
        call.on_message(lambda message: heard.append(bytes(message)))
        call.on_half_close(call.finish)

    rig.on_stream = listen
    client = rig.connect()
    letters = prefixed(gzip.compress(b"b" * 1000), compressed=True)
    client.send(
        head(1, BOTH, ("grpc-encoding", "gzip"))
        + data_frame(1, prefixed(b"a") + letters + prefixed(b"c") + letters)
    )
    client.send(head(3, PATH, ("grpc-encoding", "gzip")) + data_frame(3, letters))
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


def test_what_gzip_unpacks_to_is_admitted_before_it_is_unpacked(tmp_path: Path) -> None:
    """It counts as what it becomes, until it is answered; another one waits for it."""
    options = ExpressOptions(max_receive_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        client.send(gzipped(1, 600_000) + gzipped(3, 600_000))
        rig.settle()
        assert [len(call.message) for call in rig.held] == [600_000]
        assert rig.transport.budget.used_bytes > 600_000
        rig.held.pop().reply(b"done")
        rig.settle()
        assert [len(call.message) for call in rig.held] == [600_000]
        rig.held.pop().reply(b"done")
        rig.settle()
        assert rig.transport.budget.used_bytes <= 0


def test_a_message_behind_one_that_is_unpacked_leaves_nothing(tmp_path: Path) -> None:
    """What was admitted of the second message of a call that takes one is given back."""
    options = ExpressOptions(max_receive_bytes=4 << 20)
    with running(tmp_path, options, executor=(executor := HeldExecutor())) as rig:
        client = rig.connect(WIDE_HELLO)
        first = prefixed(gzip.compress(bytes(600_000)), compressed=True)
        begun = prefixed(bytes(300_000))[:70_000]
        client.send(
            head(1, HOLD, ("grpc-encoding", "gzip"))
            + data_frame(1, first, 0)
            + b"".join(
                data_frame(1, begun[at : at + 10_000], 0)
                for at in range(0, len(begun), 10_000)
            )
        )
        rig.settle()
        used_bytes = rig.transport.budget.used_bytes
        assert used_bytes > 300_000
        executor.run_held()
        rig.settle()
        assert rig.transport.budget.used_bytes > used_bytes + 600_000
        client.send(frames.rst_stream(1, ErrorCode.CANCEL))
        rig.settle()
        assert rig.transport.budget.used_bytes == 0


def test_waiting_for_the_server_is_not_held_against_the_client(tmp_path: Path) -> None:
    """However many of its calls wait, and are refused in time, it keeps its connection."""
    options = ExpressOptions(max_receive_bytes=1 << 20)
    with running(tmp_path, options) as rig:
        client = rig.connect()
        refused = range(3, 3 + 2 * 50, 2)
        for stream_id in (1, *refused):
            client.send(gzipped(stream_id, 600_000))
            rig.settle()
        for _ in range(12):
            rig.advance(1.0)
        statuses = {client.answer(stream_id).status for stream_id in refused}
        assert statuses == {str(int(Code.RESOURCE_EXHAUSTED))}
        assert client.goaway is None
        assert client.answer(1).status is None
        rig.held.clear()


def test_whatever_unpacking_raises_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller without a deadline would wait for ever for memory that there is not."""

    def no_memory(*args: object) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr(inflation, "unpack", no_memory)
    client = rig.connect()
    client.send(gzipped(1, 100_000, PATH))
    rig.settle()
    assert client.answer(1).status == str(int(Code.INTERNAL))
    assert rig.transport.budget.used_bytes <= 0


def test_what_nobody_waits_for_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that sends bombs and leaves costs no more than what it sent."""
    unpacked = []
    monkeypatch.setattr(inflation, "measure", lambda *args: unpacked.append(args))
    executor = HeldExecutor()
    with running(tmp_path, executor=executor) as rig:
        client = rig.connect()
        client.send(gzipped(1, 600_000, PATH))
        rig.settle()
        client.close()
        rig.settle()
        assert len(executor.held) == 1
        executor.run_held()
        rig.settle()
        assert not unpacked
        assert rig.transport.clients.counters.failures == 0


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
