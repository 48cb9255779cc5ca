"""The zygote: a single-threaded program that has imported torch and forks workers.

    python -P -c "... main(HOST_PID, CHANNEL_FD, LIFE_FD)", see
    tfs/runtime/process/zygote_process.py

It has no model, no server socket and nothing of the RPC stack. Forking it takes
milliseconds, and is safe because no other thread and no OpenMP region ever ran in it.
The processes that it forks are the host's children and not its own
(``sibling_fork.py``): they end with the host, by a parent-death signal, and go on when
the zygote is gone. A zygote also ends when its channel closes, and so does a worker.
Programs that a model starts belong to its worker's process group and end with it; the
host sees to that, or the kernel when the host is gone (``parent_death.py``).

    host to zygote   {"token": ..., "options": {...}, "spare": ...}, five descriptors |
                     {"standby": true}, the channel of a zygote to fork |
                     {"branch": platform}, the same for one that imports for a platform |
                     {"template": platform, "source": ..., "files": names,
                     "options": {...}}, the same for one that loads a version, and the
                     version's files
    zygote to host   {"ready": pid} | {"forked": token, "pid": ...} and a pidfd |
                     {"failed": token, "why"}
"""

from __future__ import annotations

import base64
import gc
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Never

import torch

from tfs.core.log_lines import write_own_lines
from tfs.core.thread_priority import (
    let_others_finish,
)
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.platforms.platform_imports import import_for
from tfs.runtime.guest.process_name import name_process
from tfs.runtime.guest.shown_stacks import show_stacks
from tfs.runtime.guest.traces.clean_slate import watch_objects
from tfs.runtime.guest.traces.process_surface import WatchedSurface
from tfs.runtime.guest.traces.watched_objects import WatchedObjects
from tfs.runtime.guest.worker.preloaded_model import PreloadedModel
from tfs.runtime.guest.worker.warm_up import make_archive
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.guest.zygote.forked_process import (
    Host,
    KnownProcess,
    become_worker,
    close_all_but,
    drop_privileges,
)
from tfs.runtime.guest.zygote.parent_death import (
    die_with_parent,
)
from tfs.runtime.guest.zygote.sibling_fork import fork_sibling

_PREIMPORTED: Final = (
    "tfs.runtime.guest.platforms.torch_package",
    "tfs.runtime.guest.platforms.python",
    "tfs.runtime.batched",
    "tfs.export",
    "torch.utils._device",
)
"""Modules that workers and models would import first. Imported here, they cost each of them
nothing.

The exporter is one of them. A model is often defined where it is exported, and a
packaged module imports what it imported when it was packaged. That would take 30 ms in
each worker, ten times as long as a small model takes.
"""


class Zygote:
    """Forks workers, and other zygotes, on request. Single-threaded.

    Args:
        host: The host process, whose children they become.
        channel: Brings requests and takes answers.
        preloaded: A version that its workers have from the start.
        known: What it has recorded of its process.

    """

    def __init__(
        self,
        host: Host,
        channel: socket.socket,
        known: KnownProcess,
        preloaded: PreloadedModel | None = None,
    ) -> None:
        self._host = host
        self._known = known
        self._preloaded = preloaded
        self._channel = channel
        self._warm_up_archive = b""

    def run(self) -> None:
        """Serves requests until the host closes the channel or is gone."""
        self._tell(
            {
                "ready": os.getpid(),
                "num_threads": num_threads(),
                "has_cuda_context": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
            }
        )
        while True:
            try:
                message = control_channel.receive(self._channel)
            except OSError:
                message = None
            if message is None:
                return
            self._answer(*message)

    def _answer(self, body: bytes, fds: list[int]) -> None:
        request = json.loads(body)
        if "token" in request:
            self._fork(request, fds)
            return
        try:
            pid, pidfd = fork_sibling()
        except OSError:
            control_channel.close_all(fds)  # which tells the host
            return
        if pid == 0:
            _become(lambda: run_zygote(self._host, request, fds, self._known))
        os.close(pidfd)
        control_channel.close_all(fds)

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        token = request["token"]
        archive = b""
        try:
            if request["spare"]:
                archive = self._warm_up_archive or make_archive()
                self._warm_up_archive = archive
            pid, pidfd = fork_sibling()
        except Exception as error:
            control_channel.close_all(fds)
            self._tell({"failed": token, "why": str(error)})
            return
        if pid == 0:
            _become(lambda: self._become_asked(request, fds, archive))
        control_channel.close_all(fds)
        self._tell({"forked": token, "pid": pid}, (pidfd,))
        os.close(pidfd)

    def _become_asked(
        self, request: Mapping[str, Any], fds: list[int], archive: bytes
    ) -> None:
        options = WorkerOptions(**request["options"])
        become_worker(self._host, options, fds, archive, self._known, self._preloaded)

    def _tell(self, message: dict[str, object], fds: tuple[int, ...] = ()) -> None:
        try:
            control_channel.send(self._channel, json.dumps(message).encode(), fds)
        except OSError:
            os._exit(0)  # the host is gone


def _become(run: Callable[[], None]) -> Never:
    """Runs the purpose of a fork, and then ends it, so that it never goes on as a zygote."""
    try:
        run()
        os._exit(0)
    except BaseException as error:  # nobody is left above: told here, and the fork ends
        print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(70)


def num_threads() -> int:
    """Returns how many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def main(host_pid: int, channel_fd: int, life_fd: int) -> None:
    """Runs the zygote on an inherited channel, in a program that dies with its host."""
    name_process("tfs-zygote")
    # torch.package's own use of it, which nobody here can change.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    write_own_lines()
    show_stacks()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    close_all_but({0, 1, 2, channel_fd, life_fd})
    os.set_inheritable(channel_fd, False)
    os.set_inheritable(life_fd, False)
    torch.set_num_threads(1)
    for module in _PREIMPORTED:
        importlib.import_module(module)
    known = KnownProcess(_watch(), WatchedSurface())
    gc.freeze()
    gc.enable()
    let_others_finish()
    Zygote(Host(host_pid, life_fd), socket.socket(fileno=channel_fd), known).run()


def _watch() -> WatchedObjects | None:
    try:
        return watch_objects()
    except RuntimeError as error:
        text = f"zygote {os.getpid()}: no worker has two versions: {error}"
        print(text, file=sys.stderr, flush=True)
        return None


def run_zygote(
    host: Host,
    request: Mapping[str, Any],
    fds: list[int],
    known: KnownProcess,
) -> None:
    """Turns a fresh fork into a zygote of its own that needs nothing of its maker.

    A standby is like its maker. A branch has done a platform's imports. A template has
    loaded a version, as the user of its workers, because loading runs the version's
    code; it ends if that starts threads, which forks would lack. It stays in its
    maker's process group, which nobody ends.
    """
    close_all_but({0, 1, 2, host.life_fd, *fds})
    if "template" in request:
        drop_privileges(WorkerOptions(**request["options"]))
    die_with_parent(host.pid)
    let_others_finish()
    channel_fd, *file_fds = fds
    preloaded = None
    if "branch" in request:
        import_for(request["branch"])
    if "template" in request:
        source = pickle.loads(base64.b64decode(request["source"]))
        preloaded = PreloadedModel.load(source, request["files"], file_fds)
        if num_threads() != 1:
            raise RuntimeError("loading it started threads")
    if "standby" not in request:
        known.surface.look()
        gc.collect()
        gc.freeze()  # the collector would write to what forks share
    Zygote(host, socket.socket(fileno=channel_fd), known, preloaded).run()
