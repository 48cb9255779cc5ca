"""Base paths in S3, against a server that speaks its protocol.

Needs the drivers and the server of the extra ``s3-test``; without them these tests are
skipped. Everything else about stores is tested with fsspec's memory store.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sources.remote.storage import RemoteFileSystem
from tests.sources.remote.remote_chain import Server, upload
from tfs.core.version_directory import read_manifest, verify_files

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


def test_versions_in_s3_are_served_from_verified_copies(
    store: Any, tmp_path: Path
) -> None:
    """They appear, and swap once they are whole."""
    with closing(Server(RemoteFileSystem(), tmp_path, "s3://bucket/m")) as server:
        upload(store, tmp_path, 1)
        assert server.look() == [1]
        verify_files(server.path(), read_manifest(server.path()))
        # Half an upload: nothing says yet that it is whole.
        store.pipe_file("bucket/m/2/table.csv", b"key,value\na,2\n")
        assert server.look() == [1]
        upload(store, tmp_path, 3)
        assert server.look() == [3]
        assert Path(server.path(), "table.csv").read_text() == "key,value\na,3\n"


def test_a_bucket_that_is_emptied_unloads_nothing(store: Any, tmp_path: Path) -> None:
    """An emptied bucket leaves the last version loaded, and the status says why."""
    with closing(Server(RemoteFileSystem(), tmp_path, "s3://bucket/m")) as server:
        upload(store, tmp_path, 1)
        assert server.look() == [1]
        store.rm("bucket/m", recursive=True)
        assert server.look() == [1]
        assert server.source.problems()["m"]
        upload(store, tmp_path, 2)
        assert server.look() == [2]
        assert server.source.problems() == {}
