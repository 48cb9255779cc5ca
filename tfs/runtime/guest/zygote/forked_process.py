"""What a fork of the zygote does to become a worker.

A fork has all that the zygote had: descriptors, signal handlers, priority, user. It gives
up what is not for it before it runs anything of a model. From then on it ends with the
host, whatever becomes of the zygote.
"""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from typing import Final

from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest.own_process import name_process, seed_random
from tfs.runtime.guest.side_effects import KnownFunctions
from tfs.runtime.guest.worker.worker import Worker
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.guest.zygote.process_tree import (
    die_after_parent,
    end_group_with_pipe,
)

_PR_SET_NO_NEW_PRIVS: Final = 38

_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True, slots=True)
class Host:
    """The process that is the parent of all forks. Immutable.

    Attributes:
        pid: Its process id.
        life_fd: The end of a pipe whose other end only the host has.

    """

    pid: int
    life_fd: int


def become_worker(
    host: Host,
    options: WorkerOptions,
    fds: list[int],
    known: KnownFunctions,
) -> None:
    """Turns a fresh fork into a worker; never returns while the worker lives."""
    name_process("tfs-worker")
    close_all_but({0, 1, 2, host.life_fd, *fds})
    os.setpgid(0, 0)
    end_group_with_pipe(host.life_fd)
    drop_privileges(options)
    die_after_parent(host.pid)
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
