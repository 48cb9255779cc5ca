"""Local copies: verified, shared, bounded, and whole or absent."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from sources.remote.cache import VersionCache, VersionCacheOptions
from sources.servable_to_monitor import StoragePath
from tests.sources.remote.fake_remote import SIGNATURE, FakeRemote
from tests.threads import run_together
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.version.manifest import FileEntry, Manifest
from tfs.core.version_directory import read_manifest, verify_files


@pytest.fixture
def remote() -> FakeRemote:
    return FakeRemote()


@pytest.fixture
def cache(tmp_path: Path, remote: FakeRemote) -> Iterator[VersionCache]:
    made = VersionCache(VersionCacheOptions(str(tmp_path / "cache")), remote)
    yield made
    made.close()


def bounded(tmp_path: Path, remote: FakeRemote, max_bytes: int) -> VersionCache:
    return VersionCache(VersionCacheOptions(str(tmp_path / "cache"), max_bytes), remote)


def test_a_copy_is_a_whole_verified_version(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """Every file is there, under its name, with the digest the manifest promises."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights", table_csv=b"a,b")
    copy = cache.fetch(version)
    assert (Path(copy.path) / "model.pt").read_bytes() == b"weights"
    verify_files(copy.path, read_manifest(copy.path))
    assert copy.platform == "torch_package"
    assert copy.fingerprint == Path(copy.path).name


def test_a_version_is_copied_once(cache: VersionCache, remote: FakeRemote) -> None:
    """A second fetch reads the manifest and no payload."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights")
    first = cache.fetch(version)
    copies = remote.num_copies
    assert cache.fetch(version) == first
    assert remote.num_copies == copies


def test_copies_survive_a_restart(tmp_path: Path, remote: FakeRemote) -> None:
    """The next server finds what the last one copied."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights")
    options = VersionCacheOptions(str(tmp_path))
    first = VersionCache(options, remote)
    path = first.fetch(version).path
    first.close()
    second = VersionCache(options, remote)
    copies = remote.num_copies
    assert second.fetch(version).path == path
    assert remote.num_copies == copies
    second.close()


def test_a_replaced_version_is_another_copy(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """New bytes under an old URL do not get the old copy."""
    old = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"old"))
    new = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"new"))
    assert old.path != new.path
    assert (Path(new.path) / "model.pt").read_bytes() == b"new"


def test_damage_on_the_way_is_found(cache: VersionCache, remote: FakeRemote) -> None:
    """A file that is not what its manifest says is never served, nor kept."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights")
    remote.files["s3://b/m/1/model.pt"] = b"WEIGHTS"
    with pytest.raises(DataLoss, match=r"model\.pt.*sha256"):
        cache.fetch(version)
    assert cache.size_bytes == 0
    remote.files["s3://b/m/1/model.pt"] = b"weights"
    assert (Path(cache.fetch(version).path) / "model.pt").read_bytes() == b"weights"


def test_a_bad_manifest_is_that_versions_error(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """A manifest that cannot be read, or leaves its directory, copies nothing."""
    remote.files["s3://b/m/1/servable.json"] = b"\xff{"
    with pytest.raises(DataLoss, match="s3://b/m/1"):
        cache.fetch(StoragePath("s3://b/m/1"))
    form = Manifest("hashmap", {"../../x": FileEntry(1, "")}, {"a": SIGNATURE})
    remote.files["s3://b/m/1/servable.json"] = form.to_json().encode()
    with pytest.raises(DataLoss, match="leaves the version directory"):
        cache.fetch(StoragePath("s3://b/m/1"))
    assert remote.num_copies == 0


def test_a_version_without_a_manifest_is_copied_by_its_fingerprint(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """A hand-written version has no digests; another fingerprint is another copy."""
    remote.files["s3://b/m/1/table.csv"] = b"a,b"
    remote.files["s3://b/m/1/assets/x"] = b"x"
    first = cache.fetch(StoragePath("s3://b/m/1", "f1"))
    assert (Path(first.path) / "assets" / "x").read_bytes() == b"x"
    assert cache.fetch(StoragePath("s3://b/m/1", "f1")).path == first.path
    remote.files["s3://b/m/1/table.csv"] = b"c,d"
    second = cache.fetch(StoragePath("s3://b/m/1", "f2"))
    assert (Path(second.path) / "table.csv").read_bytes() == b"c,d"
    assert (Path(first.path) / "table.csv").read_bytes() == b"a,b"


def test_an_object_that_leads_out_of_its_version_is_not_copied(
    cache: VersionCache, remote: FakeRemote, tmp_path: Path
) -> None:
    """Keys of objects are any text; a file of this machine is nobody's to write there."""
    remote.files["s3://b/m/1/model.pt2"] = b"weights"
    remote.files["s3://b/m/1/../../../evil"] = b"code"
    with pytest.raises(DataLoss, match=r"s3://b/m/1: .*evil.* leaves the version"):
        cache.fetch(StoragePath("s3://b/m/1", "some", "torch_export"))
    assert not list(tmp_path.rglob("evil"))


def test_equal_versions_share_a_copy(cache: VersionCache, remote: FakeRemote) -> None:
    """Whatever URL and store they come from, and only what differs is copied."""
    a = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"one", words_txt=b"same"))
    b = cache.fetch(remote.publish("s3://b/m/2", model_pt=b"two", words_txt=b"same"))
    num_copies = remote.num_copies
    c = cache.fetch(remote.publish("gs://b/m/9", model_pt=b"one", words_txt=b"same"))
    assert a.path == c.path != b.path
    assert remote.num_copies == num_copies


# -- bounds ------------------------------------------------------------------------------


def test_the_longest_unused_copy_makes_room(tmp_path: Path, remote: FakeRemote) -> None:
    """A full cache drops what nothing uses, the oldest use first."""
    cache = bounded(tmp_path, remote, 25)
    versions = [remote.publish(f"s3://b/m/{i}", model_pt=b"%10d" % i) for i in range(3)]
    copies = [cache.fetch(version) for version in versions[:2]]
    for copy in copies:
        cache.release(copy)
    cache.release(cache.fetch(versions[0]))  # used again: now the younger one
    cache.fetch(versions[2])
    assert Path(copies[0].path).is_dir()
    assert not Path(copies[1].path).exists()
    assert cache.size_bytes <= 25
    cache.close()


def test_what_is_in_use_stays(tmp_path: Path, remote: FakeRemote) -> None:
    """A version that does not fit beside those in use is refused with the numbers."""
    cache = bounded(tmp_path, remote, 15)
    first = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"0123456789"))
    second = remote.publish("s3://b/m/2", model_pt=b"abcdefghij")
    with pytest.raises(ResourceExhausted, match=r"10 bytes.*holds 10.*15 allowed"):
        cache.fetch(second)
    assert Path(first.path).is_dir()
    cache.release(first)
    assert Path(cache.fetch(second).path).is_dir()
    cache.close()


def test_a_copy_fetched_twice_is_released_twice(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """Every user of a copy holds it."""
    cache = bounded(tmp_path, remote, 15)
    version = remote.publish("s3://b/m/1", model_pt=b"0123456789")
    copy = cache.fetch(version)
    cache.fetch(version)
    cache.release(copy)
    other = remote.publish("s3://b/m/2", model_pt=b"abcdefghij")
    with pytest.raises(ResourceExhausted):
        cache.fetch(other)
    cache.release(copy)
    cache.fetch(other)
    cache.close()


def test_what_nothing_uses_goes_when_the_disk_is_full(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """A full disk evicts unused copies even without a bound."""
    cache = VersionCache(VersionCacheOptions(str(tmp_path)), remote)
    used = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"1"))
    old = cache.fetch(remote.publish("s3://b/m/2", model_pt=b"2"))
    cache.release(old)
    new = remote.publish("s3://b/m/3", model_pt=b"3")
    copy = remote.copy

    def write(path: str, to: BinaryIO) -> str:
        if Path(old.path).exists() or path in broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(path, to)

    broken: set[str] = set()
    remote.copy = write  # type: ignore[method-assign]
    assert Path(cache.fetch(new).path).is_dir()
    assert not Path(old.path).exists()
    assert Path(used.path).is_dir()
    broken.add("s3://b/m/4/model.pt")
    with pytest.raises(Unavailable, match=rf"b/m/4 to {tmp_path}: No space left on"):
        cache.fetch(remote.publish("s3://b/m/4", model_pt=b"4"))
    cache.close()


def test_copies_made_at_once_are_counted_once_each(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """Bytes that have arrived are not also among those that are still to come."""
    cache = bounded(tmp_path, remote, 40)
    first = remote.publish("s3://b/m/1", a_txt=b"a" * 12, b_txt=b"b" * 12)
    second = remote.publish("s3://b/n/1", c_txt=b"c" * 12)
    copy, fetched = remote.copy, []

    def half_way(path: str, to: BinaryIO) -> str:
        digest = copy(path, to)
        to.flush()
        if path.endswith("b.txt"):  # a.txt is here, and all bytes of this one
            fetched.append(cache.fetch(second))
        return digest

    remote.copy = half_way  # type: ignore[method-assign]
    cache.fetch(first)
    assert Path(fetched[0].path).is_dir()
    with pytest.raises(ResourceExhausted, match=r"5 bytes.*holds 36.*40 allowed"):
        cache.fetch(remote.publish("s3://b/m/2", d_txt=b"d" * 5))
    cache.close()


def test_a_copy_that_cannot_be_begun_holds_no_room(
    tmp_path: Path, remote: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder can be made, as on a full disk: what was set aside for it is free again."""
    cache = bounded(tmp_path, remote, 15)
    version = remote.publish("s3://b/m/1", model_pt=b"0123456789")

    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(Unavailable):
            cache.fetch(version)
    assert Path(cache.fetch(version).path).is_dir()
    cache.close()


# -- faults and sharing --------------------------------------------------------------------


def test_every_failing_call_leaves_a_cache_that_works(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """The n-th call to the store fails: an error worth a retry, no half copy."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights", words_txt=b"a")
    failures = 0
    for call in range(1, 10):
        cache = VersionCache(VersionCacheOptions(str(tmp_path / str(call))), remote)
        remote.num_calls, remote.failing_call = 0, call
        try:
            path = cache.fetch(version).path
        except Unavailable as error:
            failures += 1
            message = error.message
            assert not list((tmp_path / str(call) / "versions").iterdir())
            path = cache.fetch(version).path
            assert "Input/output error" in message
        verify_files(path, read_manifest(path))
        leftovers = list((tmp_path / str(call)).glob("*/.tmp-*"))
        assert leftovers == []
        cache.close()
    assert failures == 3


def test_leftovers_of_a_crash_are_cleared(tmp_path: Path, remote: FakeRemote) -> None:
    """Half copies of a server that died are gone at the next start."""
    (tmp_path / "versions" / ".tmp-y").mkdir(parents=True)
    (tmp_path / "versions" / ".tmp-y" / "model.pt").write_bytes(b"half")
    cache = VersionCache(VersionCacheOptions(str(tmp_path)), remote)
    cache.open()
    assert not list(tmp_path.glob("*/.tmp-*"))
    cache.close()


def test_one_directory_serves_one_server(tmp_path: Path, remote: FakeRemote) -> None:
    """A second server is refused, because it could drop what the first one uses."""
    first = VersionCache(VersionCacheOptions(str(tmp_path)), remote)
    first.open()
    second = VersionCache(VersionCacheOptions(str(tmp_path)), remote)
    with pytest.raises(FailedPrecondition, match="another server"):
        second.open()
    first.close()
    first.close()
    second.open()
    second.close()


def test_an_unusable_directory_is_told(tmp_path: Path, remote: FakeRemote) -> None:
    """A root that cannot be made is an error with its name."""
    (tmp_path / "file").touch()
    cache = VersionCache(VersionCacheOptions(str(tmp_path / "file" / "cache")), remote)
    with pytest.raises(FailedPrecondition, match="file/cache"):
        cache.open()


@pytest.mark.parametrize(("root", "max_bytes"), [("relative", None), ("/x", 0)])
def test_bad_options_are_refused(root: str, max_bytes: int | None) -> None:
    """Options are validated when they are made."""
    with pytest.raises(ValueError, match=r"root|max_bytes"):
        VersionCacheOptions(root, max_bytes)


def test_threads_that_fetch_the_same_version_share_it(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """Whoever comes first, all get the same whole copy."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights" * 1000, a_txt=b"a")
    results: list[StoragePath | ServingError] = []

    def fetch() -> None:
        try:
            results.append(cache.fetch(version))
        except ServingError as error:
            results.append(error)

    run_together(*[fetch] * 4)
    assert len(set(results)) == 1, results
    (copy,) = set(results)
    assert isinstance(copy, StoragePath)
    verify_files(copy.path, read_manifest(copy.path))
