"""From a URL to a local, verified version: source, cache and adapter together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sources.chain import SourceChain
from sources.fetching_adapter import FetchingSourceAdapter
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote_storage import RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor
from sources.storage import Contents
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache, VersionCacheOptions
from tests.sources.remote_chain import Server, upload
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
        self._check()
        return super().list_directories(path)

    def contents(self, path: str) -> Contents:
        self._check()
        return super().contents(path)

    def read(self, path: str) -> bytes:
        self._check()
        return super().read(path)

    def _check(self) -> None:
        if self.is_down:
            raise OSError(5, "no route to store")


def test_a_start_and_a_rollback_need_no_store_for_what_was_copied(
    store: Any, tmp_path: Path
) -> None:
    """Copies serve a start and a rollback until the store answers again."""
    files = Outage()
    first = Server(files, tmp_path / "cache")
    for version in (1, 2, 3):
        upload(store, tmp_path, version)
        assert first.look() == [version]
    files.is_down = True
    assert first.look() == [3]
    assert first.pin(2) == [3, 2]
    assert "no route to store" in first.source.problems()["m"][0]
    first.close()
    second = Server(files, tmp_path / "cache")
    assert second.look() == [3]
    assert list(second.source.at_hand("m")) == [1, 2, 3]
    files.is_down = False
    copies = second.target.calls[-1].versions
    assert second.look() == [3]
    assert second.target.calls[-1].versions == copies  # nothing to load anew
    assert second.source.problems() == {}
    upload(store, tmp_path, 4)
    assert second.look() == [4]
    second.close()


def test_what_was_removed_from_a_store_does_not_come_back_when_that_is_down(
    store: Any, tmp_path: Path
) -> None:
    """Its copy is still here, and whoever edits a config meanwhile did not ask for it."""
    files = Outage()
    server = Server(files, tmp_path / "cache")
    for version in (1, 2, 3):
        upload(store, tmp_path, version)
        assert server.look() == [version]
    store.rm("/bucket/m/3", recursive=True)
    assert server.look() == [2]
    files.is_down = True
    assert server.look() == [2]
    assert server.pin(1) == [2, 1]
    assert list(server.source.at_hand("m")) == [1, 2]
    assert server.pin() == [2]
    assert server.pin(3) == [3]  # by name it is had, and stays
    files.is_down = False
    assert server.look() == [2, 3]
    server.close()


def test_what_was_removed_from_a_store_does_not_come_back_by_a_restart(
    store: Any, tmp_path: Path
) -> None:
    """The store did not show it before, and cannot be asked now. Shown again, it counts."""
    files = Outage()
    first = Server(files, tmp_path / "cache")
    for version in (2, 3):
        upload(store, tmp_path, version)
        assert first.look() == [version]
    store.mv("/bucket/m/3", "/bucket/aside", recursive=True)
    assert first.look() == [2]
    first.close()
    files.is_down = True
    second = Server(files, tmp_path / "cache")
    assert second.look() == [2]
    files.is_down = False
    store.mv("/bucket/aside", "/bucket/m/3", recursive=True)
    assert second.look() == [3]
    second.close()
    files.is_down = True
    third = Server(files, tmp_path / "cache")
    assert third.look() == [3]
    third.close()


def test_what_is_shown_again_counts_after_a_restart_though_it_was_not_copied_again(
    store: Any, tmp_path: Path
) -> None:
    """A store that shows nothing for once says nothing of its versions."""
    files = Outage()
    first = Server(files, tmp_path / "cache")
    for version in (2, 3):
        upload(store, tmp_path, version)
        assert first.look() == [version]
    for away, left in (("3", [2]), ("2", [2]), ("", [3])):
        if away:
            store.mv(f"/bucket/m/{away}", f"/bucket/aside{away}", recursive=True)
        else:
            for back in ("2", "3"):
                store.mv(f"/bucket/aside{back}", f"/bucket/m/{back}", recursive=True)
        assert first.look() == left
    first.close()
    files.is_down = True
    second = Server(files, tmp_path / "cache")
    assert second.look() == [3]
    second.close()


def test_what_was_never_copied_is_not_had_without_its_store(
    store: Any, tmp_path: Path
) -> None:
    """Nothing is found, and that is told."""
    upload(store, tmp_path, 1)
    files = Outage()
    files.is_down = True
    server = Server(files, tmp_path / "cache", 1)
    assert server.look() == []
    (problem,) = server.source.problems()["m"]
    assert problem.startswith("cannot read base path memory://bucket/m/ of m: no route")
    server.close()
