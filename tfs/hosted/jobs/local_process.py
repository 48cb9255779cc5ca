"""Runs the replicas of jobs as processes of this machine.

Each replica has a folder: its socket, its log, its state, and a note of its process. Replicas have sessions of their own and outlive whoever started them;
a runtime that is made anew over the same folder finds them by their notes. One thread
waits for processes to end, and does everything else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument
from tfs.hosted.jobs.job_runtime import JobSpec, Replica
from tfs.hosted.jobs.limited import limited

log = logging.getLogger(__name__)

DATA_MARGIN_BYTES: Final = 2 << 30
"""Each process of a replica may have so much private memory beside its models: Python,
torch, threads' stacks, requests."""

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_GOOD_RUN_S: Final = 10.0
_LOOK_S: Final = 0.2  # for a replica to be ready that another one waits for
_DRAIN_S: Final = 40.0  # longer than a server takes at most: then it is killed
_LONGEST_SOCKET: Final = 100  # bytes of a path; the kernel takes 107


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a replica is. Immutable.

    Attributes:
        spec: Its job.
        index: Which of its replicas it is.
        folder: Its own folder.
        socket: The path of the Unix socket on which it should listen.

    """

    spec: JobSpec
    index: int
    folder: Path
    socket: str


CommandMaker = Callable[[ReplicaPlace], Sequence[str]]
"""Returns the command line of a replica; the program by its path."""


@dataclass(slots=True)
class _Process:
    """A replica. Confined to the thread, except that its fields may be read."""

    name: str
    index: int
    spec: JobSpec | None  # None: it should end
    pid: int = 0
    pid_fd: int = -1
    started_s: float = 0.0
    # The spec that its process was started with.
    running: JobSpec | None = None
    num_failed: int = 0  # in a row, without a good run between
    start_at_s: float = 0.0
    kill_at_s: float | None = None
    problem: str = ""


@dataclass(slots=True)
class _Wanted:
    specs: dict[str, JobSpec] = field(default_factory=dict)
    # Jobs that should end. What an earlier runtime left and nobody spoke of yet is let be.
    leaving: set[str] = field(default_factory=set)
    is_closing: bool = False


class LocalProcesses:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`.

    Args:
        folder: Where the folders of jobs are; made if it is not there. Its path is short
            enough for sockets.
        command: Returns how replicas are started.
        clock: Times pauses.
        is_ready: Whether the server at an address has all that it should start with;
            blocks for a second at most.

    """

    def __init__(
        self,
        folder: Path,
        command: CommandMaker,
        clock: Clock,
        is_ready: Callable[[str], bool],
    ) -> None:
        self._folder = folder.absolute()
        self._command = command
        self._clock = clock
        self._is_ready = is_ready
        self._folder.mkdir(parents=True, exist_ok=True)
        # Guards the next two; notified when something has ended. Leaf.
        self._changed = threading.Condition()
        self._wanted = _Wanted()
        self._processes: dict[tuple[str, int], _Process] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=self._run, name="local-processes", daemon=True
        )
        self._thread.start()

    def ensure(self, spec: JobSpec) -> None:
        longest = len(os.fsencode(self._socket(spec.name, spec.num_replicas)))
        if "/" in spec.name or longest > _LONGEST_SOCKET:
            raise InvalidArgument(
                f"{self._folder / spec.name} is too long for the path of a socket; choose "
                "a shorter folder, or a shorter name without a slash"
            )
        with self._changed:
            if self._wanted.specs.get(spec.name) == spec:
                return
            self._wanted.specs[spec.name] = spec
            self._wanted.leaving.discard(spec.name)
        os.eventfd_write(self._wake_fd, 1)

    def remove(self, name: str) -> None:
        with self._changed:
            self._wanted.specs.pop(name, None)
            self._wanted.leaving.add(name)
        os.eventfd_write(self._wake_fd, 1)

    def jobs(self) -> Collection[str]:
        with self._changed:
            return sorted({*self._wanted.specs, *self._on_disk()})

    def replicas(self, name: str) -> Sequence[Replica]:
        with self._changed:
            spec = self._wanted.specs.get(name)
            found = []
            for index in range(spec.num_replicas if spec else 0):
                address = f"unix:{self._socket(name, index)}"
                known = self._processes.get((name, index))
                is_running = known is not None and bool(known.pid)
                problem = known.problem if known else "not started yet"
                found.append(
                    Replica(address, is_running, "" if is_running else problem)
                )
            return found

    def drain(self, deadline_s: float) -> bool:
        """Drains all jobs; returns whether they had ended by the deadline. Blocks."""
        with self._changed:
            self._wanted.leaving.update(self._wanted.specs, self._on_disk())
            self._wanted.specs.clear()
            os.eventfd_write(self._wake_fd, 1)
            while self._processes or self._on_disk():
                if self._clock.now() >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return True

    def kill(self) -> None:
        """Ends all processes at once, without draining them."""
        with self._changed:
            self._wanted.specs.clear()
            self._wanted.leaving.update(self._on_disk())
            for each in self._processes.values():
                _signal(each, signal.SIGKILL)

    def close(self) -> None:
        with self._changed:  # held, because the thread closes what is written to
            self._wanted.is_closing = True
            os.eventfd_write(self._wake_fd, 1)
        self._thread.join()

    # -- the thread ---------------------------------------------------------------

    def _run(self) -> None:
        with select.epoll() as poll:
            poll.register(self._wake_fd, select.EPOLLIN)
            while True:
                with self._changed:
                    wanted = dict(self._wanted.specs)
                    leaving = set(self._wanted.leaving)
                    if self._wanted.is_closing:
                        break
                try:
                    wake_s = self._round(wanted, leaving, poll)
                except Exception:
                    log.exception("event=local_processes_failed")
                    wake_s = self._clock.now() + 1.0
                timeout_s = None if wake_s is None else wake_s - self._clock.now()
                poll.poll(None if timeout_s is None else max(timeout_s, 0.0))
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
        for each in self._processes.values():
            if each.pid_fd >= 0:
                os.close(each.pid_fd)
        os.close(self._wake_fd)

    def _round(
        self, wanted: dict[str, JobSpec], leaving: set[str], poll: select.epoll
    ) -> float | None:
        """Does what is due; returns when something else will be, None for never."""
        self._take_up(wanted, leaving, poll)
        next_s: list[float] = []
        for each in self._processes.values():
            if each.pid and _has_ended(each):
                self._note_end(each, poll)
        for key, each in list(self._processes.items()):
            spec = each.spec
            if spec is None and not each.pid:
                self._forget(key)
                continue
            if not each.pid and spec is not None:
                if self._clock.now() >= each.start_at_s:
                    self._start(each, spec, poll)
                if not each.pid:
                    next_s.append(each.start_at_s)
                continue
            if each.kill_at_s is not None:
                if self._clock.now() >= each.kill_at_s:
                    _signal(each, signal.SIGKILL)
                    each.kill_at_s = math.inf
                next_s.append(each.kill_at_s)
                continue
            is_other = spec is not None and _is_other(each.running, spec)
            if spec is None or (is_other and self._can_spare(each)):
                log.info("event=replica_drains job=%s index=%d", *key)
                each.kill_at_s = self._clock.now() + _DRAIN_S
                next_s.append(each.kill_at_s)
                _signal(each, signal.SIGTERM)
            elif is_other:
                next_s.append(self._clock.now() + _LOOK_S)
        with self._changed:
            self._changed.notify_all()
        return min(next_s, default=None)

    def _can_spare(self, replica: _Process) -> bool:
        """Whether all other replicas of its job serve, so that one may be drained."""
        return all(
            each.pid and each.kill_at_s is None and self._is_ready(self._address(each))
            for each in self._processes.values()
            if each.name == replica.name and each is not replica and each.spec
        )

    def _address(self, replica: _Process) -> str:
        return f"unix:{self._socket(replica.name, replica.index)}"

    def _take_up(
        self, wanted: dict[str, JobSpec], leaving: set[str], poll: select.epoll
    ) -> None:
        """Makes the table of processes follow what is wanted, and what is on disk."""
        on_disk = {
            (name, index)
            for name in self._on_disk()
            if name in wanted or name in leaving
            for index in self._indices(name)
        }
        on_disk |= {key for key in self._processes if key[0] in leaving}
        asked = {
            (name, index)
            for name, spec in wanted.items()
            for index in range(spec.num_replicas)
        }
        for name, index in asked | on_disk:
            known = self._processes.get((name, index))
            if known is None:
                known = _Process(name, index, None)
                self._adopt(known, poll)
                with self._changed:
                    self._processes[name, index] = known
            known.spec = wanted[name] if (name, index) in asked else None

    def _adopt(self, replica: _Process, poll: select.epoll) -> None:
        """Finds the process that an earlier runtime started, if it still runs."""
        note = self._place(replica.name, replica.index) / "process"
        try:
            form = json.loads(note.read_text())
            pid, birth = int(form["pid"]), form["birth"]
            limits = JobSpec(replica.name, 1, form["memory_bytes"], form["cpus"])
            pid_fd = os.pidfd_open(pid)
        except (OSError, ValueError, KeyError, TypeError):
            return
        if _birth(pid) != birth:
            os.close(pid_fd)
            return
        log.info(
            "event=replica_found job=%s index=%d pid=%d",
            replica.name,
            replica.index,
            pid,
        )
        replica.pid, replica.pid_fd, replica.running = pid, pid_fd, limits
        replica.started_s = self._clock.now()
        poll.register(pid_fd, select.EPOLLIN)

    def _start(self, replica: _Process, spec: JobSpec, poll: select.epoll) -> None:
        folder = self._place(spec.name, replica.index)
        folder.mkdir(parents=True, exist_ok=True)
        socket = self._socket(spec.name, replica.index)
        place = ReplicaPlace(spec, replica.index, folder, socket)
        command = limited(
            self._command(place),
            spec.memory_bytes + DATA_MARGIN_BYTES,
            _share(spec.cpus, replica.index),
        )
        try:
            with (folder / "log").open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            self._note_failure(replica, f"cannot be started: {error}")
            return
        process.returncode = 0  # it is waited for here, and by its number
        replica.pid, replica.pid_fd = process.pid, os.pidfd_open(process.pid)
        replica.started_s, replica.running = self._clock.now(), spec
        form = {
            "pid": process.pid,
            "birth": _birth(process.pid),
            "memory_bytes": spec.memory_bytes,
            "cpus": spec.cpus,
        }
        (folder / "process").write_text(json.dumps(form))
        poll.register(replica.pid_fd, select.EPOLLIN)
        log.info(
            "event=replica_started job=%s index=%d pid=%d",
            spec.name,
            replica.index,
            process.pid,
        )

    def _note_end(self, replica: _Process, poll: select.epoll) -> None:
        how = _reap(replica.pid)
        poll.unregister(replica.pid_fd)
        os.close(replica.pid_fd)
        was_asked = replica.kill_at_s is not None
        replica.pid, replica.pid_fd, replica.kill_at_s = 0, -1, None
        replica.running = None
        if was_asked:
            return
        if self._clock.now() - replica.started_s >= _GOOD_RUN_S:
            replica.num_failed = 0
        self._note_failure(replica, how)

    def _note_failure(self, replica: _Process, how: str) -> None:
        pause_s = 0.0
        if replica.num_failed:
            exponent = min(replica.num_failed - 1, 10)
            pause_s = min(_FIRST_PAUSE_S * 2**exponent, _LONGEST_PAUSE_S)
        replica.num_failed += 1
        replica.start_at_s = self._clock.now() + pause_s
        where = self._place(replica.name, replica.index) / "log"
        replica.problem = f"replica {replica.index} {how}; {where} says more"
        log.warning(
            "event=replica_ended job=%s index=%d how=%s again_in_s=%.1f",
            replica.name,
            replica.index,
            how,
            pause_s,
        )

    def _forget(self, key: tuple[str, int]) -> None:
        name, index = key
        shutil.rmtree(self._place(name, index), ignore_errors=True)
        with contextlib.suppress(OSError):
            (self._folder / name).rmdir()
        with self._changed:
            del self._processes[key]

    def _place(self, name: str, index: int) -> Path:
        return self._folder / name / str(index)

    def _socket(self, name: str, index: int) -> str:
        return str(self._place(name, index) / "grpc.sock")

    def _on_disk(self) -> Sequence[str]:
        try:
            return sorted(each.name for each in self._folder.iterdir() if each.is_dir())
        except (
            FileNotFoundError
        ):  # somebody removed it; what runs is drained all the same
            return ()

    def _indices(self, name: str) -> Sequence[int]:
        try:
            found = os.listdir(self._folder / name)
        except OSError:
            return ()
        return [int(each) for each in found if each.isdecimal()]


def _is_other(running: JobSpec | None, spec: JobSpec) -> bool:
    """Whether a replica runs with other limits than it should."""
    if running is None:
        return False
    return (running.memory_bytes, running.cpus) != (spec.memory_bytes, spec.cpus)


def _share(cpus: int, index: int) -> Sequence[int]:
    """Returns the processors of a replica: neighbours get different ones, if there are."""
    every = sorted(os.sched_getaffinity(0))
    if not 0 < cpus < len(every):
        return every
    first = index * cpus
    return sorted(every[(first + each) % len(every)] for each in range(cpus))


def _birth(pid: int) -> str:
    """Returns when a process began, as the kernel counts; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _has_ended(replica: _Process) -> bool:
    with select.epoll() as poll:
        poll.register(replica.pid_fd, select.EPOLLIN)
        return bool(poll.poll(0))


def _reap(pid: int) -> str:
    """Takes the end of a child, and says how it ended; others are somebody else's."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "ended"
    code = os.waitstatus_to_exitcode(status)
    return (
        f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    )


def _signal(replica: _Process, number: signal.Signals) -> None:
    if replica.pid_fd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(replica.pid_fd, number)
