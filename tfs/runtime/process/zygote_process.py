"""The zygote's program, spawned by a thread that lives as long as it does.

It takes as long to start as torch takes to import. Whoever knows that workers will be
wanted starts it before anything else and hands it to the ``ZygoteClient``, which
otherwise starts one when the first worker is wanted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import tfs
from tfs.core.thread_priority import run_anywhere
from tfs.runtime.guest import control_channel

_MALLOC: Final = {
    # MobileNet-sized models take hundreds of page faults per call because glibc gives
    # memory back between operators; with these they take none.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
}
_ONE_THREAD: Final = {
    # The zygote must stay single-threaded; workers raise the number per model.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_UNASKED: Final = {
    # Whether there are devices: of the driver's library, not of the driver. Whoever has
    # asked the driver cannot fork processes that use it.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


# Hundreds of modules are imported, and none is garbage: looking for it is a tenth of the
# time. It ends with its parent before it has imported them, and not by SIGKILL: what
# models started beside their workers must be ended too.
_PROGRAM: Final = (
    "import gc, signal, sys; gc.disable(); "
    "from tfs.runtime.guest.parent_death import die_with_parent; "
    "die_with_parent(int(sys.argv[2]), signal.SIGTERM); "
    "from tfs.runtime.guest.zygote import main; main(int(sys.argv[1]))"
)


class ZygoteProcess:
    """One program, from its start to its end. Thread-safe.

    Args:
        environment: Added to that of workers.

    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.channel, self._theirs = control_channel.pair()
        """The conversation's end here; ``close`` closes it."""
        self.channel.setblocking(False)
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._closed = False
        self._why: str | None = None
        self._on_end: list[Callable[[str], None]] = []
        # The program dies with the thread that started it, and so cannot outlive this
        # process; the thread ends with the program.
        threading.Thread(
            target=self._run,
            args=({**worker_environment(), **(environment or {})},),
            name="zygote",
            daemon=True,
        ).start()

    @staticmethod
    def is_available() -> bool:
        """Whether this host can run it: Linux with memfd, pidfd and eventfd."""
        return sys.platform == "linux" and all(
            hasattr(os, name) for name in ("memfd_create", "pidfd_open", "eventfd")
        )

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Calls ``fn`` once with why it ended: on another thread, or now if it has."""
        with self._lock:
            if self._why is None:
                self._on_end.append(fn)
                return
        fn(self._why)

    def close(self) -> None:
        """Ends the program and every worker it forked, soon; idempotent."""
        self.channel.close()
        with self._lock:
            self._closed = True
            if self._why is not None:  # else it may be inherited right now
                self._theirs.close()

    def _run(self, environment: Mapping[str, str]) -> None:
        run_anywhere()  # so that the program may
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _PROGRAM,
                    str(self._theirs.fileno()),
                    str(os.getpid()),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(self._theirs.fileno(),),
                # Ctrl-C is the server's. No session of its own: where the system groups
                # processes by session (autogroup), priorities hold within one, and a
                # load of the lowest would take half a processor from the loop.
                process_group=0,
            )
        except OSError as error:
            # Their end stays open until we are closed: the channel's end would be
            # noticed before the reason, and says less.
            self._end(f"it cannot be started: {error.strerror}")
            return
        self._theirs.close()
        self._end(f"it ended with status {process.wait()}")

    def _end(self, why: str) -> None:
        with self._lock:
            self._why = why
            on_end = self._on_end
            if self._closed:
                self._theirs.close()
        for fn in on_end:
            fn(why)


def worker_environment() -> dict[str, str]:
    """Returns the environment in which workers run."""
    return {
        **_UNASKED,
        **os.environ,
        **_MALLOC,
        **_ONE_THREAD,
        "PYTHONPATH": os.pathsep.join(import_path()),
    }


def import_path() -> list[str]:
    """Returns what a program started by us must be able to import from.

    Everything this process can, and this package wherever it lies: models name
    modules beside the server extern.
    """
    root = str(Path(next(iter(tfs.__path__))).parent)
    found = [root]
    for entry in sys.path:
        path = os.path.abspath(entry or os.curdir)
        if path not in found and os.path.exists(path):
            found.append(path)
    return found
