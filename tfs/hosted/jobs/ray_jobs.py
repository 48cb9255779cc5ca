"""Runs the replicas of jobs on a Ray cluster; for their lifecycle alone.

Each replica has a named, detached actor. On its node the actor keeps one server running, as
:class:`~tfs.hosted.jobs.local_process.LocalProcesses` does on one machine. Requests go to
the server's own port and never through Ray, so servers go on while Ray's head is away. Ray
places actors by memory and processors, and starts them elsewhere when their node is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tfs.core.clock import MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, RunningJobs, Seen
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace

NAMESPACE: Final = "tfs"
_NAME: Final = "server"
_ANSWER_S: Final = 2.0
_DRAIN_S: Final = 60.0


def connect(address: str) -> Any:
    """Connects this process to a cluster ("HOST:PORT", or "auto") and returns Ray.

    Raises:
        FailedPrecondition: The extra is missing, or there is no such cluster.

    """
    try:
        import ray
    except ImportError as error:
        raise FailedPrecondition(
            "jobs on Ray need the extra ray: pip install 'tfs[ray]'"
        ) from error
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise FailedPrecondition(f"no Ray cluster at {address}: {error}") from error
    return ray


class ReplicaActor:
    """Keeps one server running; lives in a process of Ray's.

    Args:
        folder: Where its node keeps its files.
        command: The server's command line; ``{python}``, ``{host}``, ``{port}``,
            ``{folder}`` and ``{memory_bytes}`` stand for its own.
        spec: Its job; what it has from its birth is what Ray keeps free for it.

    """

    def __init__(self, folder: str, command: Sequence[str], spec: JobSpec) -> None:
        import ray

        self._spec = spec
        self._command = command
        self._host = ray.util.get_node_ip_address()
        self._folder = Path(folder)
        self._address = self._chosen_address()  # before the server asks for it
        clock = MonotonicClock()
        processes = LocalProcesses(self._folder, self._made, clock)
        self._jobs = RunningJobs(processes, clock)
        self._jobs.keep([replace(spec, name=_NAME, num_replicas=1)])
        self._jobs.start()

    def look(self) -> Replica:
        """Returns how the server does."""
        (found,) = self._jobs.seen.get(_NAME) or [Replica("", "not started yet")]
        limits = self._spec.limits
        return replace(found, address=self._address, limits=limits, started_s=0.0)

    def drain(self) -> bool:
        """Drains the server; returns whether it ended in time."""
        has_ended = self._jobs.drain(MonotonicClock.now() + _DRAIN_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return has_ended

    def _made(self, place: ReplicaPlace) -> Sequence[str]:
        host, _, port = self._address.rpartition(":")
        own = {
            "python": sys.executable,
            "host": host,
            "port": port,
            "folder": str(place.folder),
            "memory_bytes": place.spec.memory_bytes,
        }
        return [each.format(**own) for each in self._command]

    def _chosen_address(self) -> str:
        """Returns where the server listens, on this node for as long as it lives."""
        note = self._folder / _NAME / "0" / "port"
        if not note.exists():
            with socket.create_server((self._host, 0)) as free:
                port = free.getsockname()[1]
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(port))
        return f"{self._host}:{note.read_text()}"


@dataclass(slots=True)
class _Known:
    """A replica: its actor, and what that was asked for."""

    actor: Any
    is_ending: bool = False
    answer: Any = None  # what is waited for
    seen: Replica | None = None


class RayJobs:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`.

    Args:
        ray: What :func:`connect` returned; its owner shuts it down.
        folder: Where nodes keep files of replicas.
        command: As :class:`ReplicaActor` takes it.

    """

    look_s = 0.5

    def __init__(self, ray: Any, folder: str, command: Sequence[str]) -> None:
        self._ray, self._folder, self._command = ray, folder, command
        self._known: dict[tuple[str, int], _Known] = {}

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        self._find()
        asked = {(s.name, i): s for s in specs.values() for i in range(s.num_replicas)}
        for key, spec in asked.items():
            if key not in self._known:
                self._known[key] = _Known(self._actor(key, spec))
        for key, known in self._known.items():
            self._ask(key[1], known, asked.get(key))
        self._take_answers()
        waits = Replica("", "Ray has found no node with room for it yet")
        seen = {key: each.seen for key, each in self._known.items()}
        return {
            name: [seen.get(key) or waits for key in asked if key[0] == name]
            for name in {*specs, *(name for name, _ in self._known)}
        }

    def _ask(self, index: int, known: _Known, wanted: JobSpec | None) -> None:
        """Asks an actor how it does, once it has answered; or once, to drain its server."""
        is_over = wanted is None or (
            known.seen is not None
            and known.seen.is_outdated(wanted)
            and index == wanted.renewed
        )
        if is_over and not known.is_ending:
            known.is_ending, known.answer = True, known.actor.drain.remote()
        elif known.answer is None:
            known.answer = known.actor.look.remote()

    def _take_answers(self) -> None:
        waited = {each.answer: key for key, each in self._known.items() if each.answer}
        if not waited:
            return
        done, _ = self._ray.wait(
            list(waited), num_returns=len(waited), timeout=_ANSWER_S
        )
        for answer in done:
            known = self._known[waited[answer]]
            known.answer = known.seen = None
            with contextlib.suppress(self._ray.exceptions.RayActorError):
                known.seen = self._ray.get(answer)
            if known.is_ending:
                self._ray.kill(known.actor)
            if known.is_ending or known.seen is None:  # which is found again, or made
                del self._known[waited[answer]]

    def _find(self) -> None:
        """Takes up the actors that an earlier runtime started."""
        for each in self._ray.util.list_named_actors():
            name, _, index = each.rpartition("#")
            key = name, int(index) if index.isdecimal() else 0
            if name and key not in self._known:
                with contextlib.suppress(ValueError):  # it ended just now
                    self._known[key] = _Known(self._ray.get_actor(each))

    def _actor(self, key: tuple[str, int], spec: JobSpec) -> Any:
        name, index = key
        kind = self._ray.remote(ReplicaActor).options(
            name=f"{name}#{index}",
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=spec.cpus,
            memory=spec.memory_bytes,
        )
        return kind.remote(f"{self._folder}/{name}#{index}", list(self._command), spec)
