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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tfs.core.clock import MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, RunningJobs, Seen, all_serve
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

    """

    def __init__(self, folder: str, command: Sequence[str]) -> None:
        import ray

        self._command = command
        self._host = ray.util.get_node_ip_address()
        self._folder = Path(folder)
        clock = MonotonicClock()
        processes = LocalProcesses(self._folder, self._made, clock, lambda _: True)
        self._jobs = RunningJobs(processes, clock)
        self._jobs.start()

    def keep(self, spec: JobSpec | None) -> Replica:
        """Has the server be what it should be, or (None) as it is; returns how it does."""
        address = self._address()  # before the server asks for it
        if spec is not None:
            self._jobs.keep([replace(spec, name=_NAME, num_replicas=1)])
        for found in self._jobs.seen.get(_NAME, ()):
            return replace(found, address=address, started_s=0.0)
        return Replica(address, False, "not started yet")

    def drain(self) -> bool:
        """Drains the server; returns whether it ended in time."""
        has_ended = self._jobs.drain(MonotonicClock.now() + _DRAIN_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        return has_ended

    def _made(self, place: ReplicaPlace) -> Sequence[str]:
        host, _, port = self._address().rpartition(":")
        own = {
            "python": sys.executable,
            "host": host,
            "port": port,
            "folder": str(place.folder),
            "memory_bytes": place.spec.memory_bytes,
        }
        return [each.format(**own) for each in self._command]

    def _address(self) -> str:
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
    given: JobSpec | None = None  # None: what an earlier runtime gave it
    is_ending: bool = False
    answer: Any = None  # what is waited for
    seen: Replica | None = None


class RayJobs:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`.

    Args:
        ray: What :func:`connect` returned; its owner shuts it down.
        folder: Where nodes keep files of replicas.
        command: As :class:`ReplicaActor` takes it.
        is_ready: Whether the server at an address has all that it should start with.

    """

    look_s = 0.5

    def __init__(
        self,
        ray: Any,
        folder: str,
        command: Sequence[str],
        is_ready: Callable[[str], bool],
    ) -> None:
        self._ray, self._folder, self._command = ray, folder, command
        self._is_ready = is_ready
        self._known: dict[tuple[str, int], _Known] = {}

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        self._find()
        asked = {(s.name, i): s for s in specs.values() for i in range(s.num_replicas)}
        for key, spec in asked.items():
            if key not in self._known:
                self._known[key] = _Known(self._actor(key, spec), spec)
        for key, known in self._known.items():
            self._ask(key, known, asked.get(key))
        self._take_answers()
        waits = Replica("", False, "Ray has found no node with room for it yet")
        return {
            name: [self._known[key].seen or waits for key in asked if key[0] == name]
            for name in {*specs, *(name for name, _ in self._known)}
        }

    def _ask(self, key: tuple[str, int], known: _Known, wanted: JobSpec | None) -> None:
        """Asks an actor for what is wanted, unless it was asked and has not answered."""
        if known.answer is not None and (wanted is None) == known.is_ending:
            return
        known.is_ending = wanted is None
        if wanted is None:
            known.answer = known.actor.drain.remote()
            return
        if known.seen is not None and (
            known.seen.limits in (None, wanted.limits) or self._can_spare(key)
        ):
            known.given = wanted
        known.answer = known.actor.keep.remote(known.given)

    def _can_spare(self, key: tuple[str, int]) -> bool:
        """Whether all other replicas of a job serve, as they should, so that one may drain."""
        others = [
            each
            for (name, index), each in self._known.items()
            if name == key[0] and index != key[1] and not each.is_ending
        ]
        return all_serve((each.seen for each in others), self._is_ready) and all(
            each.given is None or (each.seen and each.seen.limits == each.given.limits)
            for each in others
        )

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
        return kind.remote(f"{self._folder}/{name}#{index}", list(self._command))
