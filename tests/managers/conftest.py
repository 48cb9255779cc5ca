"""What tests of managers begin with, each with every kind of pools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.managers.environment import POOLS, Environment
from tfs.core.servable_state import ManagerState


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes the managers that a test made and left open; nothing stays loaded."""
    yield
    while Environment.made:
        environment = Environment.made[-1]
        assert environment.close()
        assert environment.log.resident == []


@pytest.fixture(params=POOLS, ids=str)
def env(request: pytest.FixtureRequest) -> Environment:
    """Two servables with versions 0 and 1 available, as in upstream's fixture."""
    environment = Environment(request.param)
    for name in ("S1", "S2"):
        environment.aspire(name, 0, 1)
    environment.settle()
    assert all(
        environment.state(n, v) is ManagerState.AVAILABLE
        for n in ("S1", "S2")
        for v in (0, 1)
    )
    return environment


@pytest.fixture(params=POOLS, ids=str)
def empty(request: pytest.FixtureRequest) -> Environment:
    """A manager of nothing yet."""
    return Environment(request.param)
