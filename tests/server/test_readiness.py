"""Whether a server sends requests away, and until when it counts as starting."""

from __future__ import annotations

import os

from tests.server.environment import Environment, config, model
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import read_config_text


def test_a_server_stays_ready_while_a_model_is_added(env: Environment) -> None:
    """Who serves is not sent away because of what is still loading beside it."""
    env.apply(model("a"), model("b"), settles=False)
    assert env.core.readiness.is_ready()
    assert env.core.readiness.is_model_available("b") is False
    env.settle()
    assert env.core.readiness.is_model_available("b")


def test_a_server_is_ready_when_all_models_of_its_start_have_settled() -> None:
    """One that loads for longer keeps requests away from it."""
    environment = Environment()
    for name in ("a", "b"):
        environment.add_version(name, 1)
    environment.core.start(read_config_text(config(model("a"), model("b")), "test"))
    assert not environment.core.readiness.is_ready()
    environment.settle()
    assert environment.core.readiness.is_ready()
    assert environment.close()


def test_the_first_loads_get_more_threads_and_later_ones_do_not() -> None:
    """A start has nobody to disturb (ConnectSourcesWithFastInitialLoad)."""
    env = Environment(has_threads=True)
    pool = env.threads("load")
    before = pool.num_threads
    env.core.begin(
        read_config_text("model_config_list {}", "test"), Origin.MODEL_REPOSITORY
    )
    env.settle()
    assert pool.num_threads == max(before, 4 * (os.cpu_count() or 1))
    env.add_version("a", 1)
    env.broken.add(env.add_version("b", 1))
    env.apply(model("a"), model("b"))
    assert env.available("a") == [1]
    assert pool.num_threads == before
    assert env.close()
