"""Local copies: verified, shared, bounded, and whole or absent."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from sources import local_copies
from sources.copy_damage import Damage, damage_of
from sources.remote_storage import WEAK
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache, VersionCacheOptions
from tests.sources.fake_remote import SIGNATURE, FakeRemote
from tests.threads import run_together
from tfs.core.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.core.manifest import FileEntry, Manifest
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


@pytest.mark.parametrize("damaged", ["model.pt", "servable.json"])
def test_a_copy_that_a_crash_cut_off_is_made_anew(
    tmp_path: Path, remote: FakeRemote, damaged: str
) -> None:
    """After a restart a file without its bytes is no reason to refuse the version."""
    options = VersionCacheOptions(str(tmp_path / "cache"))
    version = remote.publish("s3://b/m/1", model_pt=b"12345", table_csv=b"")
    first = VersionCache(options, remote)
    file = Path(first.fetch(version).path, damaged)
    first.close()
    file.chmod(0o600)
    file.write_bytes(b"")  # also of the blob that it is linked to
    again = VersionCache(options, remote)
    path = again.fetch(version).path
    verify_files(path, read_manifest(path))
    assert again.fetch(version).path == path
    again.close()


def test_equal_content_is_stored_once(cache: VersionCache, remote: FakeRemote) -> None:
    """Versions share files with the same bytes; equal versions share everything."""
    a = cache.fetch(remote.publish("s3://b/m/1", model_pt=b"one", words_txt=b"shared"))
    b = cache.fetch(remote.publish("s3://b/m/2", model_pt=b"two", words_txt=b"shared"))
    c = cache.fetch(remote.publish("gs://b/m/9", model_pt=b"one", words_txt=b"shared"))
    assert a.path == c.path != b.path
    inodes = {(Path(v.path) / "words.txt").stat().st_ino for v in (a, b)}
    assert len(inodes) == 1
    assert cache.size_bytes == len(b"one") + len(b"two") + len(b"shared")


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
    with pytest.raises(InvalidArgument, match="s3://b/m/1"):
        cache.fetch(StoragePath("s3://b/m/1"))
    form = Manifest("hashmap", {"../../x": FileEntry(1, "")}, {"a": SIGNATURE})
    remote.files["s3://b/m/1/servable.json"] = form.to_json().encode()
    with pytest.raises(InvalidArgument, match="leaves the version directory"):
        cache.fetch(StoragePath("s3://b/m/1"))
    assert remote.num_copies == 0


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("damage", ["changed", "replaced", "gone", "all gone"])
def test_a_copy_that_was_damaged_since_is_made_anew(
    cache: VersionCache, remote: FakeRemote, damage: str, has_manifest: bool
) -> None:
    """Whoever failed to load it has it looked at; what is whole is left alone."""
    version = remote.publish("s3://b/m/1", model_pt=b"weights", table_csv=b"a,b")
    if not has_manifest:
        del remote.files["s3://b/m/1/servable.json"]
    copy = cache.fetch(version)
    assert not cache.drop_if_damaged(copy)
    file = Path(copy.path) / "model.pt"
    if damage == "changed":
        file.chmod(0o644)
        file.write_bytes(b"wEights")
    elif damage == "all gone":
        shutil.rmtree(copy.path)
    else:
        file.unlink()
        if damage == "replaced":
            file.write_bytes(b"wEights")
    knows_files = has_manifest or damage != "gone"
    assert cache.drop_if_damaged(copy) is knows_files
    again = cache.fetch(version)
    assert (again != copy) is knows_files
    assert not cache.drop_if_damaged(again)
    assert file.exists() is knows_files
    if knows_files:
        assert file.read_bytes() == b"weights"
    for each in (copy, again):
        cache.release(each)


def test_damage_that_versions_share_is_found_for_each(
    cache: VersionCache, remote: FakeRemote
) -> None:
    """The bytes are taken from the store once more, for the first of them."""
    copies = [
        cache.fetch(remote.publish(f"s3://b/m/{n}", model_pt=b"same", x=b"%d" % n))
        for n in (1, 2)
    ]
    damaged = Path(copies[0].path) / "model.pt"
    damaged.chmod(0o644)
    damaged.write_bytes(b"diff")
    for n, copy in enumerate(copies, 1):
        assert cache.drop_if_damaged(copy)
        version = StoragePath(f"s3://b/m/{n}", "other", "torch_package")
        again = Path(cache.fetch(version).path)
        assert (again / "model.pt").read_bytes() == b"same"
        assert not cache.drop_if_damaged(copy)


def test_damage_that_two_find_is_mended_once(
    cache: VersionCache, remote: FakeRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who read the damaged copy for longer does not remove the one made since."""
    version = remote.publish("s3://b/m/1", model_pt=b"12345")
    copy = cache.fetch(version)
    file = Path(copy.path, "model.pt")
    file.chmod(0o600)
    file.write_bytes(b"54321")

    def while_another_mends(path: Path, blob_names: Mapping[int, str]) -> Damage | None:
        damage = damage_of(path, blob_names)
        monkeypatch.setattr(local_copies, "damage_of", damage_of)
        assert cache.drop_if_damaged(copy)
        cache.fetch(version)
        return damage

    monkeypatch.setattr(local_copies, "damage_of", while_another_mends)
    assert cache.drop_if_damaged(copy)
    assert Path(copy.path, "model.pt").read_bytes() == b"12345"


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


def test_shared_bytes_stay_while_one_version_needs_them(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """Dropping one version leaves the other one whole."""
    cache = bounded(tmp_path, remote, 30)
    one = cache.fetch(
        remote.publish("s3://b/m/1", a_txt=b"shared....", b_txt=b"1" * 10)
    )
    two = cache.fetch(
        remote.publish("s3://b/m/2", a_txt=b"shared....", b_txt=b"2" * 10)
    )
    cache.release(one)
    cache.fetch(remote.publish("s3://b/m/3", a_txt=b"3" * 10))
    assert not Path(one.path).exists()
    verify_files(two.path, read_manifest(two.path))
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


# -- without the store ---------------------------------------------------------------------


def reopened(tmp_path: Path, remote: FakeRemote, max_bytes: int = 99) -> VersionCache:
    """Returns the cache of another process, after the one before has ended."""
    return VersionCache(VersionCacheOptions(str(tmp_path), max_bytes), remote)


def test_a_version_that_looks_as_it_did_needs_no_store(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """A version that looks as it did is taken from the cache, also after a restart."""
    version = remote.publish("s3://b/m/0007", model_pt=b"weights")
    with closing(reopened(tmp_path, remote)) as cache:
        copy = cache.fetch(version)
    num_calls = remote.num_calls
    with closing(reopened(tmp_path, remote)) as cache:
        assert cache.copies("s3://b/m/") == {7: replace(version, platform="")}
        assert cache.copies("s3://b/other") == {}
        assert cache.fetch(version) == copy
        assert remote.num_calls == num_calls
        remote.failing_call = remote.num_calls + 1
        with pytest.raises(Unavailable):
            cache.fetch(replace(version, fingerprint="another"))


def test_a_version_that_may_be_another_is_asked_for_while_that_is_answered(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """A store that tells only sizes is asked each time, if it answers."""
    version = remote.publish("http://h/m/1", model_pt=b"old")
    weak = replace(version, fingerprint=f"{WEAK}3")
    with closing(reopened(tmp_path, remote)) as cache:
        old = cache.fetch(weak)
        remote.publish("http://h/m/1", model_pt=b"new")
        new = cache.fetch(weak)
        assert new.path != old.path
        remote.failing_call = remote.num_calls + 1
        assert cache.fetch(weak) == new
        # A store that hangs would keep for minutes whoever asks it.
        num_calls = remote.num_calls
        (recalled,) = cache.copies("http://h/m").values()
        assert cache.fetch(recalled).path == new.path
        assert remote.num_calls == num_calls
        # Once it answers, its version is asked for as before.
        assert recalled != weak
        assert cache.fetch(weak) == new
        assert remote.num_calls > num_calls


def test_what_was_removed_or_damaged_is_not_had_without_the_store(
    tmp_path: Path, remote: FakeRemote
) -> None:
    """Nothing is promised that is not whole; what cannot be read is forgotten."""
    versions = {
        number: remote.publish(f"s3://b/m/{number}", model_pt=b"%010d" % number)
        for number in (1, 2, 3)
    }
    with closing(reopened(tmp_path, remote, 25)) as cache:
        for version in versions.values():
            cache.release(cache.fetch(version))
        assert sorted(cache.copies("s3://b/m")) == [2, 3]
        copy = cache.fetch(versions[3])
    model = Path(copy.path, "model.pt")
    model.chmod(0o644)
    model.write_bytes(b"cut")
    (tmp_path / "known" / "half.json").write_text("{")
    with closing(reopened(tmp_path, remote, 25)) as cache:
        remote.failing_call = remote.num_calls + 1
        assert cache.fetch(versions[2]).fingerprint
        with pytest.raises(Unavailable):
            cache.fetch(versions[3])
    assert not (tmp_path / "known" / "half.json").exists()


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
    for folder in ("blobs", "versions"):
        (tmp_path / folder).mkdir()
    (tmp_path / "blobs" / ".tmp-x").write_bytes(b"half")
    (tmp_path / "versions" / ".tmp-y").mkdir()
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
