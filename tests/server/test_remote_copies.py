"""tfs.server.remote_copies."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from managers.state_monitor import ServableStateMonitor
from sources.storage.storage_threads import StorageThreads
from sources.storage_path import StoragePath
from tfs.core.errors import DataLoss, ResourceExhausted, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.options import ServerOptions
from tfs.server.remote_copies import RemoteCopies
from tfs.testing.fake_clock import FakeClock

STATES: list[tuple[ManagerState, ServingError | None, bool]] = [
    (ManagerState.START, None, True),
    (ManagerState.LOADING, None, True),
    (ManagerState.AVAILABLE, None, True),
    (ManagerState.AVAILABLE, DataLoss("its heir is damaged"), True),
    (ManagerState.UNLOADING, None, True),
    (ManagerState.END, None, False),
    (ManagerState.END, DataLoss("damaged"), False),
    (ManagerState.END, ResourceExhausted("no room"), True),
]


@pytest.fixture(name="storage")
def at_once(monkeypatch: pytest.MonkeyPatch) -> StorageThreads:
    """Runs everything on the calling thread."""
    storage = StorageThreads()
    monkeypatch.setattr(storage, "submit", lambda _place, fn, _patience_s: fn())
    return storage


@pytest.mark.parametrize(("manager_state", "error", "is_kept"), STATES)
def test_files_are_kept_for_what_may_read_them(
    tmp_path: Path,
    storage: StorageThreads,
    manager_state: ManagerState,
    error: ServingError | None,
    is_kept: bool,
) -> None:
    """Files are kept while a version may read them or be loaded again by itself."""
    store: Any = pytest.importorskip("fsspec").filesystem("memory")
    bus: EventBus[ServableState] = EventBus(FakeClock())
    options = ServerOptions(
        model_base_path="/m", remote_cache_dir=str(tmp_path), remote_cache_max_bytes=18
    )
    copies = RemoteCopies(
        options, storage, ServableStateMonitor(bus), FakeClock(), lambda _, __: None
    )
    told: list[AspiredVersions[StoragePath]] = []
    copies.adapter.set_aspired_versions_callback(told.append)
    for version in (1, 2, 3):
        store.pipe_file(f"/copies/m/{version}/table.csv", b"key,value")
        path = StoragePath(f"memory://copies/m/{version}", "f", "hashmap")
        data = ServableData(ServableId("m", version), path)
        copies.adapter.aspired_versions_callback()(AspiredVersions("m", (data,), ""))
        if version == 1:
            bus.publish(ServableState(data.id, manager_state, error=error))
        else:
            bus.publish(ServableState(data.id, ManagerState.END))
    paths = [data.payload for each in told for data in each.versions]
    first = next(path for path in paths if path is not None)
    assert Path(first.path).is_dir() is is_kept
    copies.close()
    storage.close()
    store.rm("/copies", recursive=True)


def test_copies_of_a_killed_server_are_removed_at_the_next_start(
    tmp_path: Path, storage: StorageThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a configured directory nobody else would ever remove them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "tfs-cache-0123"
    left.mkdir()
    (left / "lock").touch()
    os.utime(left / "lock", (0, 0))
    monitor = ServableStateMonitor(EventBus(FakeClock()))
    options = ServerOptions(model_base_path="/m")
    copies = RemoteCopies(options, storage, monitor, FakeClock(), lambda _, __: None)
    copies.start()
    assert not left.exists()
    copies.close()
    storage.close()
