"""tfs.server.remote_copies."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from managers.state_monitor import ServableStateMonitor
from sources.fetched_stream import Service
from sources.storage_path import StoragePath
from sources.storage_threads import StorageThreads
from tfs.core.errors import (
    Cancelled,
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    ServingError,
)
from tfs.core.event_bus import EventBus
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.options import ServerOptions
from tfs.server.remote_copies import RemoteCopies, may_be_damaged, service_of
from tfs.testing.fake_clock import FakeClock

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
    """Files are kept while a version may read them or be loaded again by itself."""
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
    """A copy is read only after an error that damage can cause, as that takes long."""
    state = ServableState(ServableId("m", 1), manager_state, error=error)
    assert may_be_damaged(state) is is_suspect


def test_a_version_that_fails_has_its_damaged_copy_made_anew(tmp_path: Path) -> None:
    """A damaged copy is made anew without anybody having to clear the cache."""
    store: Any = pytest.importorskip("fsspec").filesystem("memory")
    store.pipe_file("/copies/m/1/table.csv", b"key,value")
    bus: EventBus[ServableState] = EventBus(FakeClock())
    monitor = ServableStateMonitor(bus)
    options = ServerOptions(model_base_path="/m", remote_cache_dir=str(tmp_path))
    storage = StorageThreads()
    copies = RemoteCopies(options, storage, monitor, FakeClock(), lambda _, __: None)
    told: list[StoragePath | None] = []
    tells = threading.Semaphore(0)

    def take(aspired: AspiredVersions[StoragePath]) -> None:
        told.extend(data.payload for data in aspired.versions)
        if aspired.versions:
            tells.release()

    copies.adapter.set_aspired_versions_callback(take)
    version = ServableData(
        ServableId("m", 1), StoragePath("memory://copies/m/1", "f", "hashmap")
    )
    copies.adapter.aspired_versions_callback()(AspiredVersions("m", (version,), "why"))
    assert tells.acquire(timeout=60)
    assert told[-1] is not None
    table = Path(told[-1].path, "table.csv")
    table.chmod(0o644)
    table.write_bytes(b"Key,value")
    error = DataLoss("it cannot be read")
    bus.publish(ServableState(version.id, ManagerState.END, error=error))
    assert tells.acquire(timeout=60)
    assert told[-1] != told[0]
    assert table.read_bytes() == b"key,value"
    copies.close()
    storage.close()
    store.rm("/copies", recursive=True)


def test_copies_of_a_killed_server_are_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configured directory nobody else would ever remove them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "tfs-cache-0123"
    left.mkdir()
    (left / "lock").touch()
    os.utime(left / "lock", (0, 0))
    monitor = ServableStateMonitor(EventBus(FakeClock()))
    storage = StorageThreads()
    monkeypatch.setattr(storage, "submit", lambda _place, fn, _patience_s: fn())
    options = ServerOptions(model_base_path="/m")
    copies = RemoteCopies(options, storage, monitor, FakeClock(), lambda _, __: None)
    copies.start()
    assert not left.exists()
    copies.close()
    storage.close()
