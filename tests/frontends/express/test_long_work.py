"""What is long waits in one line behind what is short, and a round does one piece of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.frontends.express.rig import (
    BURST,
    GROW,
    RawClient,
    Rig,
    head,
    hold,
    running,
)
from tests.frontends.express.wire import PATH, WIDE_HELLO, data_frame, prefixed
from tfs.frontends.budget import LONG_BYTES
from tfs.frontends.express.client_state import ExpressOptions

_PIECE: Final = 20_000
_BODY: Final = 9_000
_ANSWER: Final = bytes(_BODY)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    options = ExpressOptions(max_piece_bytes=_PIECE, max_unsent_bytes=_PIECE)
    with running(tmp_path, options) as rig:
        rig.on_burst = lambda calls: calls[0].reply_all(calls, [_ANSWER] * len(calls))
        yield rig


def _requests(num: int, first: int = 1) -> bytes:
    """Returns that many requests of which two and a bit fill a piece."""
    return b"".join(
        head(stream_id, BURST) + data_frame(stream_id, prefixed(bytes(_BODY)))
        for stream_id in range(first, first + 2 * num, 2)
    )


def _all_but_the_end(
    rig: Rig, client: RawClient, message: bytes, path: str = PATH
) -> bytes:
    """Uploads a long request but for its last byte, which it returns."""
    client.send(head(1, path))
    left = prefixed(message)
    while len(left) > 1:
        rig.step()
        left = client.upload_politely(1, left, min(5_000, len(left) - 1))
    rig.settle()
    return left


def test_a_round_hands_over_one_long_request_and_all_short_ones(rig: Rig) -> None:
    """Long requests that come together are begun one a round, behind short ones."""
    clients = [rig.connect(WIDE_HELLO) for _ in range(3)]
    messages = [bytes([number]) * LONG_BYTES for number in (1, 2, 3)]
    ends = [
        _all_but_the_end(rig, client, message)
        for client, message in zip(clients, messages, strict=True)
    ]
    quiet = rig.connect()
    for client, end in zip(clients, ends, strict=True):
        client.send(data_frame(1, end))
    quiet.send(head(1) + data_frame(1, prefixed(b"short")))
    rig.step()
    assert rig.served == [b"short", messages[0]]
    assert quiet.answer(1).messages == [b"short"]
    rig.step()
    assert rig.served[2:] == [messages[1]]
    rig.settle()
    assert [client.answer(1).messages for client in clients] == [[m] for m in messages]


def test_who_fills_a_read_is_read_on_behind_the_others(rig: Rig) -> None:
    """In the round in which it comes, a client's flood is read once before all answers."""
    flood, quiet = rig.connect(), rig.connect()
    flood.send(_requests(6))
    quiet.send(head(1) + data_frame(1, prefixed(b"short")))
    rig.step()
    assert sorted(map(len, rig.served)) == [len(b"short"), _BODY, _BODY]
    assert quiet.answer(1).messages == [b"short"]
    rig.settle()
    assert len(rig.served) == 7


def test_a_round_writes_one_piece_of_all_long_answers(rig: Rig) -> None:
    """However many clients take long answers, a request waits for one piece of them."""
    clients = [rig.connect(WIDE_HELLO) for _ in range(3)]
    for client in clients:
        client.send(hold(1))
    rig.settle()
    for call in rig.held:
        call.reply(bytes(4 * LONG_BYTES))
    for num_pieces in (1, 2, 3):
        rig.step()
        for client in clients:
            client.read()
        assert (
            sum(len(client.answer(1).body) for client in clients) == num_pieces * _PIECE
        )


def test_who_takes_no_answers_is_read_no_further(rig: Rig) -> None:
    """That its reads are full makes no difference: what it is sent waits in memory."""
    client = rig.connect(WIDE_HELLO)
    flood = b"".join(_requests(4, first) for first in range(1, 8 * 100, 8))
    num_sent = size = 0
    for _ in range(500):
        num_sent += (size := client.send_some(flood[num_sent:]))
        rig.step()
    assert not size
    assert num_sent < len(flood) // 2
    assert not client.is_closed


@pytest.mark.parametrize("is_answer", [False, True], ids=["read", "answered"])
def test_long_requests_that_take_more_wait_neither_for_themselves_nor_for_each_other(
    tmp_path: Path, is_answer: bool
) -> None:
    """What a long request holds already is part of the room that its handler asks for."""
    with running(tmp_path, ExpressOptions(max_receive_bytes=1 << 20)) as rig:
        clients = [rig.connect(WIDE_HELLO) for _ in range(2)]
        message = bytes(160_000)
        rig.room_bytes, rig.is_all = (4 if is_answer else 2) * len(message), is_answer
        ends = [_all_but_the_end(rig, each, message, GROW) for each in clients]
        for client, end in zip(clients, ends, strict=True):
            client.send(data_frame(1, end))
        rig.settle()
        assert len(rig.held) == 1  # there is room for one at a time
        rig.held[0].reply(b"")
        rig.settle()
        assert len(rig.held) == 2
        rig.held[1].reply(b"")
        rig.settle()
        assert [client.answer(1).messages for client in clients] == [[b""], [b""]]
        assert rig.transport.budget.used_bytes == 0
