"""The zygote: a program of one thread that imported torch once and forks workers.

    python -P -c "... main(CHANNEL_FD)", see tfs/runtime/process/zygote_process.py

It holds no model, no server socket and nothing of the RPC stack. Forking it takes
milliseconds, and a fork is safe because no other thread and no OpenMP region ever
ran. Whatever dies first, nothing is left: the zygote ends with the channel and with
the thread that spawned it, workers end with the zygote (a parent-death signal) and
with their own channel. What a model starts belongs to its worker's process group and
ends with it.

    host to zygote   {"token": ..., "options": {...}, "spare": ...}, five descriptors |
                     the same with {"keeper": [kind, device]}, one descriptor |
                     {"standby": true}, the channel of a zygote to be forked off |
                     {"template": platform, "source": ..., "files": names}, the channel
                     of a zygote to be forked off and to load a version, its files
    zygote to host   {"ready": pid} | {"forked": token, "pid": ...} and a pidfd |
                     {"died": pid, "status": as of os.wait} | {"failed": token, "why"} |
                     {"branched": platform}
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import random
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tfs.core.thread_priority import (
    answer_soon,
    interrupt_again,
    let_others_finish,
)
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.call_channel import CallChannel
from tfs.runtime.guest.parent_death import die_with_parent
from tfs.runtime.guest.platform_imports import MODULES, import_for
from tfs.runtime.guest.preloaded_model import PreloadedModel
from tfs.runtime.guest.warm_up import make_archive
from tfs.runtime.guest.weights_keeper import run as run_keeper
from tfs.runtime.guest.worker import Worker
from tfs.runtime.guest.worker_options import WorkerOptions

_PREIMPORTED: Final = (
    "tfs.runtime.guest.torch_package",
    "tfs.runtime.guest.python",
    "tfs.runtime.batched",
    "tfs.export",
)
"""What workers and models would import first; here it costs each of them nothing.

The exporter, too: a model is often defined where it is exported, and a module of a
package imports what it did when it was packaged: 30 ms in each worker, ten times what a
small model takes.
"""

_PR_SET_NO_NEW_PRIVS: Final = 38

_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Zygote:
    """Forks workers on request. Single-threaded.

    For platforms whose imports take long it forks a branch of itself, which has them
    behind it and forks those platforms' workers.

    Args:
        channel: Where it answers.
        requests: Where they come from, in a branch; in the trunk, over the channel.
        preloaded: A version that its workers have from the first.

    """

    def __init__(
        self,
        channel: socket.socket,
        requests: socket.socket | None = None,
        preloaded: PreloadedModel | None = None,
    ) -> None:
        self._preloaded = preloaded
        self._channel = channel
        self._requests = requests or channel
        self._poll = select.poll()
        self._poll.register(self._requests.fileno(), select.POLLIN)
        self._branches: dict[str, socket.socket] = {}  # by platform
        self._branch_pidfds: set[int] = set()
        self._standbys: dict[int, int] = {}  # pids by pidfd
        self._pids: dict[int, int] = {}  # by pidfd
        self._pid = os.getpid()
        self._warm_up_archive = b""

    def run(self) -> None:
        """Serves until requests end, or a branch; then kills what it forked."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._branch_pidfds:
                    # Its workers ended with it: all begins anew, with nobody to blame.
                    self.end_workers()
                    return
                if fd in self._standbys:
                    self._forget_standby(fd)
                    continue
                if fd != self._requests.fileno():
                    self._reap(fd)
                    continue
                try:
                    message = control_channel.receive(self._requests)
                except OSError:
                    message = None
                if message is None:
                    self.end_workers()
                    return
                self._answer(*message)

    def tell_ready(self) -> None:
        """Lets the host send requests."""
        self._tell({"ready": self._pid, **_fork_state()})

    def tell_branched(self, platform: str) -> None:
        """Lets the host know of a branch."""
        self._tell({"branched": platform, **_fork_state()})

    def end_workers(self) -> None:
        """Kills every worker and what their models started."""
        for pid in self._pids.values():
            _kill_group(pid)

    def _answer(self, body: bytes, fds: list[int]) -> None:
        request = json.loads(body)
        if "standby" in request:
            self._fork_zygote(lambda: run_standby(fds[0]), fds)
            return
        platform = request.get("template", request.get("platform"))
        is_here = platform not in MODULES or self._requests is not self._channel
        if is_here or self._preloaded is not None:
            if "template" in request:
                self._fork_zygote(lambda: run_template(request, fds), fds)
            else:
                self._fork(request, fds)
            return
        try:
            if platform not in self._branches:
                self._branch(platform)
            control_channel.send(self._branches[platform], body, tuple(fds))
        except OSError as error:
            if "token" in request:
                self._tell({"failed": request["token"], "why": error.strerror})
        control_channel.close_all(
            fds
        )  # of a template, its channel: which tells the host

    def _fork_zygote(self, run: Callable[[], None], fds: list[int]) -> None:
        """Forks a zygote that is the host's alone: it outlives this one."""
        try:
            pid = os.fork()
        except OSError:
            control_channel.close_all(fds)  # which tells the host
            return
        if pid == 0:
            try:
                run()
            except BaseException as error:
                print(f"zygote {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(70)
        control_channel.close_all(fds)
        pidfd = os.pidfd_open(pid)
        self._standbys[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _forget_standby(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(self._standbys.pop(pidfd), 0)

    def _branch(self, platform: str) -> None:
        ours, theirs = control_channel.pair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            try:
                run_branch(self._pid, self._channel, theirs, platform)
            except BaseException as error:
                print(f"zygote {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(70)
        theirs.close()
        self._branches[platform] = ours
        pidfd = os.pidfd_open(pid)
        self._branch_pidfds.add(pidfd)
        self._poll.register(pidfd, select.POLLIN)

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        token = request["token"]
        archive = b""
        try:
            if request["spare"]:
                archive = self._warm_up_archive or make_archive()
                self._warm_up_archive = archive
            pid = os.fork()
        except Exception as error:
            control_channel.close_all(fds)
            self._tell({"failed": token, "why": str(error)})
            return
        if pid == 0:
            try:
                # The zygote's own; from here on the default ends this process.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                options = WorkerOptions(**request["options"])
                if request["keeper"]:
                    become_keeper(self._pid, options, fds, *request["keeper"])
                    os._exit(0)
                become_worker(self._pid, options, fds, archive, self._preloaded)
            except BaseException as error:
                print(f"worker {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(70)
        control_channel.close_all(fds)
        _lead_group(pid)  # here too: whoever comes first, nobody sees it without
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._tell({"forked": token, "pid": pid}, (pidfd,))

    def _reap(self, pidfd: int) -> None:
        pid = self._pids.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _kill_group(pid)  # before it is reaped: the number is still its own
        _, status = os.waitpid(pid, 0)
        self._tell({"died": pid, "status": status})

    def _tell(self, message: dict[str, object], fds: tuple[int, ...] = ()) -> None:
        try:
            control_channel.send(self._channel, json.dumps(message).encode(), fds)
        except OSError:
            os._exit(0)  # the host is gone


def become_worker(
    zygote_pid: int,
    options: WorkerOptions,
    fds: list[int],
    archive: bytes,
    preloaded: PreloadedModel | None = None,
) -> None:
    """Turns a fresh fork into a worker; never returns while the worker lives.

    With an archive it is a spare, and warms up with it.
    """
    held: frozenset[int] = preloaded.fds if preloaded is not None else frozenset()
    close_all_but({0, 1, 2, *fds, *held})
    _lead_group(0)
    drop_privileges(options)
    die_with_parent(zygote_pid)
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
    ).run(archive)


def become_keeper(
    zygote_pid: int, options: WorkerOptions, fds: list[int], kind: str, device: str
) -> None:
    """Turns a fresh fork into the keeper of a device's weights, until it has to end.

    As the user whom the workers are: they share memory.
    """
    close_all_but({0, 1, 2, *fds})
    _lead_group(0)
    drop_privileges(options)
    die_with_parent(zygote_pid)
    run_keeper(socket.socket(fileno=fds[0]), kind, device)


def seed_random() -> None:
    """Gives this process random numbers of its own: a fork repeats its parent's."""
    seed = int.from_bytes(os.urandom(8), "little")
    random.seed(seed)
    if any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        torch.manual_seed(seed)
    else:
        # The same for the processor. Asking for devices that there are not would make
        # 450 pages this process's own: 2 ms, at each fork.
        torch.default_generator.manual_seed(seed)


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor above the standard three that is not in ``kept``."""
    previous = 2
    for fd in sorted(fd for fd in kept if fd > 2):
        os.closerange(previous + 1, fd)
        previous = fd
    os.closerange(previous + 1, 1 << 16)


def drop_privileges(options: WorkerOptions) -> None:
    """Becomes the user and the priority the options name, for good."""
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


def _lead_group(pid: int) -> None:
    """Makes a new worker (0: this process) the leader of a process group."""
    with contextlib.suppress(OSError):  # it is one, or has ended
        os.setpgid(pid, pid)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def num_threads() -> int:
    """Returns how many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def _fork_state() -> dict[str, object]:
    """Returns what must be 1 thread and no CUDA context for forks to be safe."""
    return {
        "num_threads": num_threads(),
        "has_cuda_context": torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
    }


def main(channel_fd: int) -> None:
    """Runs the zygote on an inherited channel, in a program that dies with its parent."""
    # torch.package's own use of it, which nobody here can change.
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    close_all_but({0, 1, 2, channel_fd})
    torch.set_num_threads(1)
    for module in _PREIMPORTED:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    zygote = Zygote(socket.socket(fileno=channel_fd))
    zygote.tell_ready()
    _run(zygote)


def run_branch(
    parent_pid: int, channel: socket.socket, requests: socket.socket, platform: str
) -> None:
    """Turns a fresh fork into a zygote that has a platform's imports behind it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the trunk's; it has workers of its
    die_with_parent(parent_pid, signal.SIGTERM)
    close_all_but({0, 1, 2, channel.fileno(), requests.fileno()})
    import_for(platform)
    gc.collect()
    gc.freeze()  # the collector would write to what forks share
    zygote = Zygote(channel, requests)
    zygote.tell_branched(platform)
    _run(zygote)


def run_standby(channel_fd: int) -> None:
    """Turns a fresh fork into a zygote that waits to be the only one.

    It asks for no signal when its parent ends, which is what it waits for; its channel
    ends with the host, and no model ever runs in it that could keep it from noticing.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it has a handler of its own
    os.setpgid(0, 0)  # of the same session: priorities hold within one
    close_all_but({0, 1, 2, channel_fd})
    zygote = Zygote(socket.socket(fileno=channel_fd))
    zygote.tell_ready()
    _run(zygote)


def run_template(request: Mapping[str, Any], fds: list[int]) -> None:
    """Turns a fresh fork into a zygote whose workers have a version from the first.

    As :func:`run_standby`, after the version is loaded; ends if that starts threads,
    which a fork would lack.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    close_all_but({0, 1, 2, *fds})
    let_others_finish()
    channel_fd, *file_fds = fds
    source = pickle.loads(base64.b64decode(request["source"]))
    preloaded = PreloadedModel.load(source, request["files"], file_fds)
    gc.collect()
    gc.freeze()
    if num_threads() != 1:
        raise RuntimeError("loading it started threads")
    zygote = Zygote(socket.socket(fileno=channel_fd), preloaded=preloaded)
    zygote.tell_ready()
    _run(zygote)


def _run(zygote: Zygote) -> None:
    def end(_signum: int, _frame: object) -> None:
        zygote.end_workers()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    let_others_finish()
    zygote.run()
