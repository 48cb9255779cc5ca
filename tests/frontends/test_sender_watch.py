"""Who has a turn to send through grpcio uses it, or goes."""

from __future__ import annotations

import pytest

from tests.frontends.fake_connections import FakeConnections
from tfs.frontends.rpc.grpcio.sender_watch import LOOK_S, Look, SenderWatch, Turn

PEER = "ipv4:1"
PACE = 10_000  # at a look, of one that sends


class Rig:
    """A watch of one client, whose turn begins at 0."""

    def __init__(
        self,
        *,
        sent_bytes: int = 0,
        delivered_bytes: int = 0,
        is_new: bool = True,
        is_hurried: bool = False,
    ) -> None:
        self.now_s = 0.0
        self.connections = FakeConnections()
        self.connections.received_bytes[PEER] = sent_bytes
        self.watch = SenderWatch(self.connections)
        self.turn = Turn(
            PEER, 0.0, 0.0, 1, delivered_bytes, is_new=is_new, is_hurried=is_hurried
        )

    def look(
        self,
        num_looks: int = 1,
        pace_bytes: int = 0,
        *,
        is_contested: bool = True,
        after_s: float = LOOK_S,
    ) -> Look:
        """Looks so often; between, the client sends as many bytes as given."""
        for _ in range(num_looks):
            self.now_s += after_s
            self.connections.received_bytes[PEER] += pace_bytes
            seen = self.watch.look([self.turn], self.now_s, is_contested=is_contested)
        return seen

    @property
    def is_gone(self) -> bool:
        return bool(self.connections.gone)


@pytest.mark.parametrize("is_contested", [True, False])
def test_who_sends_nothing_goes_sooner_where_others_wait(is_contested: bool) -> None:
    """A client that stops sending has a second if others wait, else a minute."""
    rig = Rig()
    num_looks = 4 if is_contested else 240
    rig.look(num_looks, is_contested=is_contested)
    assert not rig.is_gone
    rig.look(is_contested=is_contested)
    assert rig.is_gone


def test_who_sends_has_a_minute_and_less_for_a_request_that_should_be_short() -> None:
    """A slow request has a minute if others wait, or less; else as long as it takes."""
    slow, hurried, alone = Rig(), Rig(is_hurried=True), Rig()
    hurried.look(16, PACE)
    assert not hurried.is_gone
    hurried.look(1, PACE)
    assert hurried.is_gone
    slow.look(240, PACE)
    assert not slow.is_gone
    slow.look(1, PACE)
    assert slow.is_gone
    alone.look(1000, PACE, is_contested=False)
    assert not alone.is_gone


def test_a_late_look_finds_nobody_silent() -> None:
    """A server without a processor for ten seconds disconnects nobody for that."""
    rig = Rig()
    rig.look(3)
    rig.look(after_s=10.0)
    assert not rig.is_gone
    rig.look(4)
    assert rig.is_gone


def test_what_a_client_holds_is_what_it_sent_of_requests_that_are_not_whole() -> None:
    """Bytes of whole requests do not count as held, nor those from before the turn."""
    new = Rig(sent_bytes=500_000, delivered_bytes=100_000)
    assert new.look() == Look(400_000, False)
    assert new.look(1, PACE) == Look(410_000, False)
    old = Rig(sent_bytes=500_000, is_new=False)
    assert old.look() == Look(0, False)
    assert old.look(1, PACE) == Look(10_000, False)
    assert old.look() == Look(10_000, True)


def test_a_turn_that_follows_another_begins_anew() -> None:
    """The silence of one turn is no reason to end the next turn."""
    rig = Rig(is_new=False)
    rig.look(4)
    rig.turn = Turn(PEER, 1.0, 1.0, 1, 0, is_new=False, is_hurried=False)
    assert rig.look(4) == Look(0, True)
    assert not rig.is_gone
