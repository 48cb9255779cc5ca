"""A fleet's process: a router, a synchronizer, the Controller API, or several of them.

Any number of these processes may follow one store. Each routes by what it sees itself; one
of them, which has the lease, tells jobs what to serve. Two that see different jobs would
otherwise move models back and forth.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tfs.core.call import ListenerOptions, MethodKind, RpcMethod
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import InvalidArgument
from tfs.core.executor import ThreadExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http1.shared_state import HttpOptions
from tfs.frontends.http1.transport import HttpTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.handlers.health import HealthHandler
from tfs.handlers.reflection import OpenStreams
from tfs.handlers.service_names import HEALTH
from tfs.hosted.controller import Controller
from tfs.hosted.controller_service import (
    MAX_BODY_BYTES,
    ControllerService,
)
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.identities import ControlOptions
from tfs.hosted.jobs.job_runtime import RunningJobs
from tfs.hosted.routing.admin_requests import AdminRequests
from tfs.hosted.routing.envoy_config import EnvoyOptions
from tfs.hosted.routing.fleet_router import FleetRouter, Routes
from tfs.hosted.routing.job_connection import TlsFiles
from tfs.hosted.routing.job_requests import JobRequests
from tfs.hosted.routing.python_router import PythonRouter
from tfs.hosted.snapshot import Snapshot
from tfs.hosted.synchronizer import Synchronizer, SynchronizerOptions

_NUM_THREADS: Final = 16
# Requests over HTTP may take as long as commands wait.
_HTTP: Final = HttpOptions(max_body_bytes=MAX_BODY_BYTES, request_timeout_s=60.0)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a process of a fleet does. Immutable."""

    control: ControlOptions
    # Where it answers requests itself; None: they go elsewhere.
    listeners: Sequence[ListenerOptions] | None = None
    synchronizing: SynchronizerOptions = field(default_factory=SynchronizerOptions)
    # Where versions of new models are uploaded to, by partition.
    model_stores: Mapping[str, str] = field(default_factory=dict)
    # Where clients of xds:/// ask for servers; None: nowhere.
    xds: ListenerOptions | None = None
    tls: TlsFiles | None = None  # to servers; None: plain text
    hedge_budget: float = 0.05  # late requests that are sent twice, as a share of all
    # Has Envoy answer what no listener of ours does, and leave to us what it cannot route.
    envoy: EnvoyOptions | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.hedge_budget <= 1:  # also refuses NaN
            raise InvalidArgument(
                f"hedge_budget must be from 0 to 1: {self.hedge_budget}"
            )


class HostedService:
    """Serves a fleet's models until closed. Thread-safe but for ``start`` to ``close``.

    Args:
        state: The fleet.
        options: What it does.
        clock: Times everything.
        reader: Reads requests of the Controller API; None does not offer it.
        jobs: Those of the fleet; None: other processes run them. Their owner ends them.

    """

    def __init__(
        self,
        state: FleetState,
        options: ServiceOptions,
        clock: Clock | None = None,
        reader: EditReader | None = None,
        jobs: RunningJobs | None = None,
    ) -> None:
        self._options = options
        self._clock = clock or MonotonicClock()
        self._loop = ServingLoop(self._clock)
        self._servers = AdminRequests(self._loop, options.tls)
        self._callers = ThreadExecutor(_NUM_THREADS, "ask-job", self._clock)
        # Commands block for as long as versions are tried, and hold up no look at servers.
        self._acting = ThreadExecutor(_NUM_THREADS, "act", self._clock)
        self._synchronizer = Synchronizer(
            state,
            self._servers,
            self._take_routes,
            self._clock,
            self._callers,
            options.synchronizing,
            jobs,
            f"{socket.gethostname()}/{os.getpid()}",
            self._take_state,
        )
        self._routes: Routes = {}
        self._routers = self._made_routers()
        self._health = HealthHandler(self)
        self._streams = OpenStreams()
        self._controller: Controller | None = None
        self._commands: ControllerService | None = None
        if reader is not None:
            self._controller = Controller(
                state,
                replace(reader, identities=options.control.identities),
                self._clock,
                self._synchronizer.nudge,
                options.model_stores,
                self._servers.probe,
            )
            self._commands = ControllerService(
                self._controller,
                self._acting,
                self._streams,
                self._loop.post,
                options.control,
            )
        self._fleet = Fleet()
        # A message is as long as a server takes it; the transport's memory bounds it.
        limits = ConnectionLimits(max_message_bytes=(1 << 31) - 1)
        self._transport = ExpressTransport(
            self._loop, ExpressOptions(limits=limits), stats=Stats()
        )
        self._http: HttpTransport | None = None
        self._is_draining = False

    def start(self) -> Sequence[str]:
        """Opens the doors; returns the addresses, or raises Unavailable if one is taken."""
        self._loop.start()
        methods = [
            RpcMethod(f"/{HEALTH}/Check", self._health.check),
            RpcMethod(f"/{HEALTH}/Watch", self._health.watch, MethodKind.SERVER_STREAM),
        ]
        listeners = list(self._options.control.listeners)
        for each in self._routers:
            methods += each.methods()
            listeners += each.listeners
        if self._commands is not None:
            methods += self._commands.methods()
        addresses = self._transport.start(
            listeners, {each.path: each for each in methods}
        )
        if self._commands is not None and self._options.control.http_listeners:
            self._http = HttpTransport(
                self._loop, self._transport.budget, _HTTP, self._callers
            )
            doors = self._options.control.http_listeners
            more = self._http.start(doors, self._commands.answer_http)
            addresses = [*addresses, *more]
        self._synchronizer.start()
        return addresses

    def drain(self, deadline_s: float) -> bool:
        """Refuses new calls and waits for accepted ones; returns whether all were answered."""
        self._is_draining = True
        self._loop.post(self._health.refresh)
        self._loop.post(self._health.close)
        self._loop.post(self._streams.close)
        routed = [each.drain(deadline_s) for each in self._routers]
        told = self._http is None or self._http.drain(deadline_s)
        return self._transport.drain(deadline_s) and told and all(routed)

    def stop_keeping(self) -> None:
        """Lets the jobs of the fleet be, because whoever runs them ends them now."""
        self._synchronizer.close()

    def close(self, deadline_s: float) -> None:
        """Ends everything; jobs go on serving."""
        self.stop_keeping()
        for each in self._routers:
            each.close()
        if self._http is not None:
            self._http.close()
        self._transport.close()
        self._servers.close()
        self._acting.close(deadline_s)
        self._callers.close(deadline_s)
        self._loop.close(deadline_s)

    def is_ready(self) -> bool:
        """Whether some model answers, or would, or the fleet has no models."""
        answers = not self._routes or any(map(self._answers, self._routes))
        return answers and not self._is_draining

    def is_model_available(self, name: str) -> bool | None:
        """Whether a model answers; None if the fleet has none with that name."""
        if name not in self._routes:
            return None
        return self._answers(name) and not self._is_draining

    def _answers(self, name: str) -> bool:
        return bool(self._routes.get(name)) or self._may_rest(name)

    def _made_routers(self) -> Sequence[FleetRouter]:
        options = self._options
        if options.listeners is None:
            return []
        jobs, budget = JobRequests(self._loop, options.tls), options.hedge_budget
        own = PythonRouter(options.listeners, self._loop, jobs, budget, self._missed)
        routers: list[FleetRouter] = [own]
        if options.envoy is not None or options.xds is not None:
            from tfs.hosted.routing.ads import AdsServer
            from tfs.hosted.routing.envoy_router import EnvoyRouter
            from tfs.hosted.routing.xds_clients import XdsRouter

            ads = AdsServer()
            if options.envoy is not None:
                routers.append(EnvoyRouter(options.envoy, self._loop, ads, options.tls))
            if options.xds is not None:
                routers.append(XdsRouter(options.xds, self._loop, ads))
        return routers

    def _may_rest(self, name: str) -> bool:
        """Whether a model may have no server while nobody asks for it."""
        model = self._fleet.models.get(name)
        return model is not None and not model.min_replicas

    def _missed(self, name: str) -> bool:
        """Gives a model a server that may have none; see :class:`PythonRouter`."""
        may_rest = self._may_rest(name)
        if may_rest:
            self._synchronizer.wake(name)
        return may_rest

    def _take_state(self, now: Snapshot) -> None:
        self._fleet = now.fleet
        if self._controller is not None:
            self._controller.take(now)

    def _take_routes(self, routes: Routes) -> None:
        def take() -> None:
            self._routes = routes
            for each in self._routers:
                each.set_routes(routes)
            self._health.refresh()

        self._loop.post(take)
