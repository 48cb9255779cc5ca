"""tfs.server.remote_copies."""

from __future__ import annotations

import pytest

from sources.fetched_stream import Service
from tfs.core.errors import (
    Cancelled,
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    ServingError,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.remote_copies import may_be_damaged, service_of

SERVICES: list[tuple[ManagerState, ServingError | None, Service]] = [
    (ManagerState.START, None, Service.GOES_ON),
    (ManagerState.LOADING, None, Service.GOES_ON),
    (ManagerState.AVAILABLE, None, Service.GOES_ON),
    (ManagerState.AVAILABLE, DataLoss("its heir is damaged"), Service.GOES_ON),
    (ManagerState.UNLOADING, None, Service.GOES_ON),
    (ManagerState.END, None, Service.SERVED),
    (ManagerState.END, DataLoss("damaged"), Service.NONE),
    (ManagerState.END, ResourceExhausted("no room"), Service.GOES_ON),
]


@pytest.mark.parametrize(("manager_state", "error", "service"), SERVICES)
def test_files_are_kept_for_what_may_read_them(
    manager_state: ManagerState, error: ServingError | None, service: Service
) -> None:
    """While it is anything but over, and if it may be loaded again by itself."""
    state = ServableState(ServableId("m", 1), manager_state, error=error)
    assert service_of(state) is service


def test_a_version_that_no_manager_knows_is_in_no_service() -> None:
    """It was given up before its turn came."""
    assert service_of(None) is Service.NONE


@pytest.mark.parametrize(
    ("manager_state", "error", "is_suspect"),
    [
        (ManagerState.END, DataLoss("damaged"), True),
        (ManagerState.END, FailedPrecondition("may not be read"), True),
        (ManagerState.AVAILABLE, DataLoss("its heir is damaged"), True),
        (ManagerState.AVAILABLE, FailedPrecondition("quarantined"), False),
        (ManagerState.AVAILABLE, None, False),
        (ManagerState.END, None, False),
        (ManagerState.END, ResourceExhausted("no room"), False),
        (ManagerState.END, Cancelled("not wanted"), False),
    ],
)
def test_copies_are_looked_at_where_they_may_be_to_blame(
    manager_state: ManagerState, error: ServingError | None, is_suspect: bool
) -> None:
    """To read gigabytes takes a while, so not for every error."""
    state = ServableState(ServableId("m", 1), manager_state, error=error)
    assert may_be_damaged(state) is is_suspect
