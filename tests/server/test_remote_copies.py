"""tfs.server.remote_copies."""

from __future__ import annotations

import pytest

from sources.fetched_stream import Service
from tfs.core.errors import DataLoss, ResourceExhausted, ServingError
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.remote_copies import service_of

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
