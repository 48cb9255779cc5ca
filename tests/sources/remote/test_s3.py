"""Base paths in S3, against a server that speaks its protocol.

Needs the drivers and the server of the extra ``s3-test``; without them these tests are
skipped. Everything else about stores is tested with fsspec's memory store.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sources.chain import SourceChain
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.remote.adapter import FetchingSourceAdapter
from sources.remote.cache import VersionCache, VersionCacheOptions
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import ServableToMonitor
from sources.storage_path import StoragePath
from tests.sources.remote.remote_chain import upload
from tfs.core.version_directory import read_manifest, verify_files
from tfs.testing.fake_clock import FakeClock
from tfs.testing.recording_target import RecordingTarget

_LACKS = [
    name for name in ("s3fs", "moto", "flask") if not importlib.util.find_spec(name)
]

pytestmark = pytest.mark.skipif(
    bool(_LACKS),
    reason=f"no {', '.join(_LACKS)}: install the extra 's3-test' to run this",
)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3 server on loopback, and fsspec's file system for it, with a bucket."""
    import fsspec

    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # of other endpoints
    files = fsspec.filesystem("s3")
    files.mkdir("bucket")
    yield files
    files.rm("bucket", recursive=True)  # its servers share what they hold
    server.stop()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@dataclass
class World:
    """A source of one model in S3, its cache, and what the target is told."""

    tmp_path: Path
    clock: FakeClock = field(default_factory=FakeClock)
    target: RecordingTarget[StoragePath] = field(default_factory=RecordingTarget)

    def __post_init__(self) -> None:
        self.source = FileSystemSource(
            FileSystemSourceOptions(
                (ServableToMonitor("m", "s3://bucket/m"),), poll_wait_s=60
            ),
            clock=self.clock,
        )
        self.cache = VersionCache(
            VersionCacheOptions(str(self.tmp_path / "cache")), RemoteFileSystem()
        )
        adapter = FetchingSourceAdapter(self.cache, lambda _, copy: copy())
        self.chain = SourceChain(self.source, [adapter], self.target)

    def look(self) -> None:
        """Lets a poll come due, and looks."""
        self.clock.advance(60)
        self.source.step()

    def path(self) -> str:
        """Returns where the target finds the version it was told last."""
        (data,) = self.target.calls[-1].versions
        assert data.payload is not None
        return data.payload.path


def test_versions_in_s3_are_served_from_verified_copies(
    store: Any, tmp_path: Path
) -> None:
    """They appear, swap, and are told anew when their objects were replaced."""
    world = World(tmp_path)
    upload(store, tmp_path, 1)
    with closing(world.cache), world.chain:
        world.source.step()
        assert world.target.versions("m") == [1]
        manifest = read_manifest(world.path())
        assert manifest is not None
        verify_files(world.path(), manifest)
        # Half an upload: nothing says yet that it is whole.
        store.pipe_file("bucket/m/2/table.csv", b"key,value\na,2\n")
        world.look()
        assert world.target.versions("m") == [1]
        upload(store, tmp_path, 3)
        world.look()
        assert world.target.versions("m") == [3]
        assert Path(world.path(), "table.csv").read_text() == "key,value\na,3\n"


def test_a_bucket_that_is_emptied_unloads_nothing(store: Any, tmp_path: Path) -> None:
    """An emptied bucket leaves the last version loaded, and the status says why."""
    world = World(tmp_path)
    upload(store, tmp_path, 1)
    with closing(world.cache), world.chain:
        world.source.step()
        store.rm("bucket/m", recursive=True)
        world.look()
        assert world.target.versions("m") == [1]
        assert world.source.problems()["m"]
        upload(store, tmp_path, 2)
        world.look()
        assert world.target.versions("m") == [2]
        assert world.source.problems() == {}
