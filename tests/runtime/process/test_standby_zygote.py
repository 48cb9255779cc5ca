"""A second zygote takes the first one's place; nothing of it is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.process_host import (
    ProcessHost,
    is_gone,
    kill_worker,
    process_host,
    until,
)
from tests.runtime.zoo import Scale
from tfs.runtime.process import zygote_client

X = {"x": floats((1, 2))}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessHost]:
    """A host that keeps a standby from its zygote's start on."""
    monkeypatch.setattr(zygote_client, "_STANDBY_PAUSE_S", 0.0)
    with process_host(keeps_standby=True) as host:
        yield host


def standby_of(host: ProcessHost) -> int:
    """Waits for the standby."""
    until(lambda: host.zygote.standby_pid is not None, "the standby")
    assert host.zygote.standby_pid is not None
    return host.zygote.standby_pid


def test_a_standby_takes_the_place_of_a_zygote_that_was_killed(
    host: ProcessHost, tmp_path: Path
) -> None:
    """The next workers are its forks, those there are serve on, and a standby comes."""
    interpreter = host.interpreter()
    loaded = interpreter.load(package(tmp_path, Scale()))
    for _ in range(2):
        standby, zygote, worker = standby_of(host), host.zygote.pid, interpreter.pid
        assert zygote is not None
        os.kill(zygote, signal.SIGKILL)
        until(lambda pid=standby: host.zygote.pid == pid, "the change")  # type: ignore[misc]
        assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
        assert interpreter.pid == worker
        kill_worker(interpreter)
        assert interpreter.forked_by == standby
        assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert standby_of(host) != host.zygote.pid


def test_a_standby_that_is_killed_is_replaced_unseen(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Nobody needs it yet, so its end is nobody's business but the next one's."""
    interpreter = host.interpreter()
    loaded = interpreter.load(package(tmp_path, Scale()))
    standby = standby_of(host)
    os.kill(standby, signal.SIGKILL)
    until(lambda: host.zygote.standby_pid not in (standby, None), "the next")
    assert is_gone(standby)
    assert values(ask(loaded, X).outputs()["y"]) == [[2, 4]]
    assert interpreter.stats().num_restarts == 0


def test_a_standby_ends_with_whoever_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It outlives its parent, but not the channel of its host."""
    monkeypatch.setattr(zygote_client, "_STANDBY_PAUSE_S", 0.0)
    with process_host(keeps_standby=True) as host:
        host.interpreter().load(package(tmp_path, Scale()))
        standby = standby_of(host)
        fds = set(os.listdir(f"/proc/{standby}/fd"))
        assert len(fds - {"0", "1", "2"}) == 2  # its channel, and the host's pipe
    until(lambda: is_gone(standby), "the end of the standby")
