"""The interpreters of a server process, by backend; made when first needed."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.serving_loop import ServingLoop
from tfs.runtime.dlmopen_backend import DlmopenBackend
from tfs.runtime.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend
from tfs.runtime.process_backend import ProcessBackend
from tfs.runtime.process_options import ProcessOptions
from tfs.runtime.worker_options import WorkerOptions
from tfs.runtime.zygote_process import ZygoteProcess
from tfs.server.options import ServerOptions
from tfs.server.worker_user import user_of


@dataclass(frozen=True, slots=True)
class InterpretersOptions:
    """How many interpreters there are, and what a call may take. Immutable.

    Attributes:
        num_interpreters: Processes, and threads for calls in the server process.
        call_timeout_s: A call in a process that takes longer ends the process.
        max_queued: Calls that may wait for one interpreter.
        worker: How the processes run.
        num_private_pythons: Those of backend dlmopen; 0 for as many as processes.
        keeps_spare: Whether a process more than are used is kept ready.

    """

    num_interpreters: int
    call_timeout_s: float = 30.0
    max_queued: int = 256
    worker: WorkerOptions = field(default_factory=WorkerOptions)
    num_private_pythons: int = 0
    keeps_spare: bool = False

    def __post_init__(self) -> None:
        if self.num_interpreters < 1:
            raise InvalidArgument("num_interpreters must be positive")


class Interpreters:
    """Owns the interpreters. ``of`` is thread-safe; ``close`` runs off the loop.

    Args:
        loop: The serving loop: front models run on it, and it talks to processes.
        options: See there.
        on_slow: Called on the loop when a front model took too long.
        on_quarantine: Called on the loop when a version crashed once too often.
        zygote: Runs already; only where there are processes.
        is_urgent: Whether loads need not make way for what serves.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: InterpretersOptions,
        *,
        on_slow: Callable[[ServableId, float], None],
        on_quarantine: Callable[[ServableId, str], None],
        zygote: ZygoteProcess | None = None,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._options = options
        clock, max_queued = loop.clock, options.max_queued
        self._front = InlineInterpreter(
            "front",
            max_queued=max_queued,
            clock=clock,
            front_loop=loop,
            on_slow=on_slow,
        )
        self._inline = [
            InlineInterpreter(f"inline-{index}", max_queued=max_queued, clock=clock)
            for index in range(options.num_interpreters)
        ]
        self._turns = itertools.cycle(self._inline)
        self._processes: ProcessBackend | None = None
        if ProcessBackend.is_available():
            self._processes = ProcessBackend(
                loop,
                ProcessOptions(
                    worker=options.worker,
                    max_queued=max_queued,
                    call_timeout_s=options.call_timeout_s,
                    on_quarantine=on_quarantine,
                    keeps_spare=options.keeps_spare,
                    is_urgent=is_urgent,
                ),
                zygote,
            )
        self._private = DlmopenBackend(
            options.num_private_pythons or options.num_interpreters,
            max_queued=max_queued,
            clock=clock,
        )
        # Guards the fields below; leaf: making interpreters starts nothing.
        self._lock = threading.Lock()
        self._started: set[str] = set()
        self._closed = False

    @property
    def has_processes(self) -> bool:
        """Whether this host has the process backend."""
        return self._processes is not None

    def of(self, backend: Backend, *, num_processes: int = 0) -> Interpreter:
        """Returns the interpreter for one version that is to run there; started.

        A version in processes has them for itself: ``num_processes`` of them, or as
        many as the options say. Private Pythons are shared by all versions; a version
        gets that many of them, or all.

        Raises:
            FailedPrecondition: This server has no such backend.

        """
        with self._lock:
            if self._closed:
                raise FailedPrecondition("the interpreters are closed")
            if backend is Backend.PROCESS and self._processes is not None:
                return self._processes.pool(
                    num_processes or self._options.num_interpreters
                )
            if backend is Backend.DLMOPEN:
                group = self._private.group(num_processes)
                group.start()
                return group
            if backend not in (Backend.FRONT, Backend.INLINE):
                raise FailedPrecondition(f"no {backend.value} interpreters here")
            inline = self._front if backend is Backend.FRONT else next(self._turns)
            if inline.name not in self._started:
                self._started.add(inline.name)
                inline.start()
            return inline

    def close(self, deadline_s: float) -> None:
        """Ends every interpreter, its process and the zygote; idempotent."""
        with self._lock:
            self._closed = True
        self._front.close(deadline_s)
        for inline in self._inline:
            inline.close(deadline_s)
        self._private.close(deadline_s)
        if self._processes is not None:
            self._processes.close(deadline_s)


def default_num_interpreters() -> int:
    """Returns one per core this process may use."""
    return len(os.sched_getaffinity(0))


def worker_options(options: ServerOptions) -> WorkerOptions:
    """Returns how process interpreters run.

    Raises:
        InvalidArgument: Their user is unknown, or cannot be become.

    """
    user_id, group_id = None, None
    if options.worker_user:
        user_id, group_id = user_of(options.worker_user)
        if os.geteuid():
            raise InvalidArgument(
                "--worker_user: only a server that runs as root can give its "
                "interpreters another user"
            )
    return WorkerOptions(
        spin_us=options.worker_spin_us,
        memory_limit_bytes=options.worker_memory_limit_bytes,
        nice=options.worker_nice,
        user_id=user_id,
        group_id=group_id,
    )
