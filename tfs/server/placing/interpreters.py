"""The interpreters of a server process, by backend; made when first needed."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.loop.pacing import Traffic
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.core.system.processor_share import num_processors
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.zygote_process import UNCOMPILED, ZygoteProcess
from tfs.server.options import ServerOptions
from tfs.server.placing.worker_user import user_of
from tfs.server.system.torch_libraries import map_torch_libraries

if TYPE_CHECKING:
    from tfs.server.placing.in_process_interpreters import InProcessInterpreters

_IN_PROCESS: Final = (Backend.FRONT, Backend.INLINE, Backend.DLMOPEN)


@dataclass(frozen=True, slots=True)
class InterpretersOptions:
    """How many interpreters there are, and what a call may take. Immutable.

    Attributes:
        num_interpreters: Processes, and threads for calls in the server process.
        call_timeout_s: A call that takes longer ends its process; a private Python
            takes no further calls then.
        max_queued: Calls that may wait for one interpreter.
        worker: How the processes run.
        num_private_pythons: Interpreters of backend dlmopen; 0 for as many as
            processes.
        keeps_spare: Whether one more process than is used is kept ready.

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
    """Owns the interpreters. Thread-safe; only ``close``, off the loop, ends calls.

    Args:
        loop: The serving loop: front models run on it, and it talks to processes.
        options: How many there are, and how they run.
        on_slow: Called on the loop when a front model took too long.
        on_hang: Called on any thread with a version whose call hangs in a private
            Python, and a text about that; with an empty text once the call has ended.
        on_quarantine: Called on the loop when a version crashed once too often.
        zygote: A zygote process that runs already, for a server with the process
            backend; None starts one when it is needed.
        is_urgent: Whether loads need not make way for what serves.
        traffic: The requests for which loads make way.
        executor: Packs and unpacks what would hold up the loop; by default the loop does.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: InterpretersOptions,
        *,
        on_slow: Callable[[ServableId, float], None],
        on_hang: Callable[[ServableId, str], None],
        on_quarantine: Callable[[ServableId, str], None],
        zygote: ZygoteProcess | None = None,
        is_urgent: Callable[[], bool] = lambda: False,
        traffic: Callable[[], Traffic] = lambda: Traffic.NONE,
        executor: Executor | None = None,
    ) -> None:
        self._loop = loop
        self._options = options
        self._on_slow = on_slow
        self._on_hang = on_hang
        self._processes: ProcessBackend | None = None
        if ProcessBackend.is_available():
            self._processes = ProcessBackend(
                loop,
                ProcessOptions(
                    worker=options.worker,
                    max_queued=options.max_queued,
                    call_timeout_s=options.call_timeout_s,
                    on_quarantine=on_quarantine,
                    keeps_spare=options.keeps_spare,
                    is_urgent=is_urgent,
                    traffic=traffic,
                    executor=executor or InlineExecutor(),
                ),
                zygote,
            )
        # Held while torch is imported, by a load thread or the main thread: others that
        # want torch wait for it. Leaf.
        self._importing = threading.Lock()
        # Guards the fields below; leaf but for the process backend's: making
        # interpreters starts nothing.
        self._lock = threading.Lock()
        self._in_process: InProcessInterpreters | None = None
        self._has_imported = False
        self._closed = False

    @property
    def has_processes(self) -> bool:
        """Whether this host has the process backend."""
        return self._processes is not None

    @property
    def reserve_pids(self) -> Sequence[int]:
        """Processes that run no version and wait for one."""
        spare = None if self._processes is None else self._processes.spare_pid
        return () if spare is None else (spare,)

    def of(
        self,
        backend: Backend,
        *,
        num_processes: int = 0,
        may_grow: Callable[[], bool] | None = None,
    ) -> Interpreter:
        """Returns the interpreter for one version that is to run there; started.

        A version that runs in processes has them to itself: ``num_processes``, or as
        many as the options say. With ``may_grow`` it has one at first, and gets the
        others when calls wait (:class:`~tfs.runtime.process.process_pool.ProcessPool`).
        Private Pythons are shared by all versions; a version uses ``num_processes`` of
        them, or all.

        Raises:
            FailedPrecondition: This server has no such backend.

        """
        if backend in _IN_PROCESS:
            self.prepare()
        with self._lock:
            if self._closed:
                raise FailedPrecondition("the interpreters are closed")
            if backend is Backend.PROCESS and self._processes is not None:
                return self._processes.pool(
                    num_processes or self._options.num_interpreters, may_grow
                )
            if backend in _IN_PROCESS and self._in_process is not None:
                return self._in_process.of(backend, num_processes)
            raise FailedPrecondition(f"no {backend.value} interpreters here")

    def prepare(self) -> None:
        """Imports torch for models in this process; blocks for a second the first time.

        From then on garbage collections leave out what was imported, like all that a
        server imports at its start (:mod:`tfs.server.system.process_settings`).
        """
        with self._importing:
            if not self._has_imported:
                _import_torch()
                self._has_imported = True
        from tfs.server.placing.in_process_interpreters import InProcessInterpreters

        options = self._options
        with self._lock:
            if self._in_process is not None or self._closed:
                return
            self._in_process = InProcessInterpreters(
                self._loop,
                num_threads=options.num_interpreters,
                num_private_pythons=(
                    options.num_private_pythons or options.num_interpreters
                ),
                max_queued=options.max_queued,
                call_timeout_s=options.call_timeout_s,
                on_slow=self._on_slow,
                on_hang=self._on_hang,
            )

    def close(self, deadline_s: float) -> None:
        """Ends every interpreter, its process and the zygote; idempotent."""
        with self._lock:
            self._closed = True
            in_process = self._in_process
        if in_process is not None:
            in_process.close(deadline_s)
        if self._processes is not None:
            self._processes.close(deadline_s)


def _import_torch() -> None:
    """Imports torch, and what of ours needs it; without a pause for garbage."""
    is_new = "torch" not in sys.modules
    collects = gc.isenabled()
    if is_new:
        for name, value in UNCOMPILED.items():
            os.environ.setdefault(name, value)
        map_torch_libraries()
        gc.disable()  # importing makes no garbage to collect
    try:
        from tfs.runtime.inline import script_functions
    finally:
        if is_new and collects:
            gc.enable()
    if is_new:
        script_functions.leave_alone()
        gc.freeze()  # must precede any load in this process


def interpreters_options(options: ServerOptions) -> InterpretersOptions:
    """Returns how many interpreters a server has, and what is kept ready for them.

    If the memory of models is limited, nothing is kept ready.

    Raises:
        InvalidArgument: As ``worker_options``.

    """
    num = options.num_interpreters or num_processors()
    num_private = num
    if not options.num_interpreters:
        num_private = min(num, dlmopen_probe.most_interpreters())
    return InterpretersOptions(
        num,
        options.interpreter_call_timeout_s,
        worker=worker_options(options),
        num_private_pythons=num_private,
        keeps_spare=options.spare_worker and not options.model_memory_limit_bytes,
    )


def worker_options(options: ServerOptions) -> WorkerOptions:
    """Returns how process interpreters run.

    Raises:
        InvalidArgument: Their user is unknown, or the server may not switch to it.

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
