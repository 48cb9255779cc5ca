"""Where a server's models run: interpreters, measuring, placing and batching.

This is what a server gives every loader (``tfs.servables.version_loader``), which makes one
servable per version, wherever it runs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from managers.aspired_versions_manager import AspiredVersionsManager
from sources.adapter import Convert
from sources.remote.cache import FetchingLoader, VersionCache
from sources.servable_to_monitor import StoragePath
from sources.storage.file_system import is_remote, local_path
from tfs.core.errors import FailedPrecondition, Quarantined, ServingError
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.loop.pacing import Traffic
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.runtime.dlmopen import dlmopen_probe
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend, PlacementOptions
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.servables.measuring.probe import ProbeOptions
from tfs.servables.measuring.profiler import Profiler, Profiles
from tfs.servables.platform import LeaveFront, LoadContext
from tfs.servables.registry import default_registry
from tfs.server.model_settings import DETECT, RuntimeSettings
from tfs.server.options import ServerOptions
from tfs.server.placing.batcher import Batcher, read_batching_file
from tfs.server.placing.interpreters import Interpreters

log = logging.getLogger(__name__)

_LONGEST_EXAMPLE_S: Final = 300.0  # of a call, if calls may take as long as they like
_LONGEST_MOVE_S: Final = 10.0  # to wait for at the end
_PARALLEL_PER_PROCESS: Final = 2  # while one batch is computed, the next one waits


class ModelPlacer:
    """Makes what loaders need to decide where a version runs. Thread-safe.

    ``close`` blocks.

    Args:
        options: The options of the server.
        loop: The serving loop; it does not run yet.
        manager: Gets the notes and faults of versions.
        bus: Publishes the states of versions.
        stats: Where batch queues publish their numbers.
        zygote: A zygote process that runs already; None starts one when it is needed.
        traffic: The requests for which loads make way.
        executor: Packs and unpacks what would hold up the loop; by default the loop does.
        replay: Warms versions up with the requests that they bring; raises if one fails.

    """

    def __init__(
        self,
        options: ServerOptions,
        loop: ServingLoop,
        manager: AspiredVersionsManager,
        bus: EventBus[ServableState],
        stats: Stats | None = None,
        zygote: ZygoteProcess | None = None,
        traffic: Callable[[], Traffic] = lambda: Traffic.NONE,
        executor: Executor | None = None,
        replay: Callable[[Servable, str], None] = lambda _servable, _path: None,
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._uses_processes = options.loads_in_processes
        self._interpreters = Interpreters(
            loop,
            options,
            on_slow=self._note_slow,
            on_quarantine=self._quarantine,
            is_urgent=lambda: manager.disturbs_nobody,
            traffic=traffic,
            executor=executor,
            zygote=zygote,
        )
        num, num_private = self._interpreters.num, self._interpreters.num_private
        if options.interpreter_backend is Backend.DLMOPEN:
            _require_dlmopen(num_private)
        common = None
        if options.batching_parameters_file:
            common = read_batching_file(options.batching_parameters_file)
        batcher = Batcher(
            loop,
            enabled=options.enable_batching,
            trusts_versions=options.load_probe_budget_s == 0,
            common=common,
            num_parallel={
                Backend.FRONT: 1,
                Backend.INLINE: num,
                Backend.PROCESS: num * _PARALLEL_PER_PROCESS,
                Backend.DLMOPEN: num_private,
            },
            stats=stats,
        )
        self._profiler = Profiler(
            Profiles(options.state_dir or None),
            ProbeOptions(options.load_probe_budget_s),
            clock=loop.clock,
        )
        self._placement = PlacementOptions(options.interpreter_backend)
        self._context = LoadContext(
            self._interpreter,
            intra_op_threads=options.intra_op_threads,
            profiler=self._profiler,
            placement=self._placement,
            batch=batcher.batch,
            warm_up_s=options.load_probe_budget_s,
            call_s=min(options.interpreter_call_timeout_s, _LONGEST_EXAMPLE_S),
            replay=replay,
            note=self._note_place,
            fault=self._show_fault,
            is_covered=manager.is_covered,
            on_front=self._watch_front,
            clock=loop.clock,
        )
        # Loads versions once more elsewhere, for which nobody waits.
        self._moves = ThreadExecutor(1, "move", loop.clock)
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._on_front: dict[
            ServableId, LeaveFront
        ] = {}  # moves a version off the loop
        self._subscription = bus.subscribe(self._take_state)

    def context(self, runtime: RuntimeSettings) -> LoadContext:
        """Returns what a loader needs of a model with this ``runtime`` config.

        That takes precedence over the server's options.
        """
        if runtime == RuntimeSettings():
            return self._context
        placement = replace(
            self._placement,
            isolation_required=runtime.must_isolate,
            device=runtime.device,
        )
        if runtime.backend is not Backend.AUTO:
            placement = replace(placement, backend=runtime.backend)
        num = runtime.num_interpreters

        def interpreter(backend: Backend) -> Interpreter:
            if not num:
                return self._interpreter(backend)
            return self._interpreters.of(backend, num_processes=num)

        return replace(
            self._context,
            interpreter_for=interpreter,
            device=runtime.device,
            intra_op_threads=runtime.intra_op_threads or self._context.intra_op_threads,
            placement=placement,
            gates_examples=runtime.gates_examples,
        )

    def prepare(self) -> None:
        """Imports torch where versions may come to run, or to be measured. Blocks."""
        if self._uses_processes:
            self._interpreters.prepare_processes()
        if self._placement.backend is not Backend.PROCESS:
            self._interpreters.prepare()

    def close(self, deadline_s: float) -> None:
        """Ends moves and every interpreter; call it when all is unloaded."""
        self._moves.close(self._loop.clock.now() + _LONGEST_MOVE_S)
        self._subscription.close()
        self._interpreters.close(deadline_s)

    def _interpreter(self, backend: Backend) -> Interpreter:
        # While many versions wait to be loaded, each gets only one process, because it
        # may well move elsewhere once it was measured. A version that stays gets
        # further processes when its calls have to wait.
        may_grow = self._has_room if self._is_crowded() else None
        return self._interpreters.of(backend, may_grow=may_grow)

    def _is_crowded(self) -> bool:
        return self._manager.num_waiting_loads > 0

    def _has_room(self) -> bool:
        return not self._is_crowded()

    # -- states ---------------------------------------------------------------------------

    def _take_state(self, event: EventAndTime[ServableState]) -> None:
        state = event.event
        if state.manager_state is ManagerState.END:
            with self._lock:
                self._on_front.pop(state.id, None)

    def _watch_front(self, servable_id: ServableId, leave: LeaveFront) -> None:
        """Keeps the function that moves a version off the loop for good."""
        with self._lock:
            self._on_front[servable_id] = leave

    def _note_slow(self, servable_id: ServableId, call_s: float) -> None:
        """Moves a version on to a process that was too slow for the loop."""
        note = f"left the serving loop: a call took {call_s * 1e3:.1f} ms"
        # Nothing may be published while the bus delivers an event.
        self._loop.post(lambda: self._manager.annotate(servable_id, note=note))
        with self._lock:
            leave = self._on_front.pop(servable_id, None)
        if leave is not None:
            with contextlib.suppress(RuntimeError):  # closing
                self._moves.submit(functools.partial(leave, call_s))

    def _note_place(
        self,
        servable_id: ServableId,
        text: str,
        resident_bytes: int | None,
        is_loading: bool,
    ) -> None:
        # At once, so that a version that loads is published with it.
        self._manager.annotate(
            servable_id, note=text, resident_bytes=resident_bytes, is_loading=is_loading
        )

    def _quarantine(self, servable_id: ServableId, reason: str) -> None:
        error = Quarantined(
            f"quarantined: it {reason}; it is tried again after a pause, at once by tfs "
            "retry"
        )
        self._manager.report_servable_error(servable_id, error)

    def _show_fault(
        self, servable_id: ServableId, error: ServingError, is_loading: bool
    ) -> None:
        self._manager.report_servable_error(servable_id, error, is_loading=is_loading)


def loader_maker(
    options: ServerOptions,
    context_of: Callable[[RuntimeSettings], LoadContext],
    copies: VersionCache,
    runtime_of: Callable[[str], RuntimeSettings],
) -> tuple[Convert[StoragePath, Loader[object]], Collection[str]]:
    """Returns what makes a loader of a version, here or behind a URL, and the platforms.

    A version that comes back is loaded with the settings that it was found with, which
    its fingerprint names, whatever the configuration says by then.
    """
    registry = default_registry(allow_model_code=options.allow_model_code)
    settings: dict[str, RuntimeSettings] = {}  # by fingerprint

    def convert(servable_id: ServableId, storage: StoragePath) -> Loader[object]:
        runtime = runtime_of(servable_id.name)
        settings[runtime.fingerprint] = runtime
        context = context_of(settings.get(storage.settings, runtime))

        def make(path: str) -> Loader[object]:
            return registry.loader(path, context, storage.platform)

        if is_remote(storage.path):
            return FetchingLoader(storage, copies, make)
        return make(local_path(storage.path))

    return convert, (DETECT, *registry.names)


def _require_dlmopen(num_interpreters: int) -> None:
    """Tries out the backend before anything listens; blocks for seconds."""
    reason = dlmopen_probe.refusal(num_interpreters)
    if reason:
        raise FailedPrecondition(
            f"--interpreter_backend=dlmopen with {num_interpreters} interpreters does "
            f"not work here: {reason}"
        )
    log.info("event=dlmopen_probed num_interpreters=%d", num_interpreters)
