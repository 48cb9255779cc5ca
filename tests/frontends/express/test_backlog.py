"""Whose connection goes when answers wait that nobody takes."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.express.rig import (
    head,
    running,
)
from tests.frontends.express.wire import (
    CLOSED_HELLO,
    data_frame,
    prefixed,
    request,
)
from tfs.frontends.rpc.express.backlog import Backlog
from tfs.frontends.rpc.express.http2.headroom import Headroom
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.frames import ErrorCode


def _backlog() -> Backlog[str]:
    return Backlog(100_000)


def test_what_fits_costs_nobody_anything() -> None:
    """Nobody is cut off while everything fits, however slowly it is taken."""
    backlog = _backlog()
    backlog.note("a", 100_000, 0.0)
    assert backlog.excess(1000.0) == []


def test_who_takes_nothing_goes_before_who_has_more_waiting() -> None:
    """A large answer that is taken at a fair pace is no reason to go."""
    backlog = _backlog()
    backlog.note("idle", 10_000, 0.0)
    backlog.note("busy", 95_000, 0.0)
    for second in range(1, 5):
        backlog.note("busy", 95_000 - 1, float(second))
        backlog.note("busy", 95_000 - 20_000, float(second))
        backlog.note("busy", 95_000, float(second))
    assert backlog.excess(4.0) == ["idle"]
    backlog.note("idle", 0, 4.0)
    assert backlog.excess(4.0) == []
    assert backlog.num_bytes == 95_000


def test_a_drop_now_and_then_is_not_a_fair_pace() -> None:
    """A byte a second gains a byte's time."""
    backlog = _backlog()
    backlog.note("dribbles", 50_000, 0.0)
    backlog.note("new", 60_000, 9.0)
    for second in range(1, 10):
        backlog.note("dribbles", 50_000 - second, float(second))
    assert backlog.excess(9.0) == ["dribbles"]


def test_among_those_who_just_began_the_largest_goes() -> None:
    """Nobody is slow yet, and one gone may be enough."""
    backlog = _backlog()
    backlog.note("small", 30_000, 0.0)
    backlog.note("large", 80_000, 0.5)
    assert backlog.excess(0.6) == ["large"]


def test_pace_is_not_saved_up() -> None:
    """Who took a lot at once may not stop for long afterwards."""
    backlog = _backlog()
    backlog.note("a", 1_000_000, 0.0)
    backlog.note("a", 60_000, 0.1)
    backlog.note("b", 90_000, 5.0)
    assert backlog.excess(5.0) == ["a"]


def test_a_single_answer_may_be_longer_than_the_limit() -> None:
    """Its reader goes only if it is slow."""
    backlog = _backlog()
    backlog.note("a", 200_000, 0.0)
    assert backlog.excess(0.5) == []
    backlog.note("a", 199_999, 2.0)
    assert backlog.excess(2.0) == ["a"]


def test_where_others_wait_who_takes_nothing_goes_sooner() -> None:
    """If others wait, idle readers go at half the room; those that read may stay."""
    headroom = Headroom(400_000, least_bytes=100_000)
    backlog: Backlog[str] = Backlog(1_000_000, headroom)
    backlog.note("idle", 30_000, 0.0)
    backlog.note("moves", 90_000, 0.0)
    backlog.note("moves", 30_000, 1.5)
    assert headroom.unread_bytes == 60_000
    assert backlog.excess(2.0) == []
    assert backlog.excess(2.0, is_contested=True) == ["idle"]
    backlog.note("idle", 0, 2.0)
    backlog.note("moves", 90_000, 2.0)
    assert backlog.excess(2.0, is_contested=True) == []


def test_what_is_kept_for_the_rest_of_an_answer_takes_room() -> None:
    """A buffer is freed when the last of it was taken."""
    headroom = Headroom(400_000, least_bytes=100_000)
    backlog: Backlog[str] = Backlog(1_000_000, headroom)
    backlog.note("a", 50_000, 0.0, resident_bytes=50_000)
    backlog.note("a", 10_000, 0.1, resident_bytes=50_000)
    assert (backlog.num_bytes, headroom.unread_bytes) == (10_000, 50_000)
    backlog.note("a", 0, 0.2)
    assert (backlog.num_bytes, headroom.unread_bytes) == (0, 0)


def test_answers_nobody_takes_are_bounded_for_the_whole_server(tmp_path: Path) -> None:
    """Those who read too slowly go until the rest fits; who reads is served on."""
    options = ExpressOptions(max_backlog_bytes=400_000)
    with running(tmp_path, options) as rig:
        slow = [rig.connect(CLOSED_HELLO) for _ in range(5)]
        for client in slow:
            rig.advance(2.0)
            client.send(head(1) + data_frame(1, prefixed(bytes(60_000))))
            client.send(head(3) + data_frame(3, prefixed(bytes(5_000))))
            rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 5 * 65_010
        late = [rig.connect(CLOSED_HELLO) for _ in range(2)]
        for client in late:
            client.send(head(1) + data_frame(1, prefixed(bytes(60_000))))
            rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 4 * 65_010 + 2 * 60_005
        for client in slow:
            client.read()
        assert [client.is_closed for client in slow] == [True] + 4 * [False]
        assert slow[0].goaway is ErrorCode.ENHANCE_YOUR_CALM
        good = rig.connect()
        good.send(request(1, b"others"))
        rig.settle()
        assert good.answer(1).messages == [b"others"]
        for client in [*slow, *late]:
            client.close()
        rig.settle()
        assert rig.transport._shared.backlog.num_bytes == 0
        assert rig.transport.counters.timeouts == 1


def test_who_reads_nothing_goes_though_nobody_waits_for_room() -> None:
    """Once more is unread than is open; sooner if it is far more. Who reads may stay."""
    for num_readers, patience_s in ((15, 5.0), (40, 1.0)):
        backlog: Backlog[int] = Backlog(1_000_000, Headroom(400_000, 100_000))
        for reader in range(num_readers):
            backlog.note(reader, 10_000, 0.0)
        backlog.note(-1, 150_000, 0.0)
        backlog.note(-1, 10_000, patience_s)
        assert backlog.excess(patience_s) == []
        gone = backlog.excess(patience_s + 0.2)
        while gone:
            for reader in gone:
                assert reader >= 0
                backlog.note(reader, 0, patience_s + 0.2)
            gone = backlog.excess(patience_s + 5.0, most=4)
        assert 80_000 < backlog.num_bytes <= 100_000


def test_the_slowest_of_many_go_first_and_no_more_than_must() -> None:
    """A few at a time, so that nobody waits while thousands are cut off."""
    headroom = Headroom(400_000, least_bytes=100_000)
    backlog: Backlog[int] = Backlog(1_000_000, headroom)
    for reader in (3, 1, 0, 2, 4):
        backlog.note(reader, 10_000, float(reader))
    assert backlog.excess(100.0, is_contested=True, most=2) == [0, 1]
    assert backlog.excess(100.0, is_contested=True) == [0, 1, 2]
    for reader in (0, 1, 2):
        backlog.note(reader, 0, 100.0)
    assert backlog.excess(200.0, is_contested=True) == []
