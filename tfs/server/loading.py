"""The control path of a server: what finds, copies, measures, loads and unloads versions."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection
from typing import Final

from managers.aspired_versions_manager import (
    AspiredVersionsManager,
    AspiredVersionsManagerOptions,
)
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor
from managers.versions.version import RetryOptions
from sources.remote.cache import VersionCache, VersionCacheOptions, remove_left_caches
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import FileSystemSourceOptions
from sources.storage.file_system import StorageThreads
from tfs.core.clock import Clock
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.executor import ThreadExecutor
from tfs.core.loop.pacing import RecentTraffic, follow
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.core.version.version_layout import LAYOUTS
from tfs.handlers.warmup_replay import WarmupOptions, warm_up
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import ServerConfig
from tfs.server.core import ServerCore
from tfs.server.input_skew import LiveSkew
from tfs.server.model_settings import DETECT
from tfs.server.model_sources import SourceParts
from tfs.server.options import ServerOptions
from tfs.server.placing.model_placer import ModelPlacer, loader_maker
from tfs.server.placing.version_probe import VersionProbe
from tfs.server.validation import Validation

log = logging.getLogger(__name__)

_NUM_LOAD_THREADS: Final = 4
_NUM_UNLOAD_THREADS: Final = 4


class Loading:
    """Puts the parts of the control path together, starts and ends them.

    One thread starts and closes it; what the attributes promise holds for them.

    Args:
        options: The server's options.
        loop: The serving loop; runs until after ``close``.
        clock: The clock that everything goes by.
        stats: What is counted.
        zygote: A zygote process that runs already; None starts one when it is needed.
        decoders: Runs what takes long and is not loading.
        has_requests: Whether requests are being handled now; called from any thread.
        on_ended: Takes each version that is gone; called on any thread.
        on_sampling: Called on the loop with the models of which ``live_skew`` wants
            requests, or wants no more.

    Attributes:
        bus: Carries the states of versions.
        core: What follows a config.
        memory: How much memory models may use together; None if there is no limit.
        live_skew: Compares requests with what versions were made for.
        probe: Tries versions out that are not served.

    """

    def __init__(
        self,
        options: ServerOptions,
        loop: ServingLoop,
        clock: Clock,
        stats: Stats,
        zygote: ZygoteProcess | None,
        decoders: ThreadExecutor,
        has_requests: Callable[[], bool],
        on_ended: Callable[[ServableId], None],
        on_sampling: Callable[[Collection[str]], None],
    ) -> None:
        self._on_ended = on_ended
        self._warmup_options = _warmup_options(options)
        self._stats = stats
        self._clock = clock
        self._num_warmed: dict[ServableId, int] = {}
        limit_bytes = options.model_memory_limit_bytes
        self.memory = ResourceTracker.ram(limit_bytes) if limit_bytes else None
        self.bus: EventBus[ServableState] = EventBus(clock)
        monitor = ServableStateMonitor(self.bus, clock=clock)
        manager = _manager(options, self.bus, clock, self.memory)
        self._storage = StorageThreads(clock)
        self._remote_copies = RemoteCopies(options)
        traffic = RecentTraffic(
            has_requests,
            # The loop's own rounds say nothing to the loop.
            lambda: loop.busy_since_s is not None and not loop.is_loop_thread,
            lambda: manager.disturbs_nobody,
            lambda: self.core.residency.is_awaited,
            clock.now,
        )
        self._placer = ModelPlacer(
            options,
            loop,
            manager,
            self.bus,
            stats,
            zygote,
            traffic.look,
            decoders,
            self._warm_up,
        )
        make_loader, platforms = loader_maker(
            options,
            self._placer.context,
            self._remote_copies.cache,
            lambda name: self.core.config.runtime_settings(name),
        )
        self.core = ServerCore(
            manager=manager,
            sources=SourceParts(
                _source_options(options, platforms),
                make_loader,
                platforms,
                storage=self._storage,
            ),
            monitor=monitor,
            loop=loop,
            clock=clock,
            stats=stats,
            state_dir=options.state_dir,
            memory=self.memory,
        )
        settings_of = self.core.config.validation_settings
        # Gives way to requests, so it is no thread that answers some.
        self._comparing = ThreadExecutor(1, "skew", clock)
        self.live_skew = LiveSkew(
            settings_of, self._comparing, loop, clock, stats, on_sampling
        )
        self._validation = Validation(
            settings_of, self.core.served, self.live_skew.values, clock, stats
        )
        self.probe = VersionProbe(
            options, self._placer, self._remote_copies.cache, self.memory, clock
        )
        if options.model_repository:
            self.core.watch_repository(options.model_repository)
        self._endings = self.bus.subscribe(self._note_ending)
        self._let_load = follow(traffic.look)

    def start(self, config: ServerConfig, origin: Origin, path: str) -> None:
        """Begins to load what a config asks for; returns at once.

        Raises:
            InvalidArgument: A platform is not there.

        """
        self._storage.submit("left copies", self._remote_copies.remove_left, math.inf)
        self.core.start(config, origin, path)

    def prepare(self) -> None:
        """Imports what models need in this process; blocks for a second the first time."""
        self._placer.prepare()

    def yield_no_more(self) -> None:
        """Lets loads and unloads go on at full speed, whatever is requested."""
        self._let_load()

    def fill_version(
        self, servable_id: ServableId, model: pb.ModelReport, report: pb.VersionReport
    ) -> None:
        """Adds what warm-up, validation and requests showed of a version to its report."""
        num_warmed = self._num_warmed.get(servable_id)
        if num_warmed is not None:
            report.load.num_warmup_requests = num_warmed
        if passed := self._validation.report(servable_id):
            report.notes.append(passed)
        report.skew, over = self.live_skew.skew(servable_id) or ("", "")
        if over:
            model.notes.append(f"version {servable_id.version}: live {over}")

    def close(self, deadline_s: float) -> None:
        """Unloads everything and ends every thread and process; idempotent."""
        if not self.core.close(deadline_s):
            log.warning("event=unload_incomplete at=deadline")
        self.probe.close(deadline_s)
        self._comparing.close(deadline_s)
        self._endings.close()
        self._placer.close(deadline_s)
        # A listing may hang with its store; its outcome is not needed any more.
        self._storage.close()
        self._remote_copies.close()

    def _warm_up(self, servable: Servable, path: str) -> None:
        """Warms a loaded version up and compares it with the one that serves. Blocks."""
        num = warm_up(servable, path, self._warmup_options, self._stats, self._clock)
        self._num_warmed[servable.id] = num
        self._validation.check(servable, path)
        self.live_skew.note(servable, path)

    def _note_ending(self, event: EventAndTime[ServableState]) -> None:
        """Drops what is noted of versions that are gone."""
        if event.event.manager_state is ManagerState.END:
            ended = event.event.id
            self._num_warmed.pop(ended, None)
            self._validation.forget(ended)
            self.live_skew.forget(ended)
            self._on_ended(ended)


def _manager(
    options: ServerOptions,
    bus: EventBus[ServableState],
    clock: Clock,
    memory: ResourceTracker | None,
) -> AspiredVersionsManager:
    return AspiredVersionsManager(
        AspiredVersionsManagerOptions(
            retry=RetryOptions(
                max_num_retries=options.max_num_load_retries,
                interval_s=options.load_retry_interval_s,
            )
        ),
        event_bus=bus,
        clock=clock,
        load_executor=ThreadExecutor(
            options.num_load_threads or _NUM_LOAD_THREADS, "load", clock
        ),
        unload_executor=ThreadExecutor(
            options.num_unload_threads or _NUM_UNLOAD_THREADS, "unload", clock
        ),
        resource_tracker=memory,
    )


def _source_options(
    options: ServerOptions, platforms: Collection[str]
) -> FileSystemSourceOptions:
    """Returns how base paths are watched; the servables come with the config."""
    return FileSystemSourceOptions(
        poll_wait_s=options.file_system_poll_wait_s,
        unload_when_empty=options.unload_when_empty,
        has_other_platforms=bool({*platforms} - {DETECT, *LAYOUTS}),
    )


def _warmup_options(options: ServerOptions) -> WarmupOptions:
    # 0 iterations mean one, as in TensorFlow Serving.
    num_iterations = max(1, options.num_warmup_iterations)
    return WarmupOptions(options.enable_model_warmup, num_iterations)


_PREFIX: Final = "tfs-cache-"


class RemoteCopies:
    """Owns the copies, unless a directory is configured for them. Thread-safe.

    Attributes:
        cache: Makes and holds the copies.

    """

    def __init__(self, options: ServerOptions) -> None:
        self._own = ""
        root = options.remote_cache_dir
        if not root:
            # A name that nobody can guess. The cache makes the directory with the first
            # URL, so that a server without URLs leaves nothing behind, however it ends.
            name = f"{_PREFIX}{uuid.uuid4().hex}"
            root = self._own = os.path.join(tempfile.gettempdir(), name)
        self.cache = VersionCache(
            VersionCacheOptions(root, options.remote_cache_max_bytes or None),
            RemoteFileSystem(),
        )

    def remove_left(self) -> None:
        """Removes the copies that servers left behind which were killed. Blocks."""
        remove_left_caches(tempfile.gettempdir(), _PREFIX, time.time())

    def close(self) -> None:
        """Gives up the directory, and removes it if it was not configured. Idempotent."""
        self.cache.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
