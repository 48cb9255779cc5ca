"""A store, the copies of its versions and the source that aspires them, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sources.chain import SourceChain
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote.adapter import FetchingSourceAdapter
from sources.remote.cache import VersionCache, VersionCacheOptions
from sources.remote.storage import AnyFileSystem, RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor
from sources.storage_path import StoragePath
from tests.sources.remote.fake_remote import SIGNATURE
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version
from tfs.testing.fake_clock import FakeClock
from tfs.testing.recording_target import RecordingTarget


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


class Server:
    """Everything from a URL to the target, over a cache that outlives it."""

    def __init__(
        self,
        files: RemoteFileSystem,
        root: Path,
        *pinned: int,
        base_path: str = "memory://bucket/m/",
    ) -> None:
        self.base_path = base_path
        self.clock = FakeClock()
        self.cache = VersionCache(VersionCacheOptions(str(root)), files)
        adapter = FetchingSourceAdapter(self.cache, lambda _, copy: copy())
        self.source = FileSystemSource(
            FileSystemSourceOptions((self._wanted(*pinned),), poll_wait_s=60),
            file_system=AnyFileSystem(remote=files),
            clock=self.clock,
        )
        self.target: RecordingTarget[StoragePath] = RecordingTarget()
        self.chain = SourceChain(self.source, [adapter], self.target)

    def look(self) -> list[int]:
        """Returns what is aspired after another look."""
        self.clock.advance(60)
        self.source.step()
        return list(self.target.versions("m") or ())

    def close(self) -> None:
        self.chain.close()
        self.cache.close()

    def _wanted(self, *pinned: int) -> ServableToMonitor:
        return ServableToMonitor("m", self.base_path, pinned=frozenset(pinned))
