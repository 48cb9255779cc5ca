"""What tests of express begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontends.express.rig import Rig, running


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A transport whose rounds and time are the test's; closed after it."""
    with running(tmp_path) as rig:
        yield rig
