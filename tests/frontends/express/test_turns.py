"""Who may take how much of the loop, and when."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.express.rig import (
    head,
    running,
)
from tests.frontends.express.wire import (
    data_frame,
    prefixed,
    request,
)
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.turns import (
    SHARED_S,
    SHORT,
    Turn,
    Turns,
    is_busy,
    turn_of,
)

LONGEST = Turn(128, 128, 262_144, 2 << 20)
TINY = Turn(4, 4, 1000, 1000)


def test_turns_are_long_until_one_with_little_to_do_is_seen() -> None:
    """Large batches and few system calls, where nobody waits for them."""
    assert turn_of(LONGEST, None, 0.0) is LONGEST
    assert turn_of(LONGEST, 5.0, 5.0 + SHARED_S) == SHORT
    assert turn_of(LONGEST, 5.0, 5.1 + SHARED_S) is LONGEST


def test_a_short_turn_is_never_longer_than_the_longest() -> None:
    """Whoever configured little gets no more."""
    assert turn_of(TINY, 0.0, 0.0) == Turn(4, 1, 1000, 1000)


def test_a_connection_is_busy_from_a_short_turn_on() -> None:
    """Requests, bytes, or something left over each make a connection busy."""
    assert not is_busy(SHORT.num_requests - 1, SHORT.num_read_bytes - 1, False)
    assert is_busy(SHORT.num_requests, 0, False)
    assert is_busy(0, SHORT.num_read_bytes, False)
    assert is_busy(0, 0, True)


def test_turns_become_short_at_once_and_long_after_a_while() -> None:
    """Every share puts the end off."""
    turns = Turns(LONGEST)
    assert turns.current is LONGEST
    turns.share(0.0)
    assert turns.are_short
    assert turns.current == SHORT
    turns.share(5.0)
    turns.look(5.0 + SHARED_S)
    assert turns.are_short
    turns.look(5.1 + SHARED_S)
    assert not turns.are_short
    assert turns.current is LONGEST


def test_who_is_gone_is_nobodys_neighbour() -> None:
    """A client that comes back over a new connection shares with nobody."""
    turns = Turns(LONGEST)
    one, other = object(), object()
    turns.last = one
    turns.forget(other)
    assert turns.last is one
    turns.forget(one)
    assert turns.last is None


def test_a_flooding_connection_gets_its_turn_and_no_more(tmp_path: Path) -> None:
    """Its surplus waits, others are served in every round, and it in every other."""
    options = ExpressOptions(limits=ConnectionLimits(max_requests_per_round=10))
    with running(tmp_path, options) as rig:
        flood, other = rig.connect(), rig.connect()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100)))
        for index in range(5):
            other.send(request(2 * index + 1, b"other"))
            rig.step()
            assert other.answer(2 * index + 1).messages == [b"other"]
            assert rig.served.count(b"flood") == 10 * (index // 2 + 1)
        rig.settle()
        assert rig.served.count(b"flood") == 100


def test_turns_are_short_beside_one_with_little_to_do(tmp_path: Path) -> None:
    """A flood may take a whole round alone; not where another would wait for it."""
    with running(tmp_path) as rig:
        flood = rig.connect()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100)))
        rig.step()
        assert rig.served.count(b"flood") == 100
        other = rig.connect()
        other.send(request(1, b"other"))
        rig.step()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(100, 200)))
        rig.step()
        assert rig.served.count(b"flood") == 100 + SHORT.num_requests
        rig.settle()
        rig.clock.advance(SHARED_S + 1)
        rig.step()
        flood.send(b"".join(request(2 * n + 1, b"flood") for n in range(200, 300)))
        rig.step()
        assert rig.served.count(b"flood") == 300


def test_two_floods_keep_their_long_turns(tmp_path: Path) -> None:
    """Nobody would gain by short ones."""
    with running(tmp_path) as rig:
        floods = [rig.connect(), rig.connect()]
        for start in (0, 100):
            for flood in floods:
                flood.send(
                    b"".join(request(2 * n + 1) for n in range(start, start + 100))
                )
            rig.step()
            assert len(rig.served) == 2 * (start + 100)


def test_a_round_reads_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """A large upload does not keep the loop for itself."""
    with running(tmp_path, ExpressOptions(max_read_bytes=1000)) as rig:
        client = rig.connect()
        client.send(head(1) + data_frame(1, prefixed(b"x" * 5000)))
        rig.step(3)
        assert rig.served == []
        rig.settle()
        rig.step(5)
        assert rig.served == [b"x" * 5000]
