"""The process in which versions are tried: one for each program that saves."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

from tfs.core.errors import Unavailable
from tfs.runtime.guest import control_channel
from tfs.runtime.process.zygote_process import worker_environment

_PROGRAM: Final = (
    "import sys; from tfs.runtime.guest.trial import main; main(int(sys.argv[2]))"
)


class TrialProcess:
    """A program that tries versions, each in a fork of its own.

    Thread-safe; trials of one program run one after another. Whatever interrupts one
    ends the program, and the next trial starts another. It ends with this process.

    Args:
        import_path: Where it may import from, this package's folder among it.

    """

    def __init__(self, import_path: list[str]) -> None:
        self._owner_pid = os.getpid()
        # Guards the socket; leaf. Held while a version is tried.
        self._lock = threading.Lock()
        self._socket, theirs = control_channel.pair()
        for each in (self._socket, theirs):
            each.settimeout(None)  # whatever the author's program has as a default
        fd = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                # The command line looks like a worker's.
                [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), str(fd), "0"],
                env={
                    **worker_environment(),
                    "PYTHONPATH": os.pathsep.join(import_path),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
                process_group=0,  # Ctrl-C is for the author's program
            )

    @property
    def is_usable(self) -> bool:
        """Whether it was started by this process and takes requests."""
        return (
            self._owner_pid == os.getpid()
            and self._socket.fileno() >= 0
            and self._process.poll() is None
        )

    def run(self, request: Mapping[str, object]) -> int:
        """Tries one version and returns the status of its process. Blocks.

        Raises:
            Unavailable: The program ended.

        """
        with self._lock:
            try:
                control_channel.send(self._socket, json.dumps(request).encode())
                answer = control_channel.receive(self._socket)
                if answer is None:
                    raise EOFError("no answer")
                return int(answer[0])
            except BaseException as error:
                self.close()
                if isinstance(error, OSError | EOFError):
                    raise Unavailable(
                        "the process in which versions are tried ended with status "
                        f"{self._process.returncode}; what it wrote to stderr says why"
                    ) from error
                raise

    def close(self) -> None:
        """Ends the program and what it tries."""
        self._socket.close()
        if self._owner_pid == os.getpid():
            self._process.wait()


_started: TrialProcess | None = None
_starting: Final = threading.Lock()
"""Guards ``_started``; leaf."""


def trial_process(import_path: list[str]) -> TrialProcess:
    """Returns this program's process, started on first use: it imports torch first."""
    global _started
    with _starting:
        if _started is None or not _started.is_usable:
            _started = TrialProcess(import_path)
            atexit.register(_started.close)
        return _started
