"""Runs the replicas of jobs as processes of this machine.

Each replica has a folder: its socket, its log, its state, and a note of its process.
Replicas have sessions of their own and outlive whoever started them; a runtime that is
made anew over the same folder finds them by their notes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument, ServingError
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, Seen

log = logging.getLogger(__name__)

DATA_MARGIN_BYTES: Final = 2 << 30
"""Each process of a replica may have so much private memory beside its models: Python,
torch, threads' stacks, requests."""

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_GOOD_RUN_S: Final = 10.0
_DRAIN_S: Final = 40.0  # longer than a server takes at most: then it is killed
_LONGEST_SOCKET: Final = 100  # bytes of a path; the kernel takes 107
_LONGEST_FOLDER: Final = 80  # so that jobs with short names have sockets below it

# Sets the limit in the process that becomes the program, so that all its threads and
# children have it from their beginning.
_LIMITED: Final = ("/bin/sh", "-c", 'ulimit -d "$0"; exec "$@"')


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Where a replica is. Immutable."""

    spec: JobSpec
    index: int  # among the replicas of its job
    folder: Path  # its own
    socket: str  # the path of the Unix socket on which it should listen


CommandMaker = Callable[[ReplicaPlace], Sequence[str]]
"""Returns the command line of a replica; the program by its path. May raise a ServingError."""


@dataclass(slots=True)
class _Process:
    """A replica: what is known of its process, if it has one."""

    name: str
    index: int
    folder: Path
    pid: int = 0
    birth: str = ""
    started_s: float = 0.0
    limits: tuple[int, int] = 0, 0  # of its process
    num_failed: int = 0  # in a row, without a good run between
    start_at_s: float = 0.0
    kill_at_s: float | None = None  # it drains
    problem: str = "not started yet"


class LocalProcesses:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`.

    Args:
        folder: Where the folders of jobs are; made if it is not there.
        command: Returns how replicas are started.
        clock: Times pauses.

    Raises:
        InvalidArgument: The folder's path is too long for sockets.

    """

    look_s = 0.1

    def __init__(self, folder: Path, command: CommandMaker, clock: Clock) -> None:
        self._folder = folder.absolute()
        self._command = command
        self._clock = clock
        if len(os.fsencode(self._folder)) > _LONGEST_FOLDER:
            raise InvalidArgument(
                f"{self._folder} is too long for sockets in it; choose a shorter folder"
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        self._processes = {
            (each.parent.name, int(each.name)): self._found(each)
            for each in self._folder.glob("*/*")
            if each.name.isdecimal()
        }

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        for name, spec in specs.items():
            for index in range(spec.num_replicas):
                known = _Process(name, index, self._folder / name / f"{index}")
                self._processes.setdefault((name, index), known)
        for each in list(self._processes.values()):
            wanted = specs.get(each.name)
            if wanted is not None and each.index >= wanted.num_replicas:
                wanted = None
            self._look_at(each, wanted)
        return {
            name: [
                self._replica(self._processes[name, index])
                for index in range(specs[name].num_replicas if name in specs else 0)
            ]
            for name in {*specs, *(each.name for each in self._processes.values())}
        }

    def kill(self) -> None:
        """Ends all processes at once, without draining them; for a process that ends."""
        for each in list(self._processes.values()):
            _signal(each, signal.SIGKILL)

    def _look_at(self, process: _Process, spec: JobSpec | None) -> None:
        """Does what is due for a replica; without a spec it should end."""
        now_s = self._clock.now()
        if process.pid and (how := _how_it_ended(process)):
            self._note_end(process, how)
        if not process.pid:
            if spec is None:
                self._forget(process)
            elif now_s >= process.start_at_s:
                self._start(process, spec)
        elif process.kill_at_s is not None:
            if now_s >= process.kill_at_s:
                _signal(process, signal.SIGKILL)
        elif spec is None or (
            process.index == spec.renewed and process.limits != spec.limits
        ):
            where = process.name, process.index
            log.info("event=replica_drains job=%s index=%d", *where)
            process.kill_at_s = now_s + _DRAIN_S
            with contextlib.suppress(OSError):  # somebody may have removed its folder
                self._keep_note(process, drains=True)
            _signal(process, signal.SIGTERM)

    def _found(self, folder: Path) -> _Process:
        """Returns a replica of an earlier runtime, with its process if that still runs."""
        process = _Process(folder.parent.name, int(folder.name), folder)
        try:
            form = json.loads((folder / "process").read_text())
            pid, birth = int(form["pid"]), form["birth"]
            limits = form["memory_bytes"], form["cpus"]
        except (OSError, ValueError, KeyError, TypeError):
            return process
        if not birth or _birth(pid) != birth:
            return process
        where = process.name, process.index, pid
        log.info("event=replica_found job=%s index=%d pid=%d", *where)
        process.pid, process.birth, process.limits = pid, birth, limits
        process.started_s = self._clock.now()
        if form.get("drains"):  # a second signal would end it at once
            process.kill_at_s = process.started_s + _DRAIN_S
        return process

    def _keep_note(self, process: _Process, *, drains: bool = False) -> None:
        """Has a later runtime find a process."""
        form = {"pid": process.pid, "birth": process.birth, "drains": drains}
        form["memory_bytes"], form["cpus"] = process.limits
        (process.folder / "process").write_text(json.dumps(form))

    def _start(self, process: _Process, spec: JobSpec) -> None:
        folder, socket = process.folder, _socket(process)
        if "/" in spec.name or len(os.fsencode(socket)) > _LONGEST_SOCKET:
            self._note_failure(process, "needs a job with a shorter name, and no slash")
            return
        data_kib = (spec.memory_bytes + DATA_MARGIN_BYTES) >> 10
        every = os.sched_getaffinity(0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            command = self._command(ReplicaPlace(spec, process.index, folder, socket))
            # A child has the processors of the thread that starts it.
            os.sched_setaffinity(0, _share(sorted(every), spec.cpus, process.index))
            with (folder / "log").open("ab") as output:
                started = subprocess.Popen(
                    [*_LIMITED, f"{data_kib}", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except (OSError, ServingError) as error:
            self._note_failure(process, f"cannot be started: {error}")
            return
        finally:
            os.sched_setaffinity(0, every)
        started.returncode = 0  # it is waited for here, and by its number
        process.pid, process.birth = started.pid, _birth(started.pid)
        process.started_s, process.limits = self._clock.now(), spec.limits
        self._keep_note(process)
        where = spec.name, process.index, process.pid
        log.info("event=replica_started job=%s index=%d pid=%d", *where)

    def _note_end(self, process: _Process, how: str) -> None:
        was_asked = process.kill_at_s is not None
        process.pid, process.kill_at_s = 0, None
        if was_asked:
            return
        if self._clock.now() - process.started_s >= _GOOD_RUN_S:
            process.num_failed = 0
        self._note_failure(process, f"{how}; {process.folder / 'log'} says more")

    def _note_failure(self, process: _Process, how: str) -> None:
        pause_s = 0.0
        if process.num_failed:
            exponent = min(process.num_failed - 1, 10)
            pause_s = min(_FIRST_PAUSE_S * 2**exponent, _LONGEST_PAUSE_S)
        process.num_failed += 1
        process.start_at_s = self._clock.now() + pause_s
        process.problem = f"replica {process.index} {how}"
        told = process.name, process.problem, pause_s
        log.warning("event=replica_ended job=%s problem=%s again_in_s=%.1f", *told)

    def _forget(self, process: _Process) -> None:
        shutil.rmtree(process.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            process.folder.parent.rmdir()
        del self._processes[process.name, process.index]

    def _replica(self, process: _Process) -> Replica:
        address = f"unix:{_socket(process)}"
        if not process.pid:
            return Replica(address, process.problem)
        return Replica(address, "", process.limits, process.started_s)


def _socket(process: _Process) -> str:
    return str(process.folder / "grpc.sock")


def _share(every: Sequence[int], cpus: int, index: int) -> Sequence[int]:
    """Returns the processors of a replica: neighbours get different ones, if there are."""
    if not 0 < cpus < len(every):
        return every
    return [every[(index * cpus + each) % len(every)] for each in range(cpus)]


def _birth(pid: int) -> str:
    """Returns when a process began, as the kernel counts; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state == "Z" else rest[18]


def _how_it_ended(process: _Process) -> str:
    """Returns how a process ended; empty while it runs."""
    try:
        ended, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:  # an earlier runtime started it
        return "" if _birth(process.pid) == process.birth else "ended"
    if not ended:
        return ""
    code = os.waitstatus_to_exitcode(status)
    return (
        f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    )


def _signal(process: _Process, number: signal.Signals) -> None:
    # By now its number may be another's.
    if process.pid and _birth(process.pid) == process.birth:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
