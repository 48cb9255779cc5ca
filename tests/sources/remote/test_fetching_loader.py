"""From a URL to a local, verified version that is served."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sources.remote.cache import FetchingLoader, VersionCache, VersionCacheOptions
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import StoragePath
from tests.sources.remote.fake_remote import FakeRemote
from tests.sources.remote.remote_chain import PathLoader, Server, upload
from tfs.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState
from tfs.core.version_directory import read_manifest, verify_files

ID = ServableId("m", 1)


def test_versions_in_a_store_are_served_from_local_copies(
    store: Any, tmp_path: Path
) -> None:
    """A version that appears in the store is loaded from a verified directory."""
    server = Server(RemoteFileSystem(), tmp_path / "cache")
    upload(store, tmp_path, 1)
    assert server.look() == [1]
    # Half an upload: no manifest yet, and a table is not still at once.
    store.pipe_file("/bucket/m/2/table.csv", b"key,value\n")
    server.clock.set_wall(0.0)
    assert server.look() == [1]
    upload(store, tmp_path, 3)
    assert server.look() == [3]
    verify_files(server.path(), read_manifest(server.path()))
    store.rm("/bucket/m", recursive=True)
    assert server.look() == [3]
    assert "does not exist" in server.source.problems()["m"][0]
    server.close()


class Outage(RemoteFileSystem):
    """A store that refuses everything, or its files alone, while it is down."""

    is_down = gives_nothing = False

    def list_directories(self, path: str) -> Sequence[str]:
        if self.is_down:
            raise OSError(5, "no route to store")
        return super().list_directories(path)

    def read(self, path: str) -> bytes:
        if self.is_down or self.gives_nothing:
            raise OSError(5, "no route to store")
        return super().read(path)


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


def test_a_copy_that_fails_is_a_load_that_fails(store: Any, tmp_path: Path) -> None:
    """The old version serves, and the copy is tried again as loads are."""
    files = Outage()
    server = Server(files, tmp_path / "cache")
    upload(store, tmp_path, 1)
    assert server.look() == [1]
    files.gives_nothing = True
    upload(store, tmp_path, 2)
    assert server.look() == [1]
    files.gives_nothing = False
    assert server.look() == [2]
    files.gives_nothing = True
    upload(store, tmp_path, 3)
    for _ in range(2):
        assert server.look() == [2]
    state = server.monitor.state(ServableId("m", 3))
    assert state is not None
    assert state.manager_state is ManagerState.END
    assert "cannot copy memory://bucket/m/3" in str(state.error)
    server.manager.try_again("m", {3})
    files.gives_nothing = False
    assert server.look() == [3]
    server.close()


def test_a_start_copies_nothing_that_was_copied(store: Any, tmp_path: Path) -> None:
    """The next server finds the copy by the manifest alone."""
    upload(store, tmp_path, 1)
    first = Server(RemoteFileSystem(), tmp_path / "cache")
    assert first.look() == [1]
    path = first.path()
    first.close()
    store.rm_file("/bucket/m/1/table.csv")
    second = Server(RemoteFileSystem(), tmp_path / "cache")
    assert second.look() == [1]
    assert second.path() == path
    second.close()


class Copies:
    """A cache with room for one version, and its store."""

    def __init__(self, tmp_path: Path) -> None:
        self.remote = FakeRemote()
        self.cache = VersionCache(VersionCacheOptions(str(tmp_path), 10), self.remote)

    def loader(self, version: int = 1) -> FetchingLoader[str]:
        """Returns a loader of a version of eight bytes."""
        of = self.remote.publish(f"s3://b/m/{version}", model_pt=b"%08d" % version)
        return FetchingLoader(of, self.cache, PathLoader)


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = Copies(tmp_path)
    yield made
    made.cache.close()


def test_a_copy_stays_while_its_version_is_loaded(copies: Copies) -> None:
    """Afterwards it goes when its room is needed."""
    loader = copies.loader()
    loader.load(ID)
    path = Path(loader.servable)
    with pytest.raises(Exception, match="in use"):
        copies.loader(2).load(ID)
    assert path.is_dir()
    loader.unload()
    loader.unload()
    copies.loader(2).load(ID)
    assert not path.exists()


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_version_that_is_never_loaded_keeps_no_copy(
    copies: Copies, is_refused: bool
) -> None:
    """Nobody unloads what was only asked for an estimate, or is of no platform."""
    loader = copies.loader()
    if is_refused:

        def refuse(path: str) -> PathLoader:
            raise InvalidArgument("no platform")

        of = StoragePath("s3://b/m/1")
        with pytest.raises(InvalidArgument):
            FetchingLoader(of, copies.cache, refuse).load(ID)
    else:
        loader.estimate_resources()
    del loader
    gc.collect()
    copies.loader(2).load(ID)


def test_each_attempt_tries_to_copy(copies: Copies) -> None:
    """A passing fault of the store costs an attempt; nothing else is left of it."""
    loader = copies.loader()
    copies.remote.failing_call = 1
    with pytest.raises(Unavailable):
        loader.load(ID)
    with pytest.raises(FailedPrecondition):
        _ = loader.servable
    loader.load(ID)
    assert loader.servable


def test_who_goes_back_to_what_is_here_needs_no_store(copies: Copies) -> None:
    """A version that made way comes back though the store is down, or has lost it."""
    loader = copies.loader()
    loader.load(ID)
    loader.unload()
    again = copies.loader()
    copies.remote.files.clear()
    again.load(ID)
    assert again.servable
