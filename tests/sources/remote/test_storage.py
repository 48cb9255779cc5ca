"""Base paths that are URLs, read through fsspec's in-memory store."""

from __future__ import annotations

import hashlib
import io
import sys
from typing import Any

import pytest

from sources.remote.storage import RemoteFileSystem
from sources.storage.file_system import AnyFileSystem, is_remote, local_path
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_file_system import FakeFileSystem

pytestmark = pytest.mark.usefixtures("store")

FILES = RemoteFileSystem()


def test_every_text_is_a_path_or_a_url() -> None:
    """What a configuration says is judged without an exception, and by its driver."""
    for url in ("s3://[bad/x", "simplecache::s3://bucket/x", "S3://b", "memory://x"):
        assert is_remote(url)
    for path in ("/models", "file:///models", "/odd://path", "://x", ""):
        assert not is_remote(path)
    assert RemoteFileSystem().place("s3://[bad/x") == "s3://[bad"
    with pytest.raises(OSError, match="bad"):
        AnyFileSystem(RemoteFileSystem()).list_directories("s3://[bad/x")


def write(store: Any, path: str, data: bytes = b"") -> None:
    store.makedirs(path.rpartition("/")[0], exist_ok=True)
    store.pipe_file(path, data)


@pytest.mark.parametrize(
    ("path", "remote", "local"),
    [
        ("/models/a", False, "/models/a"),
        ("file:///models/a", False, "/models/a"),
        ("memory://models/a", True, "memory://models/a"),
        ("s3://bucket/a", True, "s3://bucket/a"),
        ("gs://bucket/a", True, "gs://bucket/a"),
    ],
)
def test_urls_are_told_from_paths(path: str, remote: bool, local: str) -> None:
    """A file URL is a local path in other words."""
    assert is_remote(path) is remote
    assert local_path(path) == local


def test_directories_are_listed(store: Any) -> None:
    """Only directories, only the next level, only their own names."""
    write(store, "/models/a/1/servable.json")
    write(store, "/models/a/2/assets/x")
    write(store, "/models/a/file")
    assert FILES.list_directories("memory://models/a") == ["1", "2"]
    assert FILES.list_directories("memory://models/a/") == ["1", "2"]
    assert FILES.list_directories("memory://models") == ["a"]


def test_what_is_written_later_is_seen(store: Any) -> None:
    """No listing is remembered between two looks."""
    write(store, "/models/a/1/x")
    assert FILES.list_directories("memory://models/a") == ["1"]
    write(store, "/models/a/2/x")
    assert FILES.list_directories("memory://models/a") == ["1", "2"]
    store.rm("/models/a/1", recursive=True)
    assert FILES.list_directories("memory://models/a") == ["2"]


def test_what_is_not_there_is_told_as_such() -> None:
    """A missing prefix is FileNotFoundError, as for local files."""
    with pytest.raises(FileNotFoundError):
        FILES.list_directories("memory://absent")
    with pytest.raises(FileNotFoundError):
        FILES.contents("memory://absent")
    with pytest.raises(FileNotFoundError):
        FILES.read("memory://absent")
    assert not FILES.is_file("memory://absent")


def test_contents_change_with_every_file(store: Any) -> None:
    """Another file, another size or another time is another fingerprint."""
    write(store, "/m/1/model.pt", b"a")
    write(store, "/m/1/assets/x", b"b")
    before = FILES.contents("memory://m/1")
    assert before == FILES.contents("memory://m/1")
    assert before.names == {"model.pt", "assets"}
    assert before.has_manifest is False
    write(store, "/m/1/assets/servable.json")
    assert FILES.contents("memory://m/1").has_manifest is False
    store.rm("/m/1/assets/servable.json")
    write(store, "/m/2/servable.json")
    assert FILES.contents("memory://m/2").has_manifest is True
    assert before.newest_change_s is not None
    write(store, "/m/1/assets/x", b"longer")
    after = FILES.contents("memory://m/1")
    assert after.fingerprint != before.fingerprint
    write(store, "/m/1/__pycache__/x.pyc", b"")
    assert FILES.contents("memory://m/1").fingerprint == after.fingerprint


def test_files_are_sized_read_and_copied(store: Any) -> None:
    """The cache gets names, sizes, bytes and digests."""
    write(store, "/m/1/model.pt", b"weights")
    write(store, "/m/1/assets/x", b"b")
    assert FILES.file_sizes("memory://m/1") == {"assets/x": 1, "model.pt": 7}
    assert FILES.read("memory://m/1/model.pt") == b"weights"
    assert FILES.is_file("memory://m/1/model.pt")
    to = io.BytesIO()
    digest = FILES.copy("memory://m/1/model.pt", to)
    assert to.getvalue() == b"weights"
    assert digest == hashlib.sha256(b"weights").hexdigest()


def test_a_drivers_own_error_becomes_an_os_error(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers catch one kind of error, whatever the store."""

    class Weird(Exception):
        pass

    def fail(*_: object, **__: object) -> None:
        raise Weird("token expired")

    monkeypatch.setattr(type(store), "ls", fail)
    with pytest.raises(OSError, match="Weird: token expired"):
        FILES.list_directories("memory://m")


def test_credentials_that_were_replaced_are_found() -> None:
    """Drivers read them once; after a failure, and not all the time, they do so anew."""
    fsspec = pytest.importorskip("fsspec")
    memory_file_system = fsspec.get_filesystem_class("memory")
    valid, held, logins = ["old"], ["old"], []

    class Locked(memory_file_system):  # type: ignore[misc,valid-type]
        protocol = ("locked",)

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.key = held[0]
            logins.append(self.key)

        @classmethod
        def _strip_protocol(cls, path: str) -> Any:
            return super()._strip_protocol(path.removeprefix("locked:/"))

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            if self.key != valid[0]:
                raise PermissionError("no such key")
            return super().ls(path, detail, **options)

    fsspec.register_implementation("locked", Locked, clobber=True)
    clock = FakeClock()
    files = RemoteFileSystem(now=clock.now)
    fsspec.filesystem("memory").pipe_file("/m/1/servable.json", b"")
    assert files.list_directories("locked://m") == ["1"]
    valid[0] = "new"
    for _ in range(3):
        with pytest.raises(PermissionError, match="no such key"):
            files.list_directories("locked://m")
    held[0] = "new"
    assert logins == ["old", "old"]
    with pytest.raises(PermissionError, match="no such key; see that the server's"):
        files.list_directories("locked://m")
    clock.advance(15)
    with pytest.raises(PermissionError, match="no such key"):
        files.list_directories("locked://m")
    assert files.list_directories("locked://m") == ["1"]
    assert logins == ["old", "old", "new"]


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    """A driver is anybody's code: after its failure the caller gets the error, soon."""
    fsspec = pytest.importorskip("fsspec")
    memory_file_system = fsspec.get_filesystem_class("memory")
    clears = []

    class Looped(memory_file_system):  # type: ignore[misc,valid-type]
        protocol = ("looped",)

        @property
        def fs(self) -> Any:
            return self

        @classmethod
        def clear_instance_cache(cls) -> None:
            clears.append(cls)
            if len(clears) > 100:
                pytest.fail("goes round and round")

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            raise OSError(5, "Input/output error")

    fsspec.register_implementation("looped", Looped, clobber=True)
    with pytest.raises(OSError, match="Input/output error"):
        RemoteFileSystem().list_directories("looped://m")
    assert clears


def test_an_absent_driver_says_what_to_install() -> None:
    """A protocol nobody knows is an error of that base path."""
    with pytest.raises(OSError, match="nosuch"):
        FILES.list_directories("nosuch://bucket/m")


def test_absent_fsspec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, a URL is an error that names the extra."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(OSError, match="extra 'remote'"):
        FILES.list_directories("memory://m")


def test_paths_and_urls_live_side_by_side(store: Any) -> None:
    """Every call goes where its path points; stores give no events."""
    local = FakeFileSystem(FakeClock())
    local.write("/m/1/x")
    write(store, "/m/2/servable.json")
    files = AnyFileSystem(RemoteFileSystem(), local)
    assert list(files.list_directories("/m")) == ["1"]
    assert list(files.list_directories("file:///m")) == ["1"]
    assert list(files.list_directories("memory://m")) == ["2"]
    assert files.is_file("memory://m/2/servable.json")
    assert not files.is_file("/m/2/servable.json")
    assert files.contents("memory://m/2").names == {"servable.json"}
    assert (files.place("/m"), files.place("memory://m")) == ("", "memory://m")
