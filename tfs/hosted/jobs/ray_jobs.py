"""Runs the replicas of jobs on a Ray cluster; for their lifecycle alone.

Each replica has a named, detached actor. On its node the actor keeps one server running, as
:class:`~tfs.hosted.jobs.local_process.LocalProcesses` does on one machine. Requests go to
the server's own port and never through Ray, so servers go on while Ray's head is away. Ray
places actors by memory and processors, and starts them elsewhere when their node is lost.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.hosted.jobs.job_runtime import JobSpec, Replica
from tfs.hosted.jobs.local_process import LocalProcesses, ReplicaPlace

log = logging.getLogger(__name__)

NAMESPACE: Final = "tfs"
_NAME: Final = "server"
_LOOK_S: Final = 0.5
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
        self._processes = LocalProcesses(
            self._folder, self._made, MonotonicClock(), lambda _: True
        )

    def keep(self, spec: JobSpec) -> Replica:
        """Has the server be what it should be; returns how it does."""
        address = self._address()  # before the server asks for it
        self._processes.ensure(replace(spec, name=_NAME, num_replicas=1))
        (found,) = self._processes.replicas(_NAME)
        return replace(found, address=address)

    def drain(self) -> bool:
        """Drains the server; returns whether it ended in time."""
        has_ended = self._processes.drain(MonotonicClock.now() + _DRAIN_S)
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
    """A replica, for the thread that looks."""

    actor: Any
    given: JobSpec | None = None  # None: it should end
    answer: Any = None  # what is waited for
    seen: Replica | None = None


class RayJobs:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime`.

    Args:
        ray: What :func:`connect` returned; its owner shuts it down.
        folder: Where nodes keep files of replicas.
        command: As :class:`ReplicaActor` takes it.
        clock: Times looks.
        is_ready: Whether the server at an address has all that it should start with.

    """

    def __init__(
        self,
        ray: Any,
        folder: str,
        command: Sequence[str],
        clock: Clock,
        is_ready: Callable[[str], bool],
    ) -> None:
        self._ray, self._folder, self._command = ray, folder, command
        self._clock, self._is_ready = clock, is_ready
        # Guards all that follows but what replicas are; notified when a look ended. Leaf.
        self._changed = threading.Condition()
        self._specs: dict[str, JobSpec] = {}
        self._leaving: set[str] = set()
        self._known: dict[tuple[str, int], _Known] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="ray-jobs", daemon=True)
        self._thread.start()

    def ensure(self, spec: JobSpec) -> None:
        with self._changed:
            if self._specs.get(spec.name) == spec:
                return
            self._specs[spec.name] = spec
            self._leaving.discard(spec.name)
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        with self._changed:
            self._specs.pop(name, None)
            self._leaving.add(name)
            self._changed.notify_all()

    def jobs(self) -> Collection[str]:
        with self._changed:
            return sorted({*self._specs, *(name for name, _ in self._known)})

    def replicas(self, name: str) -> Sequence[Replica]:
        with self._changed:
            spec, found = self._specs.get(name), []
            for index in range(spec.num_replicas if spec else 0):
                known = self._known.get((name, index))
                waits = Replica("", False, "Ray has found no node with room for it yet")
                found.append(known.seen if known and known.seen else waits)
            return found

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    # -- the thread ---------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # Ray has many; the cluster may be away for a while
                log.exception("event=ray_jobs_failed")
            with self._changed:
                self._changed.notify_all()
                if not self._is_closing:
                    self._clock.wait(self._changed, self._clock.now() + _LOOK_S)
                if self._is_closing:
                    return

    def _look(self) -> None:
        with self._changed:
            specs, leaving = dict(self._specs), set(self._leaving)
        self._find()
        asked = {(s.name, i): s for s in specs.values() for i in range(s.num_replicas)}
        for key, spec in asked.items():
            if key not in self._known:
                self._put(key, _Known(self._actor(key, spec)))
        for key, known in self._known.items():
            wanted = asked.get(key)
            if wanted is None and key[0] not in {*specs, *leaving}:
                continue  # an earlier runtime's, of which nobody has spoken yet
            if known.answer is not None and (wanted is None) == (known.given is None):
                continue
            if wanted is None:
                known.given, known.answer = None, known.actor.drain.remote()
                continue
            if known.given is None or known.given == wanted or self._can_spare(key):
                known.given = wanted
            known.answer = known.actor.keep.remote(known.given)
        self._take_answers()

    def _can_spare(self, key: tuple[str, int]) -> bool:
        """Whether all other replicas of a job serve, so that one may be drained."""
        return all(
            each.seen is not None
            and each.seen.is_running
            and self._is_ready(each.seen.address)
            for (name, index), each in self._known.items()
            if name == key[0] and index != key[1] and each.given is not None
        )

    def _take_answers(self) -> None:
        waited = {each.answer: key for key, each in self._known.items() if each.answer}
        done, _ = (
            self._ray.wait(
                list(waited), num_returns=len(waited) or 1, timeout=_ANSWER_S
            )
            if waited
            else ((), ())
        )
        for answer in done:
            key = waited[answer]
            known = self._known[key]
            known.answer, seen = None, None
            with contextlib.suppress(self._ray.exceptions.RayActorError):
                seen = self._ray.get(answer)
            if known.given is not None:
                with self._changed:
                    known.seen = seen
                continue
            self._ray.kill(known.actor)
            with self._changed:
                del self._known[key]

    def _find(self) -> None:
        """Takes up the actors that an earlier runtime started."""
        for each in self._ray.util.list_named_actors():
            name, _, index = each.rpartition("#")
            key = name, int(index) if index.isdecimal() else 0
            if name and key not in self._known:
                with contextlib.suppress(ValueError):  # it ended just now
                    self._put(key, _Known(self._ray.get_actor(each)))

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

    def _put(self, key: tuple[str, int], known: _Known) -> None:
        with self._changed:
            self._known[key] = known
