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

from tfs.core.thread_priority import answer_soon, interrupt_again
from tfs.runtime.guest.process_name import name_process
from tfs.runtime.guest.random_numbers import seed_random
from tfs.runtime.guest.traces.process_surface import WatchedSurface
from tfs.runtime.guest.traces.watched_objects import WatchedObjects
from tfs.runtime.guest.worker.call_channel import CallChannel
from tfs.runtime.guest.worker.preloaded_model import PreloadedModel
from tfs.runtime.guest.worker.worker import Worker
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.guest.zygote.parent_death import (
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


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """What a zygote has recorded of its process, for forks to compare with. Immutable.

    Because it is recorded before a fork, it costs the fork neither time nor memory.

    Attributes:
        objects: The objects by which spares check whether they are unchanged. None if
            this Python does not allow that.
        surface: The functions that a model can replace.

    """

    objects: WatchedObjects | None
    surface: WatchedSurface


def become_worker(
    host: Host,
    options: WorkerOptions,
    fds: list[int],
    archive: bytes,
    known: KnownProcess,
    preloaded: PreloadedModel | None = None,
) -> None:
    """Turns a fresh fork into a worker; never returns while the worker lives.

    With an archive it is a spare, and warms up with it. If objects are watched, it can
    tell later whether it may get another model after its first.
    """
    name_process("tfs-worker")
    held: frozenset[int] = preloaded.fds if preloaded is not None else frozenset()
    close_all_but({0, 1, 2, host.life_fd, *fds, *held})
    os.setpgid(0, 0)
    end_group_with_pipe(host.life_fd)
    if preloaded is None:  # otherwise the process that this is a copy of has done it
        drop_privileges(options)
    die_after_parent(host.pid)
    # All its threads inherit it: those that serve get a processor when they wake up,
    # those that load give theirs up to whoever does, also outside this server.
    interrupt_again()
    answer_soon()
    seed_random()
    *channel_fds, control_fd = fds
    Worker(
        options,
        CallChannel.of_fds(channel_fds),
        socket.socket(fileno=control_fd),
        preloaded,
        known.surface,
    ).run(archive, known.objects)


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
