"""From a URL to a local, verified version: source, cache and adapter together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sources.chain import SourceChain
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote.adapter import FetchingSourceAdapter
from sources.remote.cache import VersionCache, VersionCacheOptions
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor
from sources.storage_path import StoragePath
from tests.sources.remote.remote_chain import Server, upload
from tfs.core.version_directory import read_manifest, verify_files
from tfs.testing.fake_clock import FakeClock
from tfs.testing.recording_target import RecordingTarget


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


class Outage(RemoteFileSystem):
    """A store that refuses everything while it is down."""

    is_down = False

    def list_directories(self, path: str) -> Sequence[str]:
        if self.is_down:
            raise OSError(5, "no route to store")
        return super().list_directories(path)


def test_a_store_that_is_down_unloads_nothing(store: Any, tmp_path: Path) -> None:
    """What was aspired stays aspired, and the status says why nothing new comes."""
    files = Outage()
    server = Server(files, tmp_path / "cache")
    upload(store, tmp_path, 1)
    assert server.look() == [1]
    files.is_down = True
    assert server.look() == [1]
    (problem,) = server.source.problems()["m"]
    assert problem.startswith("cannot read base path memory://bucket/m/ of m: no route")
    files.is_down = False
    upload(store, tmp_path, 2)
    assert server.look() == [2]
    assert server.source.problems() == {}
    server.close()


def test_a_start_copies_nothing_that_was_copied(store: Any, tmp_path: Path) -> None:
    """The next server finds the copy by the manifest alone."""
    upload(store, tmp_path, 1)
    files = RemoteFileSystem()
    first = Server(files, tmp_path / "cache")
    assert first.look() == [1]
    copies = first.target.calls[-1].versions
    first.close()
    store.rm_file("/bucket/m/1/table.csv")
    second = Server(files, tmp_path / "cache")
    assert second.look() == [1]
    assert second.target.calls[-1].versions == copies
    second.close()
