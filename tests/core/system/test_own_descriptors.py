from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tfs.core.system.own_descriptors import OWN


def in_a_fork(look: Callable[[], bool]) -> bool:
    """Returns what a function finds in a process that is forked from this one."""
    pid = os.fork()
    if pid == 0:  # the result, and no tests any more
        found = 2
        try:
            found = int(look())
        finally:
            os._exit(found)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return bool(code)


def is_socket(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_fork_has_neither_port_nor_connections_of_the_server(
    tmp_path: Path, kind: str
) -> None:
    """A killed server's clients are told at once, and the next one finds its port free."""
    family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
    with socket.socket(family) as listening, socket.socket(family) as client:
        listening.bind(("127.0.0.1", 0) if kind == "tcp" else str(tmp_path / "s"))
        listening.listen()
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        address = f"unix:{tmp_path / 's'}"
        if kind == "tcp":
            address = f"127.0.0.1:{listening.getsockname()[1]}"
        fds = [listening.fileno(), accepted.fileno()]
        assert in_a_fork(lambda: all(map(is_socket, fds)))
        OWN.add_address(address)
        try:
            assert in_a_fork(lambda: not any(map(is_socket, fds)))
            assert in_a_fork(lambda: is_socket(client.fileno()))
        finally:
            OWN.remove_address(address)
        assert all(map(is_socket, fds))
        accepted.sendall(b"still here")
        assert client.recv(64) == b"still here"
        accepted.close()


def test_a_fork_holds_no_lock_of_the_server(tmp_path: Path) -> None:
    """The next server has the state directory when this one is gone, whoever lives on."""
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    OWN.add(fd)
    try:
        assert in_a_fork(lambda: os.readlink(f"/proc/self/fd/{fd}") == os.devnull)
    finally:
        OWN.remove(fd)
        os.close(fd)
