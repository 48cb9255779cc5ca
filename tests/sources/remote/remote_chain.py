"""A store, the copies of its versions, and the manager that loads them, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.state_monitor import ServableStateMonitor
from managers.versions.version import RetryOptions
from sources.adapter import LoaderSourceAdapter
from sources.chain import SourceChain
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote.cache import FetchingLoader, VersionCache, VersionCacheOptions
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.storage.file_system import AnyFileSystem
from tests.sources.remote.fake_remote import SIGNATURE
from tfs.core.event_bus import EventBus
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.servable_state import ServableState
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version
from tfs.testing.fake_clock import FakeClock


def upload(store: Any, tmp_path: Path, version: int) -> None:
    """Writes a version locally and copies it, the manifest last."""
    base_path = tmp_path / "written"
    with new_version(str(base_path), version) as folder:
        Path(folder, "table.csv").write_text(f"key,value\na,{version}\n")
        commit(folder, "hashmap", {"serving_default": SIGNATURE}, {}, Producer())
    for name in ("table.csv", "servable.json"):
        data = (base_path / str(version) / name).read_bytes()
        store.makedirs(f"/bucket/m/{version}", exist_ok=True)
        store.pipe_file(f"/bucket/m/{version}/{name}", data)


class PathLoader:
    """Serves the path that it was made of."""

    def __init__(self, path: str) -> None:
        self.servable = path

    def estimate_resources(self) -> ResourceAllocation:
        return ResourceAllocation()

    def load(self, servable_id: ServableId) -> None:
        """Has nothing to load."""

    def unload(self) -> None:
        """Has nothing to free."""


class Server:
    """Everything from a URL to what is served, over a cache that outlives it."""

    def __init__(
        self,
        files: RemoteFileSystem,
        root: Path,
        base_path: str = "memory://bucket/m/",
    ) -> None:
        self.clock = FakeClock()
        self.cache = VersionCache(VersionCacheOptions(str(root)), files)
        self.source = FileSystemSource(
            FileSystemSourceOptions(
                (ServableToMonitor("m", base_path),), poll_wait_s=60
            ),
            file_system=AnyFileSystem(remote=files),
            clock=self.clock,
        )
        bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(bus)
        self.manager = AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                retry=RetryOptions(max_num_retries=1, interval_s=10.0),
                release_memory=None,
            ),
            event_bus=bus,
            clock=self.clock,
        )
        self.chain = SourceChain(
            self.source, [LoaderSourceAdapter(self._loader)], self.manager
        )

    def look(self) -> list[int]:
        """Returns what serves after another look."""
        self.clock.advance(60)
        self.source.step()
        self.manager.step()
        return [each.version for each in self.manager.list_available_ids()]

    def path(self) -> str:
        """Returns the directory that serves."""
        with self.manager.acquire(ServableRequest.latest("m")) as path:
            return str(path)

    def close(self) -> None:
        self.chain.close()
        self.manager.close()
        self.cache.close()

    def _loader(self, _: ServableId, version: StoragePath) -> Loader[str]:
        return FetchingLoader(version, self.cache, PathLoader)
