"""Annoyances are tolerated in proportion to the requests that come with them."""

from __future__ import annotations

import contextlib

import pytest

from tfs.frontends.rpc.express.http2.patience import Annoyance, Patience
from tfs.frontends.rpc.frames import ConnectionFault, ErrorCode


def test_a_flood_runs_out_of_patience() -> None:
    """The bucket's worth of frames, then ENHANCE_YOUR_CALM."""
    patience = Patience(0.0)
    for _ in range(400):
        patience.spend(Annoyance.PING, 0.0, 0)
    with pytest.raises(ConnectionFault) as caught:
        patience.spend(Annoyance.PING, 0.0, 0)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_client_that_gets_answers_may_cancel_as_often() -> None:
    """Hedged requests are cancelled by the thousand, and are no attack."""
    patience = Patience(0.0)
    for num_answered in range(1, 20_000):
        patience.spend(Annoyance.RST_STREAM, 0.0, num_answered)
    assert _num_left(patience, Annoyance.RST_STREAM, 0.0, 19_999) == 1051


def test_messages_are_followed_by_window_updates() -> None:
    """Two small updates per message sent cost nothing; further ones are charged."""
    patience = Patience(0.0)
    patience.spend(Annoyance.PING, 0.0, 1000)
    patience.spend(Annoyance.TINY_WINDOW_UPDATE, 0.0, 1000, 2000)
    assert _num_left(patience, Annoyance.PING, 0.0, 1000) == 399
    with pytest.raises(ConnectionFault):
        patience.spend(Annoyance.TINY_WINDOW_UPDATE, 0.0, 1000, 1001)


def test_time_restores_patience() -> None:
    """A slow trickle of pings never closes a connection."""
    patience = Patience(0.0)
    for second in range(5000):
        for _ in range(20):
            patience.spend(Annoyance.PING, float(second), 0)
    assert _num_left(patience, Annoyance.PING, 4999.0, 0) == 380


def _num_left(patience: Patience, what: Annoyance, now_s: float, num_sent: int) -> int:
    """Returns how many more at once are put up with."""
    num = 0
    with contextlib.suppress(ConnectionFault):
        while True:
            patience.spend(what, now_s, num_sent)
            num += 1
    return num


def test_long_silence_earns_no_more_than_the_bucket() -> None:
    """Waiting a day does not pay for a flood."""
    patience = Patience(0.0)
    patience.spend(Annoyance.PING, 86_400.0, 10**9)
    for _ in range(399):
        patience.spend(Annoyance.PING, 86_400.0, 10**9)
    with pytest.raises(ConnectionFault):
        patience.spend(Annoyance.PING, 86_400.0, 10**9)


@pytest.mark.parametrize(
    "name",
    ["PING", "RST_STREAM", "EMPTY_DATA", "PRIORITY", "REFUSED_STREAM", "NO_ROOM"],
)
def test_the_reason_names_what_there_was_too_much_of(name: str) -> None:
    """The reason names the right kind of frame, even if two kinds cost the same."""
    what = Annoyance[name]
    assert what.name == name
    with pytest.raises(ConnectionFault, match=f"too many {what.words} without"):
        Patience(0.0).spend(what, 0.0, 0, 2001)
