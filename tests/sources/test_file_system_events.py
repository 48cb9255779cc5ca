"""The source on real files and real inotify: woken by changes, no sleeps.

The periods are an hour, so that whatever is seen in time was told by the kernel.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import Latest
from tfs.core.clock import MonotonicClock
from tfs.core.source import AspiredVersions, connect
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version
from tfs.testing.recording_target import RecordingTarget


def publish(base_path: Path, version: int) -> None:
    with new_version(str(base_path), version) as folder:
        Path(folder, "model.pt").write_bytes(b"weights")
        commit(folder, "torch_package", {}, {}, Producer())


class Watched:
    """A started source over one folder of models."""

    def __init__(self, *base_paths: Path) -> None:
        self.target: RecordingTarget[StoragePath] = RecordingTarget()
        self.source = FileSystemSource(
            FileSystemSourceOptions(
                tuple(ServableToMonitor(p.name, str(p), Latest()) for p in base_paths),
                poll_wait_s=0.2,
                rescan_s=3600,
                settle_s=0.05,
            )
        )
        connect(self.source, self.target)
        self.source.start()
        self.source.update_config(self.source.servables.values())
        assert self.source.wait_applied(MonotonicClock.now() + 20)

    def sees(self, name: str, versions: list[int]) -> bool:
        """Whether the last call for ``name`` comes to carry ``versions`` in time."""

        def told(calls: list[AspiredVersions[StoragePath]]) -> bool:
            mine = [c for c in calls if c.name == name]
            return bool(mine) and [d.id.version for d in mine[-1].versions] == versions

        return self.target.wait_for(told)


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    path = tmp_path / "digits"
    publish(path, 1)
    return path


@pytest.fixture
def watched(base_path: Path) -> Iterator[Watched]:
    w = Watched(base_path)
    yield w
    w.source.close()


def test_a_version_renamed_into_place_is_seen(
    watched: Watched, base_path: Path
) -> None:
    """Publishing a version wakes the source."""
    assert watched.sees("digits", [1])
    publish(base_path, 2)
    assert watched.sees("digits", [2])


def test_a_version_written_in_place_is_seen_with_its_manifest(
    watched: Watched, base_path: Path
) -> None:
    """The manifest's arrival in a new sub-directory wakes the source."""
    assert watched.sees("digits", [1])
    version = base_path / "2"
    version.mkdir()
    (version / "model.pt").write_bytes(b"weights")
    (version / "servable.json").write_text("{}")
    assert watched.sees("digits", [2])


def test_a_removed_version_is_seen(watched: Watched, base_path: Path) -> None:
    """Removing the newest version goes back to the one before."""
    publish(base_path, 2)
    assert watched.sees("digits", [2])
    shutil.rmtree(base_path / "2")
    assert watched.sees("digits", [1])


def test_an_overwritten_version_is_told_again(
    watched: Watched, base_path: Path
) -> None:
    """Changed files under a served version wake the source too."""
    assert watched.sees("digits", [1])
    (base_path / "1" / "model.pt").write_bytes(b"other weights")
    assert watched.target.wait_for(lambda calls: "overwritten" in calls[-1].reason)


def test_a_base_path_that_appears_is_found_and_watched_from_then_on(
    tmp_path: Path,
) -> None:
    """A model configured before its directory exists is served once it does."""
    late = tmp_path / "late"
    w = Watched(late)
    with w.source:
        assert w.sees("late", [])
        publish(late, 1)
        assert w.sees("late", [1])
        publish(late, 2)
        assert w.sees("late", [2])


def test_a_base_path_replaced_by_another_directory_is_followed(
    watched: Watched, base_path: Path, tmp_path: Path
) -> None:
    """The watch goes by the name, not by the directory that once had it."""
    assert watched.sees("digits", [1])
    publish(tmp_path / "new", 5)
    os.rename(base_path, tmp_path / "old")
    os.rename(tmp_path / "new", base_path)
    assert watched.sees("digits", [5])
    publish(base_path, 6)
    assert watched.sees("digits", [6])


def test_a_base_path_that_was_removed_and_made_anew_is_followed(
    watched: Watched, base_path: Path
) -> None:
    """Whoever publishes by removing everything first is seen the next time, too."""
    for version in (5, 6):
        assert watched.sees("digits", [version - 4 if version == 5 else 5])
        shutil.rmtree(base_path)
        publish(base_path, version)
    assert watched.sees("digits", [6])
    publish(base_path, 7)
    assert watched.sees("digits", [7])


def test_a_base_path_that_is_a_link_is_followed_when_it_turns(tmp_path: Path) -> None:
    """Releases side by side and a link that is swapped: each is seen, and watched."""
    base_path = tmp_path / "current"
    for version in (1, 2):
        publish(tmp_path / f"release{version}", version)
    base_path.symlink_to("release1")
    w = Watched(base_path)
    with w.source:
        assert w.sees("current", [1])
        (tmp_path / "next").symlink_to("release2")
        (tmp_path / "next").rename(base_path)
        assert w.sees("current", [2])
        publish(tmp_path / "release2", 3)
        assert w.sees("current", [3])


def test_what_changes_behind_a_linked_version_is_seen(
    watched: Watched, base_path: Path, tmp_path: Path
) -> None:
    """No event comes from where a link leads: it is looked at now and then."""
    publish(tmp_path / "store", 2)
    (base_path / "2").symlink_to(tmp_path / "store" / "2")
    assert watched.sees("digits", [2])
    (tmp_path / "store" / "2" / "model.pt").write_bytes(b"other weights")
    assert watched.target.wait_for(lambda calls: "overwritten" in calls[-1].reason)


def test_many_models_in_one_folder_are_all_watched(tmp_path: Path) -> None:
    """Beyond a handful the folder is watched, which costs no thread per model."""
    models = [tmp_path / f"m{index}" for index in range(40)]
    for model in models:
        publish(model, 1)
    w = Watched(*models)
    with w.source:
        for model in models:
            assert w.sees(model.name, [1])
        publish(models[17], 2)
        assert w.sees("m17", [2])
