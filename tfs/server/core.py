"""Wires source, router, adapters and manager together, and applies configs to them.

Validate first, commit last: a config that is refused changes nothing; one that is
accepted is in force at once, and whoever asked for it is told when its new models
answer or why they will not. A newer config supersedes one that is still waited for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from managers.aspired_versions_manager import AspiredVersionsManager
from managers.state_monitor import ServableStateMonitor
from managers.version_policy.availability_preserving import availability_preserving
from managers.version_policy.resource_preserving import resource_preserving
from sources.adapter import Convert, UnarySourceAdapter
from sources.file_system import FileSystemSource, FileSystemSourceOptions
from sources.router import DynamicSourceRouter
from sources.scan import ServableToMonitor
from sources.storage_path import StoragePath
from tfs.core.clock import Clock
from tfs.core.errors import Aborted, InvalidArgument, ServingError
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.loader import Loader
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.server.config import ServerConfig, check_change, read_config
from tfs.server.config_wait import error_of, failure_of
from tfs.server.served_models import ServedModels

log = logging.getLogger(__name__)

OnApplied = Callable[[ServingError | None], None]


@dataclass(frozen=True, slots=True)
class _Waiter:
    """Somebody who wants to know when a config has taken effect."""

    models: frozenset[str]
    on_done: OnApplied


class ServerCore:
    """Everything between a config and the serving map. Thread-safe.

    ``apply`` and the readers never block on a load; ``close`` blocks until every
    version is unloaded or the deadline passes.

    Args:
        manager: Loads and unloads; not started yet.
        source_options: How base paths are watched; the servables come with configs.
        clock: What the source goes by.
        platforms: What makes a loader, by platform name; "" tells by content.
        bus: Carries the states of all versions.
        monitor: Follows the bus.
        stats: Read by ``counters``.
        post: Runs a function on the serving loop, soon.

    """

    def __init__(
        self,
        *,
        manager: AspiredVersionsManager,
        source_options: FileSystemSourceOptions,
        clock: Clock,
        platforms: Mapping[str, Convert[StoragePath, Loader[object]]],
        bus: EventBus[ServableState],
        monitor: ServableStateMonitor,
        stats: Stats,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._manager = manager
        self._source = FileSystemSource(
            source_options, clock=clock, on_looked=self._post_recheck
        )
        self._monitor = monitor
        self._stats = stats
        # The default port comes last, as the router wants it.
        self._platforms = tuple(sorted(platforms, key=lambda name: not name))
        self._router: DynamicSourceRouter[StoragePath] = DynamicSourceRouter(
            len(self._platforms), {}
        )
        self._adapters = [
            UnarySourceAdapter(platforms[name]) for name in self._platforms
        ]
        self._served = ServedModels(manager.serving_map, monitor)
        # Orders configs: validating and committing one is a single step. Guards
        # _config. Rank 1 (ARCHITECTURE.md): the source's and the manager's locks
        # are taken under it; no load, callback or RPC happens under it.
        self._config_lock = threading.Lock()
        self._config: ServerConfig | None = None
        # Guards _waiter; leaf. Its functions are called outside it.
        self._waiter_lock = threading.Lock()
        self._waiter: _Waiter | None = None
        self._post = post
        self._is_recheck_posted = False
        self._on_change: list[Callable[[], None]] = []
        self._wire()
        self._subscription = bus.subscribe(self._note_state)

    def _wire(self) -> None:
        self._source.set_aspired_versions_callback(
            self._router.aspired_versions_callback()
        )
        for port, adapter in zip(
            self._router.output_ports, self._adapters, strict=True
        ):
            port.set_aspired_versions_callback(adapter.aspired_versions_callback())
            adapter.set_aspired_versions_callback(
                self._manager.aspired_versions_callback()
            )

    @property
    def served(self) -> ServedModels:
        """The look-up for handlers."""
        return self._served

    def check(self, config: ServerConfig) -> None:
        """Checks that the server has what the config asks for, and may go there.

        Raises:
            InvalidArgument: A platform is not there.
            FailedPrecondition: A model's platform would change.

        """
        for name, settings in config.models.items():
            if settings.platform not in self._platforms:
                raise InvalidArgument(
                    f"Model {name} requests unsupported platform {settings.platform}; "
                    f"known: {', '.join(filter(None, self._platforms))}"
                )
        if self._config is not None:
            check_change(self._config, config)

    def start(self, config: ServerConfig) -> None:
        """Applies the first config and starts to load. Returns at once."""
        self.apply(config, "start", lambda error: _log_applied("start", error))
        self._manager.start()
        self._source.start()

    def close(self, deadline_s: float) -> bool:
        """Stops looking for versions, unloads all; returns whether it could."""
        self._source.close()
        for adapter in self._adapters:
            adapter.close()
        done = self._manager.close(deadline_s)
        self._subscription.close()
        self._tell_waiter(Aborted("the server is shutting down"))
        return done

    def on_change(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` on the serving loop after states or the config changed."""
        self._on_change.append(fn)

    # -- configs -------------------------------------------------------------------

    def apply_config(
        self,
        message: model_server_config_pb2.ModelServerConfig,
        reason: str,
        deadline_s: float | None,
        on_done: OnApplied,
    ) -> None:
        """Validates and applies a message; see ``handlers.reload_config``."""
        del deadline_s  # the caller's call ends at its deadline; the config stays
        try:
            config = read_config(message)
        except ServingError as error:
            on_done(error)
            return
        self.apply(config, reason, on_done)

    def apply(self, config: ServerConfig, reason: str, on_done: OnApplied) -> None:
        """Commits a validated config, then waits for its new models.

        ``on_done`` runs once, on any thread: None when every model that was not
        served before has an available version; an error if the config was refused
        (nothing changed) or a new model failed (the config stays).
        """
        try:
            with self._config_lock:
                new = self._commit_locked(config)
        except ServingError as error:
            on_done(error)
            return
        log.info(
            "event=config_applied reason=%r models=%d new=%s",
            reason,
            len(config.models),
            ",".join(sorted(new)) or "none",
        )
        with self._waiter_lock:
            superseded, self._waiter = self._waiter, _Waiter(new, on_done)
        if superseded is not None:
            superseded.on_done(Aborted("a newer configuration superseded this one"))
        self._post_recheck()

    def _commit_locked(self, config: ServerConfig) -> frozenset[str]:
        """Checks ``config`` against the running one and makes it the running one."""
        self.check(config)
        before = self._config
        servables = [
            ServableToMonitor(
                name,
                settings.base_path,
                settings.policy,
                settings.pinned_versions,
                settings.platform,
            )
            for name, settings in config.models.items()
        ]
        for name, settings in config.models.items():
            policy = (
                resource_preserving
                if settings.keeps_resources
                else availability_preserving
            )
            self._manager.set_transition_policy(name, policy)
        # Routes of models that leave are kept: their empty set must find its port.
        routes = {
            name: self._platforms.index(settings.platform)
            for name, settings in config.models.items()
            if settings.platform
        }
        self._router.update_routes({**self._router.routes, **routes})
        self._config = config
        self._served.apply(config)
        self._source.update_config(servables)
        return frozenset(config.models.keys() - (before.models if before else {}))

    @property
    def model_names(self) -> frozenset[str]:
        """The models of the running config."""
        return frozenset(self._names())

    # -- for handlers ----------------------------------------------------------------

    def version_states(self, name: str) -> Sequence[ServableState]:
        """Returns the states of a model's versions, newest version first."""
        return self._monitor.version_states(name)

    def problem(self, name: str) -> str:
        """Returns what is wrong with a model's base path, "" if nothing is."""
        return "; ".join(self._source.problems().get(name, ()))

    def counters(self) -> Mapping[str, float]:
        """Returns every counter, summed over its labels."""
        sums: dict[str, float] = {}
        for name, _, value in self._stats.counters():
            sums[name] = sums.get(name, 0.0) + value
        return sums

    def is_ready(self) -> bool:
        """Whether every configured model has settled and one at least can answer."""
        failures = self._failures(self._names())
        return all(why is not None for why in failures.values()) and any(
            why == "" for why in failures.values()
        )

    def is_model_available(self, name: str) -> bool | None:
        """Whether the model can answer; None if it is not configured."""
        if name not in self._names():
            return None
        return self._failures((name,))[name] == ""

    # -- waiting -----------------------------------------------------------------------

    def recheck(self) -> None:
        """Tells whoever waits for a config if its models have settled. On the loop."""
        self._is_recheck_posted = False
        with self._waiter_lock:
            waiter = self._waiter
        if waiter is not None:
            failures = self._failures(waiter.models)
            if all(why is not None for why in failures.values()):
                settled = {name: why or "" for name, why in failures.items()}
                self._tell_waiter(error_of(settled), waiter)
        for fn in self._on_change:
            fn()

    def _tell_waiter(
        self, error: ServingError | None, expected: _Waiter | None = None
    ) -> None:
        with self._waiter_lock:
            waiter = self._waiter
            if waiter is None or (expected is not None and waiter is not expected):
                return
            self._waiter = None
        waiter.on_done(error)

    def _failures(self, names: Sequence[str] | frozenset[str]) -> dict[str, str | None]:
        problems = self._source.problems()
        return {
            name: failure_of(self._monitor.version_states(name), problems.get(name, ()))
            for name in names
        }

    def _names(self) -> Sequence[str]:
        config = self._config
        return () if config is None else tuple(config.models)

    def _note_state(self, event: EventAndTime[ServableState]) -> None:
        state = event.event
        log.info(
            "event=servable_%s servable=%s reason=%r error=%s",
            state.manager_state.name.lower(),
            state.id.slashed,
            state.reason,
            state.error or "none",
        )
        if state.manager_state in (ManagerState.AVAILABLE, ManagerState.UNLOADING):
            self._served.refresh()
        self._post_recheck()

    def _post_recheck(self) -> None:
        """Asks for one recheck, however many changes a round of the loop brings."""
        if not self._is_recheck_posted:
            self._is_recheck_posted = True
            self._post(self.recheck)


def _log_applied(reason: str, error: ServingError | None) -> None:
    if error is not None:
        log.error("event=config_incomplete reason=%s problem=%s", reason, error)
