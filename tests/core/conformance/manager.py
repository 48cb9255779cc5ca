"""What every manager promises to those who request servables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import pytest

from tests.threads import run_together
from tfs.core.errors import InvalidArgument, NotFound
from tfs.core.servable_handle import Manager, ServableHandle, acquire_as
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.testing.patience import PATIENCE_S

NAME = "s"


class ManagerUnderTest(Protocol):
    """A manager that serves versions 1 and 2 of ``s``, each its own object."""

    @property
    def manager(self) -> Manager[object]:
        """The manager, both versions available."""
        ...

    def close(self) -> None:
        """Closes it; nothing is pinned any more."""
        ...


class UnloadingManagerUnderTest(ManagerUnderTest, Protocol):
    """One that can be made to give up a version."""

    def withdraw(self, servable_id: ServableId) -> None:
        """Begins to unload a version, and returns when it cannot be requested."""
        ...

    def destroyed_on(self, servable_id: ServableId) -> threading.Thread | None:
        """Lets the manager work; returns who destroyed the version, None if it lives.

        The test's own thread may stand in for a manager's while this runs.
        """
        ...


MakeManager = Callable[[], ManagerUnderTest]
ManagerCheck = Callable[[MakeManager], None]
MakeUnloadingManager = Callable[[], UnloadingManagerUnderTest]
UnloadingManagerCheck = Callable[[MakeUnloadingManager], None]


def what_is_listed_can_be_requested(make: MakeManager) -> None:
    """Every listed version is given out, pinned; the list is in order.

    StoresServables, GetSpecificVersion, ServableHandleSpecificVersion upstream.
    """
    under_test = make()
    manager = under_test.manager
    ids = list(manager.list_available_ids())
    assert ids == [ServableId(NAME, 1), ServableId(NAME, 2)]
    for servable_id in ids:
        handle = manager.acquire(
            ServableRequest.specific(servable_id.name, servable_id.version)
        )
        assert handle.id == servable_id
        assert handle.num_pins == 1
        handle.release()
        assert handle.num_pins == 0
    under_test.close()


def a_request_without_a_version_is_answered_by_its_rule(make: MakeManager) -> None:
    """The latest version is the highest, the earliest the lowest.

    GetLatestVersion, ServableHandleLatest, ServableHandleEarliest upstream.
    """
    under_test = make()
    for request, version in (
        (ServableRequest.latest(NAME), 2),
        (ServableRequest.earliest(NAME), 1),
    ):
        with under_test.manager.acquire(request) as chosen:
            named = ServableRequest.specific(NAME, version)
            handle = under_test.manager.acquire(named)
            assert handle.servable is chosen
            handle.release()
    under_test.close()


def an_unknown_name_is_not_found(make: MakeManager) -> None:
    """NOT_FOUND, naming what was asked for; what serves is untouched.

    ServableNotFound, VersionNotFound upstream.
    """
    under_test = make()
    manager = under_test.manager
    for request in (
        ServableRequest.latest("x"),
        ServableRequest.earliest("x"),
        ServableRequest.specific("x", 1),
    ):
        with pytest.raises(NotFound, match="x"):
            manager.acquire(request)
    assert len(manager.list_available_ids()) == 2
    under_test.close()


def pins_are_counted(make: MakeManager) -> None:
    """Each acquisition is one pin, whichever thread takes and releases it."""
    under_test = make()
    request = ServableRequest.specific(NAME, 1)
    handle = under_test.manager.acquire(request)
    others: list[ServableHandle[object]] = []

    def acquire() -> None:
        others.append(under_test.manager.acquire(request))

    run_together(*[acquire] * 4)
    assert handle.num_pins == 5
    for each in (*others, handle):
        each.release()
    assert handle.num_pins == 0
    under_test.close()


def a_wrong_type_pins_nothing(make: MakeManager) -> None:
    """Who asks for another kind of servable gets INVALID_ARGUMENT and owes nothing.

    ServableHandleInvalidArgument, ServableHandleWrongType upstream.
    """
    under_test = make()
    with pytest.raises(InvalidArgument, match="type doesn't match"):
        acquire_as(under_test.manager, ServableRequest.latest(NAME), threading.Thread)
    handle = under_test.manager.acquire(ServableRequest.latest(NAME))
    assert handle.num_pins == 1
    handle.release()
    under_test.close()


MANAGER_CHECKS: tuple[ManagerCheck, ...] = (
    what_is_listed_can_be_requested,
    a_request_without_a_version_is_answered_by_its_rule,
    an_unknown_name_is_not_found,
    pins_are_counted,
    a_wrong_type_pins_nothing,
)


# -- managers that unload --------------------------------------------------------------


def a_withdrawn_version_is_not_given_out(make: MakeUnloadingManager) -> None:
    """It is neither listed nor found; its siblings still are."""
    under_test = make()
    manager = under_test.manager
    under_test.withdraw(ServableId(NAME, 2))
    assert list(manager.list_available_ids()) == [ServableId(NAME, 1)]
    with pytest.raises(NotFound, match="Servable not found for request: Specific"):
        manager.acquire(ServableRequest.specific(NAME, 2))
    handle = manager.acquire(ServableRequest.latest(NAME))
    assert handle.id.version == 1
    handle.release()
    under_test.close()


def a_pinned_version_lives_until_it_is_released(make: MakeUnloadingManager) -> None:
    """However long a request takes, what it uses is there; then it is destroyed."""
    under_test = make()
    servable_id = ServableId(NAME, 1)
    handle = under_test.manager.acquire(
        ServableRequest.specific(servable_id.name, servable_id.version)
    )
    servable = handle.servable
    under_test.withdraw(servable_id)
    assert under_test.destroyed_on(servable_id) is None
    assert handle.servable is servable
    handle.release()
    assert under_test.destroyed_on(servable_id) is not None
    under_test.close()


def a_releasing_thread_destroys_nothing(make: MakeUnloadingManager) -> None:
    """The last release is made by a request: it must not free a model.

    DestructOnNonServingThread upstream.
    """
    under_test = make()
    servable_id = ServableId(NAME, 1)
    handle = under_test.manager.acquire(
        ServableRequest.specific(servable_id.name, servable_id.version)
    )
    under_test.withdraw(servable_id)
    releasing = threading.Thread(target=handle.release)
    releasing.start()
    releasing.join(PATIENCE_S)
    assert under_test.destroyed_on(servable_id) not in (None, releasing)
    under_test.close()


UNLOADING_MANAGER_CHECKS: tuple[UnloadingManagerCheck, ...] = (
    a_withdrawn_version_is_not_given_out,
    a_pinned_version_lives_until_it_is_released,
    a_releasing_thread_destroys_nothing,
)


def check_manager(make: MakeManager) -> None:
    """Runs every check of a manager that need not unload."""
    for check in MANAGER_CHECKS:
        check(make)
