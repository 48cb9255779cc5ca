"""The fixed manager and its builder."""

from __future__ import annotations

import pytest

from managers.static_manager import StaticManager, StaticManagerBuilder
from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest


def built(*ids: tuple[str, int]) -> StaticManager:
    builder = StaticManagerBuilder()
    for name, version in ids:
        builder.add(ServableId(name, version), f"{name}@{version}")
    return builder.build()


def test_faults_of_adding_are_told() -> None:
    """Nothing to serve, and the same id again (Errors)."""
    builder = StaticManagerBuilder()
    with pytest.raises(InvalidArgument, match="Servable cannot be null"):
        builder.add(ServableId("a", 1), None)
    builder.add(ServableId("a", 1), "first")
    with pytest.raises(AlreadyExists):
        builder.add(ServableId("a", 1), "second")
    with builder.build().acquire(ServableRequest.latest("a")) as servable:
        assert servable == "first"


def test_builder_is_used_once() -> None:
    """After build() it takes nothing and builds nothing (UseAfterBuild)."""
    builder = StaticManagerBuilder()
    builder.build()
    with pytest.raises(FailedPrecondition, match="already called on this Static"):
        builder.add(ServableId("a", 1), "x")
    with pytest.raises(FailedPrecondition, match="already called on this Static"):
        builder.build()
