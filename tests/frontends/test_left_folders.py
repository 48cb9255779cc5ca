"""tfs.frontends.rpc.grpcio.left_folders."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tfs.frontends.rpc.grpcio.left_folders import remove_left_folders

LATER_S = 3600.0


def bound(path: Path) -> socket.socket:
    """Returns a socket of a server at a path; nobody listens yet."""
    path.parent.mkdir(exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    return server


def removed(parent: Path, folder: Path) -> bool:
    """Returns whether a folder is removed, long after it was made."""
    now_s = folder.lstat().st_mtime + LATER_S
    return str(folder) in remove_left_folders(str(parent), now_s)


def test_sockets_of_a_server_that_is_gone_are_removed(tmp_path: Path) -> None:
    """Each kill of a server would leave a directory for ever."""
    folder = tmp_path / "tfs-ab_12345"
    for name in ("0", "1"):
        bound(folder / name).close()
    assert remove_left_folders(str(tmp_path), folder.stat().st_mtime + 1.0) == []
    assert removed(tmp_path, folder)
    assert not folder.exists()


def test_sockets_of_a_server_that_runs_stay(tmp_path: Path) -> None:
    """It is asked, however many others ask it at this moment."""
    folder = tmp_path / "tfs-ab_12345"
    with bound(folder / "0") as server:
        server.listen(0)
        assert not removed(tmp_path, folder)
        assert not removed(tmp_path, folder)  # its queue is full now
    assert (folder / "0").exists()


@pytest.mark.parametrize("name", ["tfs-ab_1234", "tfs-AB_12345", "tfs-cache-012345"])
def test_directories_of_others_stay(tmp_path: Path, name: str) -> None:
    """Their names are none that a server gives."""
    folder = tmp_path / name
    bound(folder / "0").close()
    assert not removed(tmp_path, folder)


@pytest.mark.parametrize("what", ["nothing", "file", "other name", "link"])
def test_what_holds_more_than_sockets_stays(tmp_path: Path, what: str) -> None:
    """Whatever else is in such a directory, no server put it there."""
    folder = tmp_path / "tfs-ab_12345"
    match what:
        case "nothing":
            folder.mkdir()
        case "file":
            bound(folder / "0").close()
            (folder / "1").touch()
        case "other name":
            bound(folder / "socket").close()
        case _:
            bound(tmp_path / "elsewhere" / "0").close()
            folder.symlink_to(tmp_path / "elsewhere")
    assert not removed(tmp_path, folder)
    assert folder.exists()
