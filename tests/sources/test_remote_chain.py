"""From a URL to a local, verified version: source, cache and adapter together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sources.chain import SourceChain
from sources.fetching_adapter import FetchingSourceAdapter
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote_storage import RemoteFileSystem
from sources.scan import ServableToMonitor
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache, VersionCacheOptions
from tests.sources.test_version_cache import SIGNATURE
from tfs.core.version_directory import (
    Producer,
    commit,
    new_version,
    read_manifest,
    verify_files,
)
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


def test_versions_in_a_store_are_served_from_local_copies(
    store: Any, tmp_path: Path
) -> None:
    """A version that appears in the store reaches the target as a verified directory."""
    clock = FakeClock()
    source = FileSystemSource(
        FileSystemSourceOptions(
            (ServableToMonitor("m", "memory://bucket/m"),), poll_wait_s=60
        ),
        clock=clock,
    )
    cache = VersionCache(
        VersionCacheOptions(str(tmp_path / "cache")), RemoteFileSystem()
    )
    adapter = FetchingSourceAdapter(cache, lambda _, copy: copy())
    target: RecordingTarget[StoragePath] = RecordingTarget()
    with SourceChain(source, [adapter], target):
        upload(store, tmp_path, 1)
        source.step()
        assert target.versions("m") == [1]
        # Half an upload: no manifest yet, and a table is not still at once.
        store.pipe_file("/bucket/m/2/table.csv", b"key,value\n")
        clock.set_wall(0.0)
        clock.advance(60)
        source.step()
        assert target.versions("m") == [1]
        upload(store, tmp_path, 3)
        clock.advance(60)
        source.step()
        assert target.versions("m") == [3]
        payload = target.calls[-1].versions[0].payload
        assert payload is not None
        verify_files(payload.path, read_manifest(payload.path))
        store.rm("/bucket/m", recursive=True)
        clock.advance(60)
        source.step()
        assert target.versions("m") == [3]
        assert "does not exist" in source.problems()["m"][0]
    cache.close()
