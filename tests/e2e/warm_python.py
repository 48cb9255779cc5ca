"""Servers that start at once: forks of a Python that has imported torch.

Importing is nearly all of what the start of a server takes, and end-to-end tests start
many. What a fork cannot show (the order of imports, what a fresh process maps) is left
to the tests that start a fresh one.

The program that forks has one thread and one wish per message: a command line, with
the ends of two pipes. The first becomes both outputs of the fork; into the second it
writes the fork's pid, and the wait status when the fork has ended. It ends when nobody
holds the other end of its socket any more.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TextIO

ROOT: Final = Path(__file__).resolve().parents[2]
START_TIMEOUT_S: Final = 60.0
WISH_BYTES: Final = 1 << 16
NUMBER: Final = struct.Struct("<i")

_IMPORTED: Final = (
    "grpc",
    "torch",
    "tfs.cli.main",
    "tfs.cli.serving.serve",
    "tfs.export",
    "tfs.frontends.grpcio.transport",
    "tfs.runtime.inline.inline_interpreter",
    "tfs.server.process",
    "tfs.servables.registry",
)


class ForkedProcess:
    """A fork, with as much of ``Popen`` as tests use. Confined to one thread at a time.

    Attributes:
        pid: Its process.
        stdout: Both of its outputs.
        returncode: As of ``Popen``; None until ``poll`` or ``wait`` has seen its end.

    """

    def __init__(self, stdout: TextIO, status_fd: int) -> None:
        self.stdout = stdout
        self.returncode: int | None = None
        self._status_fd = status_fd
        self.pid = self._read(START_TIMEOUT_S)

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        if self.returncode is None and self._is_told(0.0):
            self._end()
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Blocks until it has ended; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It has not, in that time.

        """
        if self.returncode is None:
            if not self._is_told(timeout_s):
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout_s or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the end was seen."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        status = self._read(0.0)
        os.close(self._status_fd)
        self.returncode = os.waitstatus_to_exitcode(status)

    def _read(self, timeout_s: float) -> int:
        assert self._is_told(timeout_s), "no fork was made"
        data = os.read(self._status_fd, NUMBER.size)
        assert len(data) == NUMBER.size, "what makes the forks has ended"
        number: int = NUMBER.unpack(data)[0]
        return number

    def _is_told(self, timeout_s: float | None) -> bool:
        ready, _, _ = select.select([self._status_fd], [], [], timeout_s)
        return bool(ready)


class WarmPython:
    """Starts the program that forks at the first wish. Confined to one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(
        self, *words: str, no_progress_timeout_s: float | None = None
    ) -> ForkedProcess:
        """Starts the ``tfs`` command with these words, both outputs in one pipe.

        Args:
            words: Its arguments.
            no_progress_timeout_s: When a server ends clients of express that make no
                progress, for which there is no flag; None for what it has.

        """
        return self._fork([no_progress_timeout_s, "", "", *words])

    def run_script(self, script: Path, *words: str, folder: Path) -> ForkedProcess:
        """Starts a script in a folder with these words, both outputs in one pipe."""
        return self._fork([None, str(script), str(folder), *words])

    def _fork(self, wish: list[str | float | None]) -> ForkedProcess:
        if self._socket is None:
            self._start()
        assert self._socket is not None
        out, told = os.pipe(), os.pipe()
        message = json.dumps(wish).encode()
        assert len(message) < WISH_BYTES
        socket.send_fds(self._socket, [message], [out[1], told[1]])
        os.close(out[1])
        os.close(told[1])
        return ForkedProcess(os.fdopen(out[0], encoding="utf-8"), told[0])

    def close(self) -> None:
        """Ends the program; its forks live on. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait(START_TIMEOUT_S)
            self._process = None

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=self.environment,
            )
        atexit.register(self.close)


def _fork_on_wish(wishes: socket.socket) -> list[Any] | None:
    """Forks until nobody wishes any more.

    Returns:
        In a fork what is wished, outputs in place; None in the first process.

    """
    running: dict[int, _Running] = {}  # by pidfd
    poll = select.poll()
    poll.register(wishes, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                poll.unregister(fd)
                running.pop(fd).tell_end()
                continue
            message, (output, told) = _next_wish(wishes)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                wishes.close()
                for other in (
                    told,
                    *(each.told for each in running.values()),
                    *running,
                ):
                    os.close(other)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.close(output)
                return list(json.loads(message))
            os.close(output)
            os.write(told, NUMBER.pack(pid))
            pidfd = os.pidfd_open(pid)
            running[pidfd] = _Running(pid, pidfd, told)
            poll.register(pidfd, select.POLLIN)


def _next_wish(wishes: socket.socket) -> tuple[bytes, tuple[int, int]]:
    message, fds, _, _ = socket.recv_fds(wishes, WISH_BYTES, 2)
    return message, (fds[0], fds[1]) if message else (-1, -1)


class _Running(NamedTuple):
    """A fork; where its end is seen, and where it is told."""

    pid: int
    pidfd: int
    told: int

    def tell_end(self) -> None:
        """Reaps it."""
        os.close(self.pidfd)
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(BrokenPipeError):  # whoever wished for it has ended
            os.write(self.told, NUMBER.pack(status))
        os.close(self.told)


def _main(fd: int) -> NoReturn:
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks would look for garbage in it and write to each of its pages
    wish = _fork_on_wish(socket.socket(fileno=fd))
    if wish is None:
        sys.exit(0)
    timeout_s, script, folder, *words = wish
    if script:
        os.chdir(folder)
        sys.argv, sys.path[0] = [script, *words], str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
        sys.exit(0)
    if timeout_s is not None:
        from tfs.frontends.express.client_state import ExpressOptions
        from tfs.server.ports import transports

        options = functools.partial(ExpressOptions, no_progress_timeout_s=timeout_s)
        vars(transports)["ExpressOptions"] = options
    from tfs.cli.main import main

    sys.exit(main(words))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
