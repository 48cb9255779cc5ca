"""The table of hostile clients: what each does, how it ends, and who is served beside it.

The promise is about memory, so after each the budget is where it was, and at no moment
was it exceeded. ``tests/e2e/test_hostile_memory.py`` measures some of these on a server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.frontends.express.rig import HOLD, RawClient, Rig, head, hold, running
from tests.frontends.express.wire import (
    BLOCK,
    CLOSED_HELLO,
    HELLO,
    PATH,
    WIDE_HELLO,
    data_frame,
    grpc_headers,
    headers_frame,
    literal_block,
    prefixed,
    request,
)
from tfs.core.errors import Code
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode, FrameType, Setting

LIMIT: Final = 16 << 20
OPTIONS: Final = ExpressOptions(max_receive_bytes=LIMIT, no_progress_timeout_s=10.0)
SHORT: Final = literal_block(grpc_headers(("content-length", "1")))
GOOD: Final = b"\x0a\x07\x0a\x05short"  # names a model of its own
EXHAUSTED: Final = str(int(Code.RESOURCE_EXHAUSTED))


@dataclass(frozen=True, slots=True)
class Hostile:
    """One kind of client.

    Attributes:
        piece: Returns what it sends next.
        hello: How it begins.
        num_pieces: How many of these it sends at most.
        step_s: Seconds between two of them.
        reason: Words of the GOAWAY that ends its connection; "" if that may stay.
        num_clients: How many do the same.
        reads: Whether it reads what it is sent.
        answers: Statuses that its calls end with; empty if they get none.

    """

    piece: Callable[[int], bytes]
    hello: bytes = HELLO
    num_pieces: int = 5000
    step_s: float = 0.0
    reason: str = ""
    num_clients: int = 1
    reads: bool = True
    answers: frozenset[str] = frozenset()


def _stream(index: int) -> int:
    return 2 * index + 1


def _begun(size: int, num_bytes: int) -> Callable[[int], bytes]:
    """Begins a request on each new stream and leaves it there."""
    data = prefixed(bytes(size))[:num_bytes]

    def piece(index: int) -> bytes:
        parts = [
            data_frame(_stream(index), data[start : start + 16_384], 0)
            for start in range(0, len(data), 16_384)
        ]
        return head(_stream(index)) + b"".join(parts)

    return piece


def _trickle(index: int) -> bytes:
    begun = head(1) + data_frame(1, prefixed(bytes(1 << 20))[:5], 0)
    return (begun if index == 0 else b"") + data_frame(1, b"x" * 100, 0)


HOSTILE: Final = {
    "resets its calls at once (CVE-2023-44487)": Hostile(
        lambda index: (
            hold(_stream(index)) + frames.rst_stream(_stream(index), ErrorCode.CANCEL)
        ),
        reason="RST_STREAM",
    ),
    "makes the server reset its calls (CVE-2025-8671)": Hostile(
        lambda index: head(_stream(index)) + frames.window_update(_stream(index), 0),
        reason="stream errors",
    ),
    "makes it reset by a body that is too long (CVE-2025-8671)": Hostile(
        lambda index: (
            headers_frame(_stream(index), SHORT)
            + data_frame(_stream(index), prefixed(b"longer"))
        ),
        reason="stream errors",
    ),
    "sends CONTINUATION without end (CVE-2024-27316)": Hostile(
        lambda index: (
            headers_frame(1, b"", flags=0)
            if index == 0
            else frames.frame(FrameType.CONTINUATION, 0, 1, b"x" * 600)
        ),
        reason="header block",
    ),
    "sends PING without end": Hostile(
        lambda index: frames.ping(b"12345678"), reason="PING"
    ),
    "sends SETTINGS without end": Hostile(
        lambda index: frames.settings({Setting.MAX_FRAME_SIZE: 20_000}),
        reason="SETTINGS",
    ),
    "sends PRIORITY without end": Hostile(
        lambda index: frames.frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\x10"),
        reason="ignored frames",
    ),
    "sends empty DATA without end": Hostile(
        lambda index: (head(1) if index == 0 else b"") + data_frame(1, b"", 0),
        reason="empty DATA",
    ),
    "unpacks ten thousand headers from ten kilobytes": Hostile(
        lambda index: (
            headers_frame(1, BLOCK + b"\x40\x01k\x7f\xa1\x1e" + b"v" * 4000)
            if index == 0
            else headers_frame(_stream(index), BLOCK + b"\xbe" * 10_000)
        ),
        reason="header",
    ),
    "opens no window for its answers": Hostile(
        lambda index: request(_stream(index), bytes(48_000)),
        hello=CLOSED_HELLO,
        num_pieces=40,
        num_clients=20,
        answers=frozenset({EXHAUSTED}),
    ),
    "opens windows and reads nothing": Hostile(
        lambda index: request(_stream(index), bytes(48_000)),
        hello=WIDE_HELLO,
        num_pieces=40,
        num_clients=20,
        reads=False,
    ),
    "asks for answers of a megabyte and opens no window": Hostile(
        lambda index: hold(_stream(index)),
        hello=CLOSED_HELLO,
        num_pieces=10,
        num_clients=20,
        answers=frozenset({EXHAUSTED}),
    ),
    "sends 48 KB of a megabyte, as one of many": Hostile(
        _begun(1 << 20, 48_000),
        num_pieces=1,
        num_clients=600,
        answers=frozenset({EXHAUSTED, str(int(Code.DEADLINE_EXCEEDED))}),
    ),
    "sends all but the end of many requests": Hostile(
        _begun(12_000, 11_000),
        num_pieces=300,
        num_clients=10,
        answers=frozenset({EXHAUSTED, str(int(Code.DEADLINE_EXCEEDED))}),
    ),
    "trickles a body": Hostile(
        _trickle,
        num_pieces=40,
        step_s=1.0,
        answers=frozenset({str(int(Code.DEADLINE_EXCEEDED))}),
    ),
    "says nothing at all": Hostile(
        lambda index: b"", hello=b"", num_pieces=1, reason="no SETTINGS"
    ),
    "leaves a frame unfinished": Hostile(
        lambda index: frames.frame_head(FrameType.SETTINGS, 0, 0, 6),
        num_pieces=1,
        reason="unfinished frame",
    ),
    "opens streams by the thousand": Hostile(
        lambda index: head(_stream(index), HOLD),
        num_pieces=1000,
        num_clients=20,
        answers=frozenset({EXHAUSTED, str(int(Code.DEADLINE_EXCEEDED))}),
    ),
}


class Siege:
    """A rig, its hostile clients, and a good one beside them."""

    def __init__(self, rig: Rig, kind: Hostile) -> None:
        self._rig = rig
        self._kind = kind
        self._good = rig.connect(WIDE_HELLO)
        self._num_asked = 0
        self.clients = [RawClient(rig.path) for _ in range(kind.num_clients)]
        rig.clients += self.clients
        self._unsent = [kind.hello for _ in self.clients]

    def go_on(self, index: int) -> None:
        """Sends the next piece of each, and lets the server work."""
        for number, client in enumerate(self.clients):
            data = self._unsent[number] + self._kind.piece(index)
            try:
                self._unsent[number] = data[client.send_some(data) :]
            except OSError:
                client.is_closed = True
            if self._kind.reads:
                client.read()
        self.step()

    def step(self, duration_s: float = 0.0) -> None:
        rig = self._rig
        rig.clock.advance(duration_s)
        rig.settle()
        for call in rig.held:
            if bytes(call.message) == b"x":
                call.reply(bytes(1 << 20))
        rig.held.clear()
        budget = rig.transport.budget
        assert budget.used_bytes <= budget.limit_bytes

    def check_good(self) -> None:
        """A good client is answered, however many do what they do."""
        self._num_asked += 1
        stream_id = _stream(self._num_asked)
        self._good.send(head(stream_id, PATH) + data_frame(stream_id, prefixed(GOOD)))
        self.step()
        assert self._good.answer(stream_id).messages == [GOOD]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_client_is_ended_and_others_are_served(
    tmp_path: Path, name: str
) -> None:
    """It is disconnected with a named reason, or its calls end; no memory is left."""
    kind = HOSTILE[name]
    with running(tmp_path, OPTIONS) as rig:
        siege = Siege(rig, kind)
        for index in range(kind.num_pieces):
            siege.go_on(index)
            if kind.step_s:
                siege.step(kind.step_s)
            if index % 1000 == 0:
                siege.check_good()
            if not rig.connections()[1:]:
                break
        siege.check_good()
        for _ in range(25):
            siege.step(1.0)
        siege.check_good()
        for client in siege.clients:
            client.read()
        if kind.reason:
            assert all(client.is_closed for client in siege.clients)
            assert kind.reason in siege.clients[0].goaway_reason
        statuses = {
            answer.status
            for client in siege.clients
            for answer in client.answers.values()
            if answer.status is not None
        }
        assert kind.answers <= statuses
        calls = sum(len(each.streams) for each in rig.connections())
        assert calls == 0
        assert rig.transport.budget.used_bytes == 0
