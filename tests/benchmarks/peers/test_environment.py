"""What a peer's environment is made of."""

from __future__ import annotations

import re

import pytest

from tests.benchmarks.peers.area import PEERS
from tests.benchmarks.peers.environment import (
    REQUIREMENTS,
)
from tests.benchmarks.peers.mosec import Mosec


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_requirements_are_complete_and_pinned(peer: Mosec) -> None:
    """Each line is one version of one package: nothing else can get in."""
    lines = [
        line
        for line in (REQUIREMENTS / f"{peer.name}.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if line.startswith("nvidia-cu")]
