"""The zygote: a single-threaded program that has imported torch and forks workers.

    python -P -c "... main(HOST_PID, CHANNEL_FD, LIFE_FD)", see
    tfs/runtime/process/zygote_process.py

It has no model, no server socket and nothing of the RPC stack. Forking it takes
milliseconds, and is safe because no other thread and no OpenMP region ever ran in it.
The processes that it forks are the host's children and not its own
(``process_tree.py``): they end with the host, by a parent-death signal, and go on when
the zygote is gone. A zygote also ends when its channel closes, and so does a worker.
Programs that a model starts belong to its worker's process group and end with it; the
host sees to that, or the kernel when the host is gone (``process_tree.py``).

    host to zygote   {"token": ..., "options": {...}, "platform": ...}, five descriptors
    zygote to host   {"ready": pid} | {"forked": token, "pid": ...} and a pidfd |
                     {"failed": token, "why"}
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, Never

import torch

from tfs.core.system.log_lines import write_own_lines
from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.guest_model import IMPORTED_AHEAD, import_for
from tfs.runtime.guest.own_process import name_process, seed_random, show_stacks
from tfs.runtime.guest.side_effects import KnownFunctions
from tfs.runtime.guest.worker.worker import Worker
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.guest.zygote.process_tree import (
    clone_parent,
    die_after_parent,
    end_group_with_pipe,
)

_PR_SET_NO_NEW_PRIVS: Final = 38

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become_worker(
    host_pid: int,
    life_fd: int,
    options: WorkerOptions,
    fds: list[int],
    known: KnownFunctions,
) -> None:
    """Turns a fresh fork into a worker; never returns while the worker lives.

    A fork has all that the zygote had: descriptors, signal handlers, priority, user. It
    gives up what is not for it before it runs anything of a model.
    """
    name_process("tfs-worker")
    close_all_but({0, 1, 2, life_fd, *fds})
    os.setpgid(0, 0)
    end_group_with_pipe(life_fd)
    drop_privileges(options)
    die_after_parent(host_pid)
    # All its threads inherit it: those that serve get a processor when they wake up,
    # those that load give theirs up to whoever does, also outside this server.
    answer_soon()
    seed_random()
    *call_fds, control_fd = fds
    Worker(options, call_fds, socket.socket(fileno=control_fd), known).run()


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor above the standard three that is not in ``kept``."""
    previous = 2
    for fd in sorted(fd for fd in kept if fd > 2):
        os.closerange(previous + 1, fd)
        previous = fd
    os.closerange(previous + 1, 1 << 16)


def drop_privileges(options: WorkerOptions) -> None:
    """Changes to the user and the priority that the options name, for good."""
    if options.oom_score_adj:
        with open("/proc/self/oom_score_adj", "r+") as score:
            if int(score.read()) < options.oom_score_adj:
                score.seek(0)
                score.write(str(options.oom_score_adj))
    if options.nice:
        os.nice(options.nice)
    if options.group_id is not None:
        os.setgroups([])
        os.setresgid(options.group_id, options.group_id, options.group_id)
    if options.user_id is not None:
        os.setresuid(options.user_id, options.user_id, options.user_id)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


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
    """Forks workers on request. Single-threaded.

    Args:
        host_pid: The host process, whose children they become.
        life_fd: The end of a pipe whose other end only the host has.
        channel: Brings requests and takes answers.
        known: The functions that models can replace. Recorded before a fork, they cost
            the fork neither time nor memory.

    """

    def __init__(
        self,
        host_pid: int,
        life_fd: int,
        channel: socket.socket,
        known: KnownFunctions,
    ) -> None:
        self._host_pid, self._life_fd = host_pid, life_fd
        self._known = known
        self._channel = channel
        self._imported = set[str]()  # the platforms whose imports are done

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
        token = request["token"]
        try:
            self._import_for(request["platform"])
            pid, pidfd = clone_parent()
        except Exception as error:
            control_channel.close_all(fds)
            self._tell({"failed": token, "why": str(error)})
            return
        if pid == 0:
            _become(lambda: self._become_asked(request, fds))
        control_channel.close_all(fds)
        self._tell({"forked": token, "pid": pid}, (pidfd,))
        os.close(pidfd)

    def _import_for(self, platform: str) -> None:
        """Does a platform's imports, which its workers, and all later ones, then share."""
        if platform in IMPORTED_AHEAD and platform not in self._imported:
            import_for(platform)
            self._imported.add(platform)
            self._known = KnownFunctions()
            gc.collect()
            gc.freeze()  # the collector would write to what forks share

    def _become_asked(self, request: Mapping[str, Any], fds: list[int]) -> None:
        options = WorkerOptions(**request["options"])
        become_worker(self._host_pid, self._life_fd, options, fds, self._known)

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
    known = prepare(channel_fd, life_fd)
    Zygote(host_pid, life_fd, socket.socket(fileno=channel_fd), known).run()


def prepare(channel_fd: int, life_fd: int) -> KnownFunctions:
    """Makes a program that has just begun fit to be forked. Blocks for the imports.

    Returns:
        What the program's functions are before a model is loaded.

    """
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
    known = KnownFunctions()
    gc.freeze()
    gc.enable()
    return known
