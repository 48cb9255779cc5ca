"""One model server within a process: puts all the parts together, and opens the ports.

Usable as a library; ``tfs.server.process`` adds signals and the config file.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from tfs.codec.decode_options import DecodeOptions
from tfs.core.call import ListenerOptions, MethodTable
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.executor import ThreadExecutor
from tfs.core.loop.loop_watchdog import LoopWatchdog
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.handlers.admin_access import AdminAccess
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.health import HealthHandler
from tfs.handlers.limits.answered_request import RequestLog
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.methods import Inference, method_table
from tfs.handlers.oip.service import OipService
from tfs.handlers.reflection import OpenStreams
from tfs.proto.tfs.v1.admin_service_pb2 import GetPageResponse, ListenerReport
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.server.admin.core_admin import CoreAdmin
from tfs.server.admin.model_repository import ModelRepository
from tfs.server.admin.server_reports import ProcessFacts, ServerReports
from tfs.server.config.running_config import Origin
from tfs.server.config.server_config import ServerConfig
from tfs.server.fleet_source import FleetSource, keep_told, read_told
from tfs.server.loading import Loading
from tfs.server.model_settings import ModelSettings
from tfs.server.options import ServerOptions, SourceKind
from tfs.server.page.handler import PageHandler
from tfs.server.page.views import KEPT_EVENTS, Events, Views
from tfs.server.ports.http_surface import HttpSurface
from tfs.server.ports.listeners import listeners, tls_problems
from tfs.server.ports.transports import make_transport
from tfs.server.request_log.request_logs import LogWriter, LogWriterOptions, RequestLogs
from tfs.server.system.spare_memory import SpareMemory
from tfs.server.system.versions import distribution_version
from tfs.server.tracing.otel_tracing import OtelTracing

log = logging.getLogger(__name__)

_KEY_BYTES: Final = 24


class ModelServer:
    """Serves a config until closed.

    Thread-safe, except ``start``, ``drain`` and ``close``, which block and are for one
    thread.

    Args:
        options: The server's options, as set by its flags.
        clock: The clock that everything in it goes by.
        zygote: A zygote process that runs already; None starts one when it is needed.

    """

    def __init__(
        self,
        options: ServerOptions,
        clock: Clock | None = None,
        *,
        zygote: ZygoteProcess | None = None,
    ) -> None:
        self._options = options
        self._clock = clock or MonotonicClock()
        self.stats = Stats()
        self._loop = ServingLoop(self._clock)
        self._watchdog = LoopWatchdog(self._loop)
        self._decoders = ThreadExecutor(
            options.num_decode_threads, "decode", self._clock
        )
        self._gate = RequestGate(
            options.max_in_flight,
            options.max_in_flight_per_model,
            self.stats,
            self._clock,
        )
        self._loading = Loading(
            options,
            self._loop,
            self._clock,
            self.stats,
            zygote,
            self._decoders,
            lambda: self._gate.in_flight.num_taken > 0,
            self._forget_version,
            self._set_logs,
        )
        self.bus, self.core = self._loading.bus, self._loading.core
        self._events: Events = deque(maxlen=KEPT_EVENTS)
        self._noting = self.bus.subscribe(self._events.append)
        self._fleet: FleetSource | None = None
        if options.source is SourceKind.RPC:
            keep = partial(keep_told, options.state_dir)
            self._fleet = FleetSource(read_told(options.state_dir), keep)
        self._health = HealthHandler(self)
        self._streams = OpenStreams()
        self.core.on_change(self._health.refresh)
        self._log_writer = LogWriter(
            self._clock,
            self.stats,
            LogWriterOptions(
                max_files=options.request_log_max_files,
                max_total_bytes=options.request_log_max_bytes,
            ),
        )
        index = options.request_log_task_index
        self._request_logs = RequestLogs(
            self._log_writer,
            dc=options.request_log_dc,
            task_index=None if index < 0 else index,
        )
        self.core.on_change(self._follow_config)
        self._spare_memory = SpareMemory(self._loop, self._decoders)
        budget = MemoryBudget(
            options.max_receive_bytes,
            self._loop.post,
            self._spare_memory.note_scarcity,
        )
        self._transport = make_transport(
            options,
            self._loop,
            self.stats,
            self._spare_memory.note_large_message,
            budget,
        )
        self._tracing = OtelTracing(os.environ, self._clock)
        self._http = HttpSurface(options, self._loop, budget, self._decoders)
        self._models: Mapping[str, ModelSettings] = {}
        self._logs: Mapping[str, tuple[RequestLog, ...]] = {}
        self._addresses: Sequence[str] = ()
        self._key = secrets.token_urlsafe(_KEY_BYTES)
        self._draining = False
        self._drain_wait = threading.Condition()  # only waited on, never notified
        self._closed = False

    def start(self, config: ServerConfig) -> Sequence[str]:
        """Opens the ports and begins to load; returns the addresses.

        Raises:
            Unavailable: A port is taken; nothing is open and nothing loads.
            InvalidArgument: The config names a platform that is not there, or the
                certificates, or the file for monitoring, cannot be used.

        """
        # Before all else, because closing what fails below needs the loop.
        self._loop.start()
        self._watchdog.start()
        self._tracing.start()
        self.core.config.check(config)
        doors = listeners(self._options)
        access = AdminAccess(self._options.admin_from, self._key)
        reports = ServerReports(self.core, self._clock, self._facts(doors))
        admin = CoreAdmin(
            self.core,
            self._clock,
            reports,
            self._fleet,
            self._page,
            self._loading.probe,
        )
        figures = self._gate.figures
        page = PageHandler(
            Views(self.core, reports, figures, self._events, self._clock),
            admin,
            access,
            self._decoders.submit,
            is_tls=self._options.rest_api_tls,
        )
        methods = self._methods(admin, access)
        addresses = self._addresses = self._transport.start(doors, methods)
        self._http.start(
            methods,
            self.stats,
            self.core,
            self,
            page,
            self._clock.wall_s(),
            self._gate.totals,
        )
        path = self._options.model_config_file
        origin = Origin.CONFIG_FILE if path else Origin.COMMAND_LINE
        if self._fleet is not None:
            origin = Origin.FLEET
        if self._options.model_repository:
            origin, path = Origin.MODEL_REPOSITORY, self._options.model_repository
        self._loading.start(config, origin, path)
        return [*addresses, *self._http.urls]

    def _methods(self, admin: CoreAdmin, access: AdminAccess) -> MethodTable:
        return method_table(
            Inference(
                self.core.served,
                self._gate,
                DecodePool(
                    self._decoders,
                    self._loop.post,
                    self._options.max_queued_decodes,
                    self.stats,
                    self._spare_memory.note_large_message,
                ),
                as_tensor_content=self._options.serialize_as_tensor_content,
                check_method=self._options.check_signature_method,
                decoding=DecodeOptions.of_fill(self._options.max_filled_bytes),
            ),
            self.core,
            self.core,
            self._health,
            admin=admin,
            access=access,
            streams=self._streams,
            oip=OipService(
                self.core.served,
                self.core,
                self,
                ModelRepository(
                    self.core,
                    self.stats,
                    self._clock,
                    self._loop.post,
                    is_in_fleet=self._fleet is not None,
                ),
                access,
                distribution_version("tfs"),
            ),
        )

    def call_when_claimed(self, fn: Callable[[], None]) -> None:
        """Has ``fn`` called, on any thread, when a fleet claims it; in place of another."""
        if self._fleet is not None:
            self._fleet.on_claimed = fn

    def prepare(self) -> None:
        """Imports what models need in this process; blocks for a second the first time.

        Call it after ``start``, while versions are measured in other processes. A
        version that is to run in this process waits for it.
        """
        self._loading.prepare()

    def leave(self) -> None:
        """Is not ready from here on, and takes requests still; returns at once."""
        self._draining = True
        self._loop.post(self._health.refresh)

    def drain(self, deadline_s: float) -> bool:
        """Leaves, waits, refuses new calls, waits for those taken.

        Returns whether all were finished by the (monotonic) deadline.
        """
        self.leave()
        # Balancers go on sending until they have heard of it.
        with self._drain_wait:
            until_s = self._clock.now() + self._options.drain_wait_s
            while self._clock.now() < until_s:
                self._clock.wait(self._drain_wait, until_s)
        self._loop.post(self._health.close)
        self._loop.post(self._streams.close)
        # Else a reload would delay the end for as long as it waits.
        self.core.stop_waiting()
        self._http.drain(self._clock.now())  # begins; a long RPC must not keep it open
        answered = self._transport.drain(deadline_s)
        return self._http.drain(deadline_s) and answered

    def close(self, deadline_s: float) -> None:
        """Closes the ports, unloads everything, ends every thread; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loading.yield_no_more()
        self._transport.close()
        self._http.close()
        self._decoders.close(deadline_s)
        self._loading.close(deadline_s)
        self._noting.close()
        self._watchdog.close()
        self._loop.close(deadline_s)
        self._request_logs.close()
        self._log_writer.close()
        self._tracing.close()

    def _follow_config(self) -> None:
        """Lets gates and request logs follow the running config. On the loop."""
        models = self.core.config.models
        if models is self._models:
            return
        self._models = models
        self._gate.retain(models)
        self._logs = self._request_logs.update(
            {
                name: (settings.logging,)
                for name, settings in models.items()
                if settings.logging is not None
            }
        )
        self._set_logs(models)

    def _set_logs(self, names: Iterable[str]) -> None:
        """Has these models' requests logged, and sampled if they are wanted. On the loop."""
        sampled, logs = self._loading.live_skew, self._logs
        self._gate.set_logs(
            {
                name: (
                    *logs.get(name, ()),
                    *((sampled.log,) if sampled.wants(name) else ()),
                )
                for name in names
            }
        )

    def _forget_version(self, ended: ServableId) -> None:
        self._loop.post(lambda: self._gate.forget_version(ended.name, ended.version))

    def _page(self) -> GetPageResponse:
        return GetPageResponse(
            addresses=self._http.addresses,
            tls=self._options.rest_api_tls,
            key=self._key,
        )

    def _facts(self, doors: Sequence[ListenerOptions]) -> ProcessFacts:
        def reports() -> Sequence[ListenerReport]:
            named = zip(self._addresses, doors, strict=False)
            return [
                *(
                    ListenerReport(
                        address=address,
                        services=sorted(door.services or ()),
                        tls=door.tls is not None,
                    )
                    for address, door in named
                ),
                *(
                    ListenerReport(address=url, tls=url.startswith("https:"))
                    for url in self._http.urls
                ),
            ]

        return ProcessFacts(
            started_s=self._clock.wall_s(),
            tfs_version=distribution_version("tfs"),
            torch_version=distribution_version("torch"),
            listeners=reports,
            is_draining=lambda: self._draining,
            stats=self.stats,
            memory=self._loading.memory,
            problems=lambda: [*self._log_writer.problems, *tls_problems(doors)],
            fill_version=self._loading.fill_version,
            figures=self._gate.figures,
            fleet=lambda: self._fleet.claim if self._fleet else None,
        )

    # -- health ------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return not self._draining and self.core.readiness.is_ready()

    def is_model_available(self, name: str) -> bool | None:
        """Whether the model can answer; None if it is not configured."""
        available = self.core.readiness.is_model_available(name)
        return available and not self._draining
