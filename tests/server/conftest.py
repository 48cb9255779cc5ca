"""What tests of the server's core and its config begin with."""

from __future__ import annotations

import pytest

from tests.server.environment import Environment, config, model


@pytest.fixture
def env() -> Environment:
    """A core with models a and b at hand, serving a."""
    environment = Environment()
    for name in ("a", "b"):
        environment.add_version(name, 1)
    environment.start(config(model("a")))
    return environment
