"""The peers area without peers, and ended from outside."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.benchmarks.peers import environment
from tests.benchmarks.peers.__main__ import end
from tests.benchmarks.peers.area import (
    Effort,
    Field,
)
from tests.benchmarks.peers.peer import Peer


def test_without_any_peer_tfs_is_measured_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each absent one is named with what to do; nothing is won or lost."""

    def prepare(peer: Peer) -> Path:
        raise environment.MissingError(f"{peer.name} needs java: install it")

    monkeypatch.setattr(environment, "prepare", prepare)
    members = Field(Effort())
    members.set_up()
    assert [peer.name for peer in members.members()] == ["tfs"]
    printed = capsys.readouterr().out
    assert printed.count("left out: ") == 4
    assert "torchserve needs java: install it" in printed


def test_a_terminated_benchmark_leaves_through_its_contexts() -> None:
    """Its servers heed no signal while they are paused: it has to end them."""
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
