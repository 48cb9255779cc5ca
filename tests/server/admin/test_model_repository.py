"""tfs.server.admin.model_repository."""

from __future__ import annotations

from tests.server.admin.admin_operator import operating
from tests.server.environment import Environment
from tfs.core.errors import Aborted, ServingError
from tfs.core.stats import Stats
from tfs.server.admin.model_repository import ModelRepository


def repository_of(env: Environment) -> ModelRepository:
    """Returns the repository of a server; what it posts to the loop happens at once."""
    return ModelRepository(env.core, Stats(), env.clock, lambda fn: fn())


def test_who_unloads_is_told_when_nothing_answers_any_more() -> None:
    """And what was unloaded is back when it is loaded."""
    env = operating(1).env
    repository, told = repository_of(env), list[ServingError | None]()
    repository.unload("a", "test", None, told.append)
    assert not told
    env.settle()
    assert told == [None]
    assert env.core.served.primary("a") is None
    repository.load("a", "test", None, told.append)
    env.settle()
    assert told == [None, None]
    assert env.core.served.primary("a") == 1


def test_who_unloads_what_is_loaded_again_is_told_so() -> None:
    """It never goes then, and waiting for that would have no end."""
    env = operating(1).env
    repository, unloaded = repository_of(env), list[ServingError | None]()
    loaded = list[ServingError | None]()
    repository.unload("a", "test", None, unloaded.append)
    repository.load("a", "test", None, loaded.append)
    env.settle()
    assert loaded == [None]
    (error,) = unloaded
    assert isinstance(error, Aborted)
    assert "a is not unloaded" in error.message
    assert env.core.served.primary("a") == 1
