"""A real ``tfs serve`` process, and models to serve, for end-to-end tests."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

import torch

import tfs.export
from tests.e2e.warm_python import ROOT, ForkedProcess, WarmPython
from tests.models.served import Busy, Scale, Sleeper
from tfs.cli.main import main
from tfs.testing.patience import PATIENCE_S

QUICK = ("--interpreter_backend=inline", "--load_probe_budget_s=0")
"""Flags of a server that starts no process of its own."""

Process: TypeAlias = subprocess.Popen[str] | ForkedProcess


def export_busy(base_path: Path) -> None:
    """Writes version 1 of :class:`Busy`."""
    tfs.export.save(Busy().eval(), {"x": torch.zeros(2, 2)}, str(base_path), 1)


def export_sleeper(base_path: Path) -> None:
    """Writes version 1 of :class:`Sleeper`."""
    tfs.export.save(Sleeper().eval(), {"x": torch.zeros(2, 2)}, str(base_path), 1)


def export_scale(base_path: Path, version: int, factor: float | None = None) -> Path:
    """Writes a version of :class:`Scale`, by default with its number as factor."""
    module = Scale(float(version) if factor is None else factor).eval()
    return Path(
        tfs.export.save(module, {"x": torch.rand(2, 2)}, str(base_path), version)
    )


class Serving:
    """A server on a free loopback port, stopped by its own pid. Confined to a test.

    Its lines are read by a thread, so that it never blocks on a full pipe. Models run
    in threads of the server unless ``measures`` is set: then they are measured and
    placed as by default, which costs the start of a zygote. The server is a fork of a
    Python with its imports behind it unless ``is_fresh`` is set: then it starts as
    operators start it, which costs the import of torch. A fork may be told when to end
    clients of express that make no progress (``no_progress_timeout_s``).
    """

    def __init__(
        self,
        *flags: str,
        measures: bool = False,
        is_fresh: bool = False,
        patience_s: float = PATIENCE_S,
        no_progress_timeout_s: float | None = None,
    ) -> None:
        self._patience_s = patience_s
        self._no_progress_timeout_s = no_progress_timeout_s
        self._is_fresh = is_fresh
        self._flags = flags if measures else (*QUICK, *flags)
        self.address = ""
        self.lines: list[str] = []
        # Guards the lines and what is known of them; wakes wait_for.
        self._changed = threading.Condition()
        self._is_ended = False
        self._looked_at: dict[str, int] = {}
        self._process: Process | None = None

    def flag(self, name: str) -> str | None:
        """Returns what the flag was given as; None if it was not."""
        start = f"--{name}="
        values = [each for each in self._flags if each.startswith(start)]
        return values[-1].removeprefix(start) if values else None

    @property
    def process(self) -> Process:
        """The server's process."""
        assert self._process is not None
        return self._process

    @classmethod
    def of(cls, process: Process) -> Self:
        """Returns the server that a process is; ``close`` ends it."""
        serving = cls()
        serving._attach(process)
        return serving

    def __enter__(self) -> Self:
        words = ("serve", "--grpc_host=127.0.0.1", "--any_port", *self._flags)
        timeout_s = self._no_progress_timeout_s
        self._attach(
            start_tfs(*words)
            if self._is_fresh
            else fork_tfs(*words, no_progress_timeout_s=timeout_s)
        )
        self.address = self.wait_for(r"listening on (\S+)")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, however it stands; idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def wait_for(self, pattern: str) -> str:
        """Blocks until a line matches; returns its first group, or the match.

        Looks at all lines from the start on, but at none twice for one pattern: what
        was waited for before in other words does not hide anything.

        Raises:
            AssertionError: The server ended, or was silent too long.
        """
        with self._changed:
            while True:
                index = self._looked_at.get(pattern, 0)
                self._looked_at[pattern] = len(self.lines)
                for offset, line in enumerate(self.lines[index:]):
                    found = re.search(pattern, line)
                    if found:
                        self._looked_at[pattern] = index + offset + 1
                        return found[1] if found.groups() else found[0]
                if self._is_ended:
                    raise AssertionError(f"ended before {pattern!r}: {self.lines}")
                if not self._changed.wait(self._patience_s):
                    raise AssertionError(f"no {pattern!r} in: {self.lines}")

    def wait_for_each(self, *patterns: str) -> None:
        """Blocks until every pattern has matched some line, in any order.

        Raises:
            AssertionError: As :meth:`wait_for`.
        """
        for pattern in patterns:
            self.wait_for(pattern)

    def stop(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def _attach(self, process: Process) -> None:
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()


def start_tfs(*words: str) -> subprocess.Popen[str]:
    """Starts the command with both outputs in one pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tfs", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=_environment(),
    )


def fork_tfs(*words: str, no_progress_timeout_s: float | None = None) -> Process:
    """Starts the command as :func:`start_tfs` does, but with its imports behind it.

    What a test changed in the environment is for a fresh process to see.
    """
    if _WARM.environment != _environment():
        return start_tfs(*words)
    return _WARM.run(*words, no_progress_timeout_s=no_progress_timeout_s)


def _environment() -> dict[str, str]:
    """Returns what a server is to find; not what is noted here for others."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _FIRST_NAMES or not name.startswith(_NOT_FOR_SERVERS)
    }
    return {**inherited, "PYTHONPATH": str(ROOT)}


# pytest says which test runs; torch's compiler where its caches are, and commands that
# ran in this process how much grpc is to tell. Commands that run in this process look for
# their controller.
_NOT_FOR_SERVERS: Final = (
    *("PYTEST_CURRENT_TEST", "TFS_HOSTED_CONTROLLER", "TORCH", "_TORCH", "TRITON_"),
    *("CUBLAS_", "CUDA_", "KMP_", "GRPC_"),
)
_FIRST_NAMES: Final = frozenset(os.environ) - {"PYTEST_CURRENT_TEST"}


_WARM = WarmPython(_environment())


def free_port() -> int:
    """Returns a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_tfs(*words: str, patience_s: float = PATIENCE_S) -> tuple[int, str]:
    """Runs the command to its end; returns exit code and output."""
    running = Serving.of(fork_tfs(*words))
    try:
        code = running.process.wait(patience_s)
    finally:
        running.close()
    return code, "\n".join(running.lines)


def run_script(script: Path, *words: str, folder: Path = ROOT) -> tuple[int, str]:
    """Runs a script that exports to its end, in a folder; returns as ``run_tfs``.

    It finds torch and ``tfs.export`` imported, and is ``__main__`` otherwise.
    """
    running = Serving.of(_WARM.run_script(script, *words, folder=folder))
    try:
        code = running.process.wait(PATIENCE_S)
    finally:
        running.close()
    return code, "\n".join(running.lines)


def run_command(*words: str) -> tuple[int, str]:
    """Runs a command that calls a server, in this process; returns as ``run_tfs``.

    Starting Python for it takes a hundred times as long.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return code, printed.getvalue()


def config_text(name: str, base_path: Path, extra: str = "") -> str:
    """Returns a config file of one model."""
    return (
        f'model_config_list {{ config {{ name: "{name}" base_path: "{base_path}" '
        f"{extra} }} }}"
    )


def write_whole(path: Path, text: str) -> None:
    """Replaces a file by rename, as editors and config maps do."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text)
    scratch.rename(path)
