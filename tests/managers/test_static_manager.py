"""The fixed manager and its builder."""

from __future__ import annotations

import pytest

from managers.static_manager import StaticManager, StaticManagerBuilder
from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from tfs.core.manager import acquire_as
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest


def built(*ids: tuple[str, int]) -> StaticManager:
    builder = StaticManagerBuilder()
    for name, version in ids:
        builder.add(ServableId(name, version), f"{name}@{version}")
    return builder.build()


def test_servables_are_stored_and_found() -> None:
    """What was added can be requested (StoresServables, GetSpecificVersion)."""
    manager = built(("a", 1), ("a", 2))
    with manager.acquire(ServableRequest.specific("a", 1)) as servable:
        assert servable == "a@1"
    assert manager.list_available_ids() == [ServableId("a", 1), ServableId("a", 2)]


def test_latest_is_the_highest_that_was_added() -> None:
    """Whatever the order of adding (GetLatestVersion)."""
    manager = built(("a", 2), ("a", 7), ("a", 3))
    with manager.acquire(ServableRequest.latest("a")) as servable:
        assert servable == "a@7"
    handle = acquire_as(manager, ServableRequest.latest("a"), str)
    assert handle.id.version == 7
    handle.release()


@pytest.mark.parametrize(
    "request_", [ServableRequest.latest("b"), ServableRequest.specific("a", 2)]
)
def test_what_was_not_added_is_not_found(request_: ServableRequest) -> None:
    """Names and versions (ServableNotFound, VersionNotFound)."""
    with pytest.raises(NotFound):
        built(("a", 1)).acquire(request_)


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
