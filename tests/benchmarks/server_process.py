"""A server under measurement, in a process of its own."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parents[2]

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class ServerProcess:
    """Starts a program, waits until it says where it listens, ends it.

    Confined to one thread. As a context manager it runs from the first line it was
    waiting for until SIGTERM, and SIGKILL where that is not heeded; the program's
    output goes to an unnamed file, whose end is part of every complaint.

    Args:
        command: the program and its arguments; it runs in the repository's root.
        announcement: a regular expression with one group, the target, searched for in
            each line of standard output.
        env: added to this process's environment.
        cores: where it may run, with all its threads and children; anywhere by default.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        announcement: str = r"listening on (\S+)",
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        cores: Collection[int] | None = None,
    ) -> None:
        self._command = list(command)
        self._announcement = re.compile(announcement)
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        self._start_timeout_s = start_timeout_s
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self.target = ""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            if self._cores is not None:
                # It has one thread yet; those to come inherit this.
                os.sched_setaffinity(self._process.pid, self._cores)
            self.target = self._wait_for_announcement()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def output(self, after_bytes: int = 0) -> str:
        """Returns what the program printed so far, after the first bytes of it."""
        if self._output is None:
            return ""
        size_bytes = os.fstat(self._output.fileno()).st_size - after_bytes
        output = os.pread(self._output.fileno(), max(0, size_bytes), after_bytes)
        return output.decode(errors="replace")

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM and blocks until the program ended; its output stays.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self._process is None:
            raise RuntimeError("the server was not started")
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout_s)

    def _wait_for_announcement(self) -> str:
        """Polls the output: a pipe would have to be drained as long as the server runs."""
        process = self._process
        assert process is not None
        deadline_s = time.monotonic() + self._start_timeout_s
        pidfd = os.pidfd_open(process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pidfd, selectors.EVENT_READ)
                while True:
                    match = self._announcement.search(self.output())
                    if match is not None:
                        return match[1]
                    if selector.select(0.05):
                        raise RuntimeError(self._complaint("ended before it listened"))
                    if time.monotonic() > deadline_s:
                        raise TimeoutError(self._complaint("did not say it listens"))
        finally:
            os.close(pidfd)

    def _complaint(self, what: str) -> str:
        return f"{' '.join(self._command)} {what}:\n{self.output()[-2000:]}"

    def _end(self) -> None:
        if self._process is None or self._output is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._output.close()
        self._output = None
