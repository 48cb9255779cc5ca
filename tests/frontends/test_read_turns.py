"""Connections that bring much are read in turn, and leave time for the rest."""

from __future__ import annotations

import asyncio

from tfs.frontends.rpc.grpcio.read_turns import ReadTurns
from tfs.testing.patience import PATIENCE_S


class Loop(asyncio.SelectorEventLoop):
    """A loop whose time passes when a test says so."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class Busy:
    """A connection that always has something to read, which takes a while."""

    def __init__(self, name: str, loop: Loop, log: list[str]) -> None:
        self.is_held_off = False
        self._name = name
        self._loop = loop
        self._log = log

    def hold_off(self, is_held_off: bool) -> None:
        self.is_held_off = is_held_off

    def read(self) -> None:
        self._loop.now_s += 0.0004
        self._log.append(self._name)


def test_connections_are_read_at_once_while_they_bring_little() -> None:
    """One after the other, for half a millisecond in two."""
    loop = Loop()
    turns = ReadTurns(loop)
    log: list[str] = []
    source = Busy("one", loop, log)
    for _ in range(10):
        loop.now_s += 0.0025
        turns.read(source)
        assert not source.is_held_off
    assert len(log) == 10
    loop.close()


def test_connections_that_bring_much_are_read_in_turn() -> None:
    """A turn lasts half a millisecond, and what else there is goes between two turns."""
    loop = Loop()
    log: list[str] = []
    turns = ReadTurns(loop)
    sources = [Busy(name, loop, log) for name in "abcdef"]
    gone = Busy("gone", loop, log)

    async def others() -> None:
        while len(log) < 6:
            if log[-1] != "-":
                log.append("-")
            loop.now_s += 0.001
            await asyncio.sleep(0)

    for source in (*sources[:4], gone, *sources[4:]):
        turns.read(source)
    turns.forget(gone)
    assert log == ["a", "b"]
    assert all(each.is_held_off for each in sources[2:])
    loop.run_until_complete(asyncio.wait_for(others(), PATIENCE_S))
    assert log[:6] == ["a", "b", "-", "c", "d", "-"]
    loop.now_s += 1
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert "gone" not in log
    loop.close()


def test_a_connection_that_fails_does_not_stop_the_others() -> None:
    """All of them are read in the end."""
    loop = Loop()
    log: list[str] = []
    turns = ReadTurns(loop)
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    class Failing(Busy):
        def read(self) -> None:
            super().read()
            raise ValueError

    async def others() -> None:
        while len(log) < 6:
            loop.now_s += 0.001
            await asyncio.sleep(0)

    for _ in range(2):
        turns.read(Busy("first", loop, log))
    turns.read(Failing("fails", loop, log))
    for name in "abc":
        turns.read(Busy(name, loop, log))
    loop.run_until_complete(asyncio.wait_for(others(), PATIENCE_S))
    assert log == ["first", "first", "fails", "a", "b", "c"]
    assert len(errors) == 1
    loop.close()
