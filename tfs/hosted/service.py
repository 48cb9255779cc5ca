"""A router and a synchronizer in one process, which clients of a fleet call.

Any number of these processes may follow one store, and each routes by what it sees
itself. Only one of them may tell jobs what to serve. Otherwise two that see different
jobs would move models back and forth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tfs.core.call import ListenerOptions, MethodKind, RpcMethod
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import InvalidArgument
from tfs.core.executor import ThreadExecutor
from tfs.core.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.rpc.express.transport import ExpressTransport
from tfs.handlers.health import HealthHandler
from tfs.handlers.methods import HEALTH, MODEL, PREDICTION
from tfs.hosted.controller import Controller
from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_store import FleetStore
from tfs.hosted.hedging import HedgeOptions
from tfs.hosted.job_channels import JobChannels
from tfs.hosted.load_following import LoadFollowing, LoadOptions
from tfs.hosted.router import Router
from tfs.hosted.synchronizer import Synchronizer, SynchronizerOptions

_FORWARDED: Final = (
    *(
        f"/{PREDICTION}/{name}"
        for name in ("Predict", "Classify", "Regress", "MultiInference")
    ),
    f"/{PREDICTION}/GetModelMetadata",
    f"/{MODEL}/GetModelStatus",
)
_NUM_CALLING: Final = 16


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a fleet's front door behaves. Immutable.

    Attributes:
        listeners: Where it listens.
        hedging: When requests are sent a second time.
        synchronizing: How jobs are watched and told what to serve.
        load: How replicas follow load.
        follow_load_s: Seconds between two adjustments to load.

    """

    listeners: Sequence[ListenerOptions]
    hedging: HedgeOptions = field(default_factory=HedgeOptions)
    synchronizing: SynchronizerOptions = field(default_factory=SynchronizerOptions)
    load: LoadOptions = field(default_factory=LoadOptions)
    follow_load_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.follow_load_s > 0:
            raise InvalidArgument(
                f"follow_load_s must be positive: {self.follow_load_s}"
            )


class HostedService:
    """Serves a fleet's models until closed. Thread-safe but for ``start`` to ``close``.

    Args:
        store: The fleet's wanted state.
        controller: Changes the store when jobs fall silent and when load changes.
        channels: The channels to the jobs; owned by the caller.
        options: Where it listens, and how.
        clock: Times everything.

    """

    def __init__(
        self,
        store: FleetStore,
        controller: Controller,
        channels: JobChannels,
        options: ServiceOptions,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._controller = controller
        self._clock = clock or MonotonicClock()
        self._loop = ServingLoop(self._clock)
        self.router = Router(self._loop, channels, options.hedging)
        self._callers = ThreadExecutor(_NUM_CALLING, "ask-job", self._clock)
        self._synchronizer = Synchronizer(
            store,
            controller,
            channels,
            self._take_routes,
            self._clock,
            self._callers,
            options.synchronizing,
        )
        self._health = HealthHandler(self)
        self._transport = ExpressTransport(self._loop, stats=Stats())
        self._following: dict[str, LoadFollowing] = {}
        self._followed_s = self._clock.now()
        self._draining = False

    def start(self) -> Sequence[str]:
        """Opens the doors; returns the addresses.

        Raises:
            Unavailable: An address is taken.

        """
        self._loop.start()
        methods = [RpcMethod(path, self.router.handle) for path in _FORWARDED]
        methods += [
            RpcMethod(f"/{HEALTH}/Check", self._health.check),
            RpcMethod(f"/{HEALTH}/Watch", self._health.watch, MethodKind.SERVER_STREAM),
        ]
        addresses = self._transport.start(
            self._options.listeners, {each.path: each for each in methods}
        )
        self._synchronizer.start()
        return addresses

    def drain(self, deadline_s: float) -> bool:
        """Refuses new calls and waits for accepted ones; returns whether all were answered."""
        self._draining = True
        self._loop.post(self._health.refresh)
        self._loop.post(self._health.close)
        return self._transport.drain(deadline_s)

    def close(self, deadline_s: float) -> None:
        """Ends everything; jobs go on serving."""
        self._synchronizer.close()
        self._transport.close()
        self._callers.close(deadline_s)
        self._loop.close(deadline_s)

    def is_ready(self) -> bool:
        """Whether some model answers, or the fleet has no models."""
        routes = self.router.routes
        return not self._draining and (not routes or any(routes.values()))

    def is_model_available(self, name: str) -> bool | None:
        """Whether a model answers; None if the fleet has none with that name."""
        addresses = self.router.routes.get(name)
        return None if addresses is None else bool(addresses) and not self._draining

    def _take_routes(self, routes: Mapping[str, tuple[str, ...]]) -> None:
        def take() -> None:
            self.router.set_routes(routes)
            self._health.refresh()

        self._loop.post(take)
        now_s = self._clock.now()
        is_due = now_s - self._followed_s >= self._options.follow_load_s
        if is_due and not self._options.synchronizing.only_routes:
            self._loop.post(self._read_load)

    def _read_load(self) -> None:
        """Reads how busy models were, and adjusts their replicas. On the loop."""
        now_s = self._clock.now()
        period_s, self._followed_s = now_s - self._followed_s, now_s
        if period_s <= 0:
            return
        load = {
            name: traffic.take_busy_s(now_s) / period_s
            for name, traffic in self.router.traffic.items()
        }
        self._callers.submit(lambda: self._follow_load(now_s, load))

    def _follow_load(self, now_s: float, load: Mapping[str, float]) -> None:
        fleet: Fleet = self._controller.fleet()
        wanted = {}
        for name, model in fleet.models.items():
            if model.min_replicas == model.max_replicas:
                continue
            following = self._following.setdefault(
                name, LoadFollowing(self._options.load)
            )
            number = following.wanted(now_s, load.get(name, 0.0), model.num_replicas)
            if number != model.num_replicas:
                wanted[name] = number
        if wanted:
            self._controller.follow_load(wanted)
