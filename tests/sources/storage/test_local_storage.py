"""Real directories: what a version holds, and which mounts tell of changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sources.storage import version_contents
from sources.storage.file_system import LocalFileSystem
from tfs.core.version.manifest import MANIFEST

FILES = LocalFileSystem()


def test_directories_are_listed_links_followed(tmp_path: Path) -> None:
    """Directories and links to directories count, files and dead links do not."""
    (tmp_path / "1").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "2").symlink_to(tmp_path / "1")
    (tmp_path / "3").symlink_to(tmp_path / "nowhere")
    assert sorted(FILES.list_directories(str(tmp_path))) == ["1", "2"]


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    """Those that lead to a file or a directory are not among them, nor is the rest."""
    (tmp_path / "1").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "2").symlink_to("1")
    (tmp_path / "4").symlink_to("file")
    (tmp_path / "3").symlink_to(tmp_path / "nowhere")
    (tmp_path / "5").symlink_to("5")
    assert sorted(FILES.broken_links(str(tmp_path))) == ["3", "5"]
    with pytest.raises(FileNotFoundError):
        FILES.broken_links(str(tmp_path / "nowhere"))


def test_a_link_that_goes_round_hides_nothing(tmp_path: Path) -> None:
    """One bad link costs neither the base path nor the version that it lies in."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "table.csv").write_text("key,value\na,1\n")
    (tmp_path / "1" / "round").symlink_to("round")
    (tmp_path / "2").symlink_to("2")
    assert FILES.list_directories(str(tmp_path)) == ["1"]
    contents = FILES.contents(str(tmp_path / "1"))
    assert contents.names == {"table.csv", "round"}
    assert not contents.is_barred


def test_what_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    """A missing path and a file where a directory should be are told apart."""
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError):
        FILES.list_directories(str(tmp_path / "absent"))
    with pytest.raises(NotADirectoryError):
        FILES.list_directories(str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        FILES.contents(str(tmp_path / "absent"))
    assert not FILES.is_file(str(tmp_path / "absent"))
    assert not FILES.is_file(str(tmp_path))
    assert FILES.is_file(str(tmp_path / "file"))


def test_contents_change_with_every_file(tmp_path: Path) -> None:
    """Any file written, added, removed or renamed, however deep, shows."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "model.pt").write_bytes(b"a")
    (tmp_path / "assets" / "words").write_bytes(b"b")
    prints = [FILES.contents(str(tmp_path)).fingerprint]
    assert FILES.contents(str(tmp_path)).fingerprint == prints[0]
    (tmp_path / "assets" / "words").write_bytes(b"longer")
    prints.append(FILES.contents(str(tmp_path)).fingerprint)
    (tmp_path / "assets" / "words").rename(tmp_path / "assets" / "others")
    prints.append(FILES.contents(str(tmp_path)).fingerprint)
    (tmp_path / "assets" / "others").unlink()
    prints.append(FILES.contents(str(tmp_path)).fingerprint)
    assert len(set(prints)) == 4


def test_other_contents_of_the_same_size_and_age_show_in_the_manifest(
    tmp_path: Path,
) -> None:
    """What is unpacked from an archive, or copied with its times, may look the same."""
    prints = []
    for text in ("{}", "[]"):
        (tmp_path / MANIFEST).write_text(text)
        os.utime(tmp_path / MANIFEST, (1, 1))
        prints.append(FILES.contents(str(tmp_path)).fingerprint)
    assert prints[0] != prints[1]
    (tmp_path / MANIFEST).unlink()
    (tmp_path / MANIFEST).mkdir()
    assert FILES.contents(str(tmp_path)).fingerprint not in prints


def test_without_a_manifest_the_change_time_tells_files_of_the_same_size_and_age(
    tmp_path: Path,
) -> None:
    """Weights that tar unpacks with a fixed time have the size and age of the last ones."""
    payload = tmp_path / "model.pt"
    payload.write_bytes(b"a")
    os.utime(payload, (1, 1))
    at = str(tmp_path)
    with_odd_times = LocalFileSystem(lambda: f"1 1 0:1 / {at} rw - fuse.x x rw")
    before = FILES.contents(at).fingerprint, with_odd_times.contents(at).fingerprint
    changed_ns = payload.stat().st_ctime_ns
    while payload.stat().st_ctime_ns == changed_ns:  # the kernel's clock ticks slowly
        payload.write_bytes(b"b")
        os.utime(payload, (1, 1))
    assert FILES.contents(at).fingerprint != before[0]
    assert with_odd_times.contents(at).fingerprint == before[1]


def test_beside_a_manifest_the_change_time_does_not_count(tmp_path: Path) -> None:
    """`chmod -R` over a thousand models loads none again: the digests say what they are."""
    payload = tmp_path / "model.pt"
    payload.write_bytes(b"a")
    (tmp_path / MANIFEST).write_text("{}")
    before = FILES.contents(str(tmp_path)).fingerprint
    changed_ns = payload.stat().st_ctime_ns
    while payload.stat().st_ctime_ns == changed_ns:
        payload.chmod(0o640)
    assert FILES.contents(str(tmp_path)).fingerprint == before


def test_what_lies_behind_a_link_in_a_version_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of assets may be mounted or mended later; no event tells of that."""
    version, store = tmp_path / "1", tmp_path / "store"
    version.mkdir()
    (version / "assets").symlink_to(store)
    prints = [FILES.contents(str(version))]  # it leads nowhere yet
    (store / "deep").mkdir(parents=True)
    prints.append(FILES.contents(str(version)))
    (store / "deep" / "words").write_text("a")
    prints.append(FILES.contents(str(version)))
    with monkeypatch.context() as patch:
        patch.setattr(version_contents, "_may_read", lambda path: "words" not in path)
        prints.append(FILES.contents(str(version)))
        assert prints[-1].is_barred
    store.rename(tmp_path / "old")
    (tmp_path / "old").rename(store)
    (store / "loop").symlink_to(version)
    (store / "again").symlink_to(store)
    prints.append(FILES.contents(str(version)))
    assert len({each.fingerprint for each in prints}) == len(prints)
    assert all(each.is_linked for each in prints)
    assert not prints[-1].is_barred


def test_far_too_much_behind_a_link_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that links to a data set is served all the same, and looked at quickly."""
    monkeypatch.setattr(version_contents, "MAX_LINKED_ENTRIES", 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "data").symlink_to(tmp_path / "data")
    (tmp_path / "1" / "model.pt").write_text("a")
    for number in range(9):
        (tmp_path / "data" / f"{number}").write_text("b")
    assert FILES.contents(str(tmp_path / "1")).names == {"data", "model.pt"}


def test_a_link_to_another_directory_is_a_change(tmp_path: Path) -> None:
    """A version may be a link; what it leads to may look the same as what it led to."""
    version = tmp_path / "1"
    prints = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.csv").write_text("x,y\n")
        os.utime(tmp_path / name / "table.csv", (1, 1))
        version.unlink(missing_ok=True)
        version.symlink_to(name)
        contents = FILES.contents(str(version))
        assert contents.is_linked
        prints.append(contents.fingerprint)
    assert prints[0] != prints[1]
    assert not FILES.contents(str(tmp_path / "a")).is_linked


def test_contents_change_when_a_file_can_be_read_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever mends permissions writes nothing, and wants the version all the same."""
    (tmp_path / "model.pt").write_bytes(b"a")
    after = FILES.contents(str(tmp_path))
    monkeypatch.setattr(version_contents, "_may_read", lambda path: False)
    before = FILES.contents(str(tmp_path))
    assert before.fingerprint != after.fingerprint
    assert (before.is_barred, after.is_barred) == (True, False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_whether_a_file_can_be_read_is_asked_of_the_system(tmp_path: Path) -> None:
    """Whether a file can be read is asked of the system, for the server's user."""
    (tmp_path / "model.pt").write_bytes(b"a")
    before = FILES.contents(str(tmp_path)).fingerprint
    (tmp_path / "model.pt").chmod(0)
    assert FILES.contents(str(tmp_path)).fingerprint != before


def test_a_directory_in_anothers_place_is_a_change(tmp_path: Path) -> None:
    """What failed while it was replaced by an equal copy is worth another load."""
    for name in ("1", "new"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"a")
        os.utime(folder / "model.pt", (1e9, 1e9))
    at = str(tmp_path / "1")
    numbers_anew = LocalFileSystem(lambda: f"1 1 0:1 / {tmp_path} rw - nfs server rw")
    before = FILES.contents(at), numbers_anew.contents(at)
    (tmp_path / "1").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "1")
    assert FILES.contents(at).fingerprint != before[0].fingerprint
    assert numbers_anew.contents(at).fingerprint == before[1].fingerprint


def test_contents_name_the_top_level_only(tmp_path: Path) -> None:
    """Files and folders of a version, without what lies in the folders."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "words").touch()
    (tmp_path / "table.csv").touch()
    assert FILES.contents(str(tmp_path)).names == {"assets", "table.csv"}


def test_importing_code_is_no_change(tmp_path: Path) -> None:
    """Byte code that an import leaves behind is not the version's."""
    (tmp_path / "servable.py").touch()
    before = FILES.contents(str(tmp_path)).fingerprint
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "servable.pyc").touch()
    assert FILES.contents(str(tmp_path)).fingerprint == before


def test_times_set_back_do_not_hide_a_change(tmp_path: Path) -> None:
    """A copy that keeps old modification times is as new as its inode."""
    file = tmp_path / "table.csv"
    file.touch()
    os.utime(file, (1, 1))
    os.utime(tmp_path, (1, 1))
    newest_s = FILES.contents(str(tmp_path)).newest_change_s
    assert newest_s is not None
    assert newest_s >= file.stat().st_ctime


def test_a_link_upwards_ends_nothing(tmp_path: Path) -> None:
    """A version that links to a folder above it is looked at once."""
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dead").symlink_to(tmp_path / "nowhere")
    assert FILES.contents(str(tmp_path)).names == {"loop", "dead"}


MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /proc rw - proc proc rw
30 21 0:30 / /models rw shared:2 - nfs4 server:/models rw
31 30 8:2 / /models/local rw - xfs /dev/sdb1 rw
32 21 0:31 / /mnt/with\040blank rw - fuse.sshfs host:/x rw
33 21 0:32 / /twice rw - ext4 /dev/sdc1 rw
34 21 0:33 / /twice rw - cifs //server/share rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/models", "nfs4"),
        ("/models/digits", "nfs4"),
        ("/models/local/digits", "xfs"),
        ("/modelsandmore", "ext4"),
        ("/mnt/with blank/x", "fuse.sshfs"),
        ("/twice/x", "cifs"),
    ],
)
def test_a_path_lies_on_its_nearest_mount(path: str, kind: str) -> None:
    """The longest mount point decides, of equal ones the last."""
    assert (not LocalFileSystem(lambda: MOUNTS).place(path)) == (
        kind in ("ext4", "xfs")
    )


def test_a_link_into_a_network_mount_is_of_that_place_and_nothing_there_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mount does not answer, so where a path leads is found without asking it."""
    (tmp_path / "to-nfs").symlink_to("/models/digits")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "relative").symlink_to("../to-nfs/1")
    (tmp_path / "round").symlink_to("round")
    files = LocalFileSystem(lambda: MOUNTS)
    read_link = os.readlink

    def readlink(path: str) -> str:
        assert not path.startswith("/models")
        return read_link(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert files.place("/models/digits") == "/models"
    assert files.place(str(tmp_path / "to-nfs" / "2")) == "/models"
    assert files.place(str(tmp_path / "there" / "relative")) == "/models"
    assert files.place(str(tmp_path / "round")) == ""
    assert files.place(str(tmp_path / "there")) == ""


def test_a_mount_that_appears_is_known_a_second_later() -> None:
    """The list of mounts is not read for each of a thousand base paths."""
    mounts, now_s = [""], [0.0]
    files = LocalFileSystem(lambda: mounts[0], lambda: now_s[0])
    assert files.place("/models/digits") == ""
    mounts[0] = MOUNTS
    assert files.place("/models/digits") == ""
    now_s[0] = 1.0
    assert files.place("/models/digits") == "/models"


def test_unknown_mounts_are_trusted() -> None:
    """Where nothing is known the kernel is asked; a look now and then helps anyway."""
    assert LocalFileSystem(lambda: "").place("/models") == ""
    assert LocalFileSystem().place("/proc") == ""


def test_what_is_no_path_has_no_place() -> None:
    """Where something lies is asked before anybody says that it cannot lie anywhere."""
    assert LocalFileSystem().place("/models/a\0b") == ""
    assert LocalFileSystem().place("/" + "x" * 5000) == ""


def test_what_holds_far_too_much_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A numbered folder of a data set must not be walked through at every look."""
    monkeypatch.setattr(version_contents, "MAX_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).mkdir()
    assert LocalFileSystem().contents(str(tmp_path)).names == {"a", "b", "c"}
    (tmp_path / "a" / "x").write_text("")
    with pytest.raises(OSError, match="more than 3 files and folders"):
        LocalFileSystem().contents(str(tmp_path))
