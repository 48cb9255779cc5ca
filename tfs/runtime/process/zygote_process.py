"""The zygote's program, and the thread whose children all processes are.

Its start takes as long as importing torch. A server that will want workers starts it
before anything else and hands it to a ``Zygote``, which otherwise starts one when the
first worker is wanted.

The processes that it forks are children of the thread that started it
(``guest/zygote/process_tree.py``). So the kernel ends all of them with this process, and
with no other. That thread stays as long as any of them does. It reaps them, and kills
the processes that models started.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final

import tfs
from tfs.runtime.guest import control_channel

_MALLOC: Final = {
    # Without these settings, models of MobileNet's size cause hundreds of page faults per
    # call, because glibc gives memory back between operators. Larger blocks are given
    # back, though: calls with ever other numbers of rows left holes between them, so that
    # a convolutional network kept three times what its largest batch needs.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    # torch asks for pages of 2 MB for tensors of that size, which makes getting such
    # blocks anew cheap. Nothing happens where the system gives none.
    "THP_MEM_ALLOC_ENABLE": "1",
}
_ONE_THREAD: Final = {
    # The zygote must stay single-threaded; workers raise the number per model.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
UNCOMPILED: Final[Mapping[str, str]] = {"TORCHDYNAMO_DISABLE": "1"}
"""Keeps torch from compiling models that are being served, if it is set before torch's
compiler is imported.

Because of a decorator in a model's file, each of its processes would run a C++ compiler
at the first call, and again for each new number of rows, while clients wait; without a
compiler every call would fail. If the environment has a 0 there, the compiler stays on.
"""
_UNASKED: Final = {
    # The driver's library is asked whether there are devices, not the driver itself: a
    # process that has asked the driver cannot fork processes that use it.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    **UNCOMPILED,
}

BINDING: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""With one of these in the environment, importing torch binds the importing thread to a
core, and all that it forks or starts with it."""

_STATUSES_KEPT: Final = 1000  # more than the processes whose ends are not noticed

# Waits for children of the calling thread only. Python has no name for it.
_WNOTHREAD: Final = 0x20000000

# Hundreds of modules are imported, and none is garbage; looking for garbage takes a tenth
# of the time. Until it has imported them, it ends with its parent.
_PROGRAM: Final = (
    "import gc, sys; gc.disable(); "
    "from tfs.runtime.guest.zygote.process_tree import die_with_parent; "
    "host_pid, channel_fd, life_fd = map(int, sys.argv[1:]); "
    "die_with_parent(host_pid); "
    "from tfs.runtime.guest.zygote.zygote import main; main(host_pid, channel_fd, life_fd)"
)


class ExitStatuses:
    """The exit statuses of children of this process. Thread-safe."""

    def __init__(self) -> None:
        # Guards the table; leaf.
        self._lock = threading.Lock()
        self._by_pid: dict[int, int] = {}  # the oldest first

    def note(self, pid: int, status: int) -> None:
        """Remembers a status of ``os.wait``. Call it before the process is reaped."""
        with self._lock:
            self._by_pid.pop(pid, None)
            self._by_pid[pid] = status
            while len(self._by_pid) > _STATUSES_KEPT:
                del self._by_pid[next(iter(self._by_pid))]

    def of(self, pid: int, pidfd: int) -> int | None:
        """Returns how a process ended, once its pidfd says so; None if nobody knows.

        Nobody knows if children are not waited for (SIGCHLD is ignored), or if other
        code in this process waits for any child at all.
        """
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            found = os.waitid(os.P_PIDFD, pidfd, how)
        except ChildProcessError:  # it was reaped, and its status noted, before
            with self._lock:
                return self._by_pid.get(pid)
        return status_of(found) if found is not None else None


def status_of(found: os.waitid_result) -> int:
    """Converts a result of ``os.waitid`` to the status that ``os.wait`` would return."""
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (0x80 if found.si_code == os.CLD_DUMPED else 0)


class ZygoteProcess:
    """One program, from its start to its end. Thread-safe.

    Attributes:
        exits: How its forks ended.
        program: What the new Python runs; its arguments are the host's process id and
            the descriptors of the channel and of the pipe.

    Raises:
        OSError: There is no descriptor or thread left; nothing stays.

    """

    program: ClassVar[str] = _PROGRAM

    def __init__(self) -> None:
        self.channel, self._theirs = control_channel.pair()
        """Our end of the conversation; ``close`` closes it."""
        self.channel.setblocking(False)
        self.exits = ExitStatuses()
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._closed = False
        self._why: str | None = None
        self._on_end: list[Callable[[str], None]] = []
        thread = threading.Thread(
            target=self._run, args=(worker_environment(),), name="zygote", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self.channel.close()
            self._theirs.close()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Calls ``fn`` once with why it ended: on another thread, or now if it has ended."""
        with self._lock:
            if self._why is None:
                self._on_end.append(fn)
                return
        fn(self._why)

    def close(self) -> None:
        """Ends the program soon, but nothing that it forked; idempotent."""
        self.channel.close()
        with self._lock:
            self._closed = True
            if self._why is not None:  # otherwise a start may be using it right now
                self._theirs.close()

    def _run(self, environment: Mapping[str, str]) -> None:
        # Nothing is ever written to this pipe. Zygotes and workers hold one end; when this
        # process ends, the other end closes, and the kernel kills their groups.
        try:
            their_life_fd, life_fd = os.pipe()
        except OSError as error:
            self._end(f"it cannot be started: {error.strerror}")
            return
        # Workers open it again, even after they have become another user.
        os.fchmod(their_life_fd, 0o444)
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    self.program,
                    str(os.getpid()),
                    str(self._theirs.fileno()),
                    str(their_life_fd),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(self._theirs.fileno(), their_life_fd),
                # In a group of its own, Ctrl-C reaches the server alone. It must not be
                # a session: if the system groups processes by session (autogroup),
                # priorities hold only within one, and a load at the lowest priority
                # would take half a processor from the loop.
                process_group=0,
            )
        except OSError as error:
            # Their end stays open until this is closed. Otherwise the end of the channel
            # would be noticed first, and the reason lost.
            self._end(f"it cannot be started: {error.strerror}")
        else:
            self._theirs.close()
            self._reap(process)
        finally:
            os.close(their_life_fd)
            os.close(life_fd)  # only now, because it ends all that hold the other end

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Reaps this thread's children, until none is left that could have more."""
        how = os.WEXITED | os.WNOWAIT | _WNOTHREAD
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, how)
            except ChildProcessError:
                break
            assert found is not None
            pid, status = found.si_pid, status_of(found)
            self.exits.note(pid, status)
            if pid != process.pid:  # its forks begin in its own group
                # It is not reaped yet, so no other process or group has its number.
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                self._end(f"it ended with status {process.returncode}")
        if process.returncode is None:  # somebody else waited for it
            process.returncode = 0
            self._end("it ended")

    def _end(self, why: str) -> None:
        with self._lock:
            if self._why is not None:
                return
            self._why = why
            on_end = self._on_end
            if self._closed:
                self._theirs.close()
        for fn in on_end:
            fn(why)


def worker_environment() -> dict[str, str]:
    """Returns the environment in which workers run.

    The operator's settings of malloc hold; the number of threads is ours, and so is on
    which cores they run.
    """
    return {
        **_UNASKED,
        **_MALLOC,
        **{name: text for name, text in os.environ.items() if name not in BINDING},
        **_ONE_THREAD,
        "PYTHONPATH": os.pathsep.join(import_path()),
    }


def import_path() -> list[str]:
    """Returns the module path of a program that we start.

    It contains all that this process can import from, and the folder of this package,
    because models may use modules that are installed beside the server.
    """
    root = str(Path(next(iter(tfs.__path__))).parent)
    found = [root]
    for entry in sys.path:
        path = os.path.abspath(entry or os.curdir)
        if path not in found and os.path.exists(path):
            found.append(path)
    return found
