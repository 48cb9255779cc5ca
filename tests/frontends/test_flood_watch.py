"""Who floods grpcio's server goes; who asks for something stays."""

from __future__ import annotations

from tfs.frontends.rpc.grpcio.connections import Traffic
from tfs.frontends.rpc.grpcio.flood_watch import FLOOD_LOOK_S, FloodWatch

PEER = "ipv4:1"
_MIB = 1 << 20


class Rig:
    """A watch of one connection. Nothing happens but what the test does."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.num_surveys = 0
        self.received_bytes = 0
        self.acked_bytes = 0
        self.is_reading = False
        self.is_gone = False
        self.watch = FloodWatch(
            self,
            lambda peer: self.is_reading,
            lambda: self.now_s,
            _MIB // 2,
            lambda: self.cpu_s,
        )

    def survey(self) -> dict[str, Traffic]:
        self.num_surveys += 1
        if self.is_gone:
            return {}
        return {PEER: Traffic(self.received_bytes, self.acked_bytes, 0)}

    def disconnect(self, peer: str) -> bool:
        assert peer == PEER
        self.is_gone = True
        return True

    def look(
        self,
        received_bytes: int = 0,
        after_s: float = FLOOD_LOOK_S,
        load: float = 1.0,
    ) -> None:
        """Looks once, after so many more bytes have come and so much was computed."""
        self.received_bytes += received_bytes
        self.now_s += after_s
        self.cpu_s += load * after_s
        self.watch.look()


def test_who_sends_frames_and_no_calls_goes() -> None:
    """A megabyte may come at once, and 64 KB a second; no more."""
    rig = Rig()
    rig.look(_MIB)
    rig.look(6000)
    assert not rig.is_gone
    rig.look(20_000)
    assert rig.is_gone


def test_bytes_of_messages_and_calls_are_no_flood() -> None:
    """Gigabytes of them in a second are honest work."""
    rig = Rig()
    for _ in range(100):
        rig.watch.note_call(PEER)
        rig.watch.note_message(PEER, 10 * _MIB)
        rig.look(10 * _MIB + 60_000)
    assert not rig.is_gone


def test_a_request_that_is_read_is_no_flood_until_it_is_whole() -> None:
    """Its length is not known before; afterwards it is accounted for."""
    rig = Rig()
    rig.is_reading = True
    for _ in range(30):
        rig.look(_MIB)
    assert not rig.is_gone
    rig.is_reading = False
    rig.watch.note_message(PEER, 30 * _MIB)
    rig.look()
    assert not rig.is_gone


def test_giving_up_uploads_now_and_then_is_no_flood() -> None:
    """What was sent of them is forgotten; again and again, it is not."""
    rig = Rig()
    for _ in range(20):
        rig.is_reading = True
        rig.look(5 * _MIB)
        rig.is_reading = False
        rig.watch.note_unfinished(PEER)
        rig.look(after_s=1.0)
    assert not rig.is_gone
    for _ in range(200):
        rig.watch.note_unfinished(PEER)
        rig.look(5 * _MIB)
    assert rig.is_gone


def test_window_updates_of_who_takes_long_answers_are_no_flood() -> None:
    """They come by the bytes that the client took."""
    rig = Rig()
    for _ in range(100):
        rig.acked_bytes += 20 * _MIB
        rig.look(_MIB)
    assert not rig.is_gone


def test_who_resets_calls_by_the_hundred_goes() -> None:
    """Five hundred at once may be given up, and fifty a second."""
    rig = Rig()
    for _ in range(500):
        rig.watch.note_reset(PEER)
    rig.look()
    for _ in range(20):
        for _ in range(50):
            rig.watch.note_reset(PEER)
        rig.look(after_s=1.0)
    assert not rig.is_gone
    for _ in range(60):
        rig.watch.note_reset(PEER)
    rig.look()
    assert rig.is_gone


def test_who_hedges_calls_and_takes_answers_stays() -> None:
    """Ten calls may be given up for each that is answered."""
    rig = Rig()
    for _ in range(100):
        for _ in range(100):
            rig.watch.note_call(PEER)
            rig.watch.note_reset(PEER)
        for _ in range(10):
            rig.watch.note_answer(PEER)
        rig.look()
    assert not rig.is_gone


def test_an_idle_server_looks_at_its_clients_now_and_then() -> None:
    """A flood keeps it busy, and is seen at once, however long nothing happened."""
    rig = Rig()
    for _ in range(95):
        rig.look(load=0.01)
    assert rig.num_surveys == 0
    rig.look(2 * _MIB)
    assert rig.is_gone
    for _ in range(205):
        rig.look(load=0.01)
    assert rig.num_surveys == 3
