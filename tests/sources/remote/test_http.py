"""Base paths behind http, against a server of files on loopback.

Needs aiohttp, which the extra ``s3-test`` brings; without it these tests are skipped.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from sources.remote.storage import RemoteFileSystem
from tests.sources.remote.fake_remote import SIGNATURE
from tests.sources.remote.remote_chain import Server
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version

pytest.importorskip("aiohttp", reason="install the extra 's3-test' to run this")


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files, and pages that list directories."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL under which the folder ``served`` is found."""
    import fsspec

    (tmp_path / "served").mkdir()
    handler = partial(SilentHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
    fsspec.get_filesystem_class("http").clear_instance_cache()


def write(base_path: Path, version: int) -> Path:
    """Writes a version, whole at once."""
    with new_version(str(base_path), version) as folder:
        Path(folder, "table.csv").write_text(f"key,value\na,{version}\n")
        commit(folder, "hashmap", {"serving_default": SIGNATURE}, {}, Producer())
    return base_path / str(version)


def test_versions_behind_http_appear_swap_and_go(url: str, tmp_path: Path) -> None:
    """Versions behind http behave as in any store; without it there are copies."""
    base_path = tmp_path / "served" / "m"
    files = RemoteFileSystem()
    with closing(Server(files, tmp_path / "cache", base_path=f"{url}/m")) as server:
        assert server.look() == []
        write(base_path, 1)
        assert server.look() == [1]
        half = base_path / "2"
        half.mkdir()
        (half / "model.pt").write_bytes(b"half of a module")
        assert server.look() == [1]
        write(base_path, 3)
        assert server.look() == [3]
        assert Path(server.path(), "table.csv").read_text() == "key,value\na,3\n"
        (base_path / "3").rename(tmp_path / "away")
        assert server.look() == [1]
        base_path.rename(tmp_path / "gone")
        assert server.look() == [1]
        assert "does not exist" in server.source.problems()["m"][0]


def test_a_file_that_changes_under_a_version_behind_http_is_not_seen(
    url: str, tmp_path: Path
) -> None:
    """A list of links tells neither times nor digests: what is copied serves on."""
    base_path = tmp_path / "served" / "m"
    files = RemoteFileSystem()
    with closing(Server(files, tmp_path / "cache", base_path=f"{url}/m")) as server:
        folder = write(base_path, 1)
        assert server.look() == [1]
        path = server.path()
        (folder / "table.csv").write_text("key,value\na,8\n")
        assert server.look() == [1]
        assert server.path() == path
        assert "8" not in Path(path, "table.csv").read_text()
