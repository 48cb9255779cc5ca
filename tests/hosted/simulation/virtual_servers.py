"""Servers that exist in virtual time alone: they load, serve, end, and say so.

Who speaks to a server is admitted by the same code as in a real one. Everything that
happens is checked at the moment it happens; what must not is listed in ``broken``.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.hosted.fleet import HostedModel, Job
from tfs.hosted.reports import JobReport, ReplicaSighting
from tfs.proto.tfs.v1.admin_service_pb2 import AspireRequest
from tfs.server.fleet_source import FleetSource
from tfs.testing.fake_clock import FakeClock

_LOAD_S: Final = 2.0
_LOADED_BYTES_PER_S: Final = 200 << 20


@dataclass(slots=True, eq=False)
class VirtualServer:
    """One server; ``kept``, its disk, and ``told`` outlive its process."""

    job: Job
    kept: AspireRequest = field(default_factory=AspireRequest)
    # The version that each model is pinned to; 0 for the newest.
    told: dict[str, int] = field(default_factory=dict)
    is_alive: bool = True
    started_s: float = 1.0
    ready: dict[str, int] = field(default_factory=dict)
    coming: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    taken_bytes: int = 0
    request_s: dict[str, float] = field(default_factory=dict)
    asked_s: float = 0.0
    report: JobReport | None = None
    said: frozenset[str] = frozenset()
    source: FleetSource = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Follows the fleet from what the disk has of it."""
        self.source = FleetSource(self.kept, partial(setattr, self, "kept"))


class VirtualServers:
    """Implements the synchronizer's ``JobClient``; confined to one thread.

    Attributes:
        newest: The newest version in each model's base path.
        bad: The versions that fail to load.
        loads: The requests under way of models that are watched for load.
        broken: The invariants that were broken, and when.
        down_s: How long models had no server that a router knows and that has them.
        up: The models that ever had one.

    """

    def __init__(self, clock: FakeClock, seed: int) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._num_due = 0
        self.models: Mapping[str, HostedModel] = {}
        self.servers: dict[str, VirtualServer] = {}
        self.cut_off: set[str] = set()
        self.is_store_away = False
        self.newest: dict[str, int] = {}
        self.bad: set[tuple[str, int]] = set()
        self.loads: dict[str, float] = {}
        self.routes: Mapping[str, tuple[str, ...]] = {}
        self.broken: list[str] = []
        self.down_s = 0.0
        self.up: set[str] = set()
        self.num_loads = 0
        self.last_message: AspireRequest | None = None
        self._down_since: dict[str, float] = {}

    # -- time ---------------------------------------------------------------------

    def at(self, when_s: float, what: Callable[[], object]) -> None:
        """Has something happen at a time."""
        self._num_due += 1
        heapq.heappush(self._due, (when_s, self._num_due, what))

    def run_until(self, end_s: float) -> None:
        """Lets everything happen that is due by then, each at its time."""
        while self._due and self._due[0][0] <= end_s:
            when_s, _, what = heapq.heappop(self._due)
            self._clock.advance(max(when_s - self._clock.now(), 0.0))
            what()
        self._clock.advance(max(end_s - self._clock.now(), 0.0))

    # -- what the synchronizer does -----------------------------------------------

    def list_models(self, address: str, before: JobReport) -> JobReport:
        server = self._reached(address)
        now_s, since_s = self._clock.now(), server.asked_s
        server.asked_s = now_s
        watched = server.ready.keys() & self.loads.keys()
        if server.report is None:
            models = {name: _seen(server, name) for name in server.told}
            server.report = JobReport(server.started_s, models)
            server.said = frozenset(server.ready)
        if not watched:
            return server.report
        for name in watched:
            routed = self.routes.get(name, ())
            share = self.loads[name] / len(routed) if address in routed else 0.0
            noisy = share * self._random.uniform(0.8, 1.2)
            took_s = server.request_s.get(name, 0.0)
            server.request_s[name] = took_s + noisy * (now_s - since_s)
        return JobReport(
            server.started_s, server.report.models, {}, dict(server.request_s)
        )

    def aspire(self, address: str, request: AspireRequest) -> None:
        server = self._reached(address)
        if self.is_store_away:
            self._break(f"I6: {address} is told something while the store is away")
        server.source.admit(request)
        listed = request.config.model_config_list.config
        server.told = {each.name: each.traffic.primary for each in listed}
        server.source.note(request)
        self.last_message = request
        for name in server.told:
            if self.models[name].partition != server.job.partition:
                self._break(f"I9: {name} of another partition is on {address}")
        self._follow(server)

    def keep(self, addresses: Collection[str]) -> None:
        pass

    def take_routes(self, routes: Mapping[str, tuple[str, ...]]) -> None:
        """Does what a router does with a table."""
        before, self.routes = self.routes, routes
        for name, addresses in routes.items():
            was = before.get(name, ())
            if addresses == was:
                continue
            for each in set(addresses).difference(was):
                if name not in self.servers[each].said:
                    self._break(f"I4: {name} is routed to {each}, which never had it")
            self._recount(name)

    def check_that_the_past_is_refused(
        self, address: str, message: AspireRequest
    ) -> None:
        """Says once more what a synchronizer said that was replaced since."""
        try:
            self.servers[address].source.admit(message)
        except FailedPrecondition:
            return
        self._break(f"I5: {address} took a message of an epoch that is over")

    # -- what happens to servers --------------------------------------------------

    def add(self, job: Job, address: str) -> None:
        """Starts a server."""
        self.servers[address] = VirtualServer(job, asked_s=self._clock.now())

    def kill(self, address: str, *, is_fault: bool = True) -> None:
        """Ends a server's process, with all that it had in memory."""
        server = self.servers[address]
        had, server.is_alive, server.taken_bytes = server.ready, False, 0
        server.ready, server.coming, server.failed = {}, {}, {}
        server.report, server.request_s = None, {}
        server.waiting.clear()
        for name in had:
            self._recount(name, is_fault=is_fault)

    def restart(self, address: str, *, is_new: bool) -> None:
        """Starts a server again: a new machine, or the old one, which knows its fleet."""
        server = self.servers[address]
        if server.is_alive:
            return
        if is_new:
            server.kept, server.told = AspireRequest(), {}
        server.start()
        server.is_alive, server.started_s = True, self._clock.now()
        server.asked_s = self._clock.now()
        self._follow(server)

    def put_version(self, name: str, version: int, *, is_bad: bool) -> None:
        """Puts a version into a model's base path; servers find it within seconds."""
        self.newest[name] = version
        if is_bad:
            self.bad.add((name, version))
        for server in self.servers.values():
            if name in server.told:
                in_s = self._random.uniform(0.0, 2.0)
                self.at(self._clock.now() + in_s, partial(self._follow, server))

    def end(self) -> float:
        """Returns how long models were down, all together, those that still are included."""
        now_s = self._clock.now()
        return self.down_s + sum(now_s - each for each in self._down_since.values())

    # -- what a server does -------------------------------------------------------

    def _reached(self, address: str) -> VirtualServer:
        server = self.servers[address]
        if not server.is_alive or address in self.cut_off:
            raise Unavailable(f"{address} does not answer")
        return server

    def _follow(self, server: VirtualServer) -> None:
        """Unloads what it should not have, and begins to load what it lacks."""
        if not server.is_alive:
            return
        server.report = None
        for name in [each for each in server.ready if each not in server.told]:
            server.ready.pop(name)
            self._free(server, name)
            self._recount(name)
        for name in [each for each in server.coming if each not in server.told]:
            server.coming.pop(name)
            self._free(server, name)
        for name, pinned in server.told.items():
            version = pinned or self.newest[name]
            if version not in (
                server.ready.get(name),
                server.coming.get(name),
                server.failed.get(name),
            ):
                self._load(server, name, version)

    def _load(self, server: VirtualServer, name: str, version: int) -> None:
        size = self._version_bytes(name)
        if name in server.coming or server.taken_bytes + size > server.job.memory_bytes:
            server.waiting.add(name)
            return
        server.waiting.discard(name)
        server.taken_bytes += size
        if server.taken_bytes > server.job.memory_bytes:
            self._break(
                f"I3: {server.job.name} has {server.taken_bytes} bytes of models"
            )
        server.coming[name] = version
        started_s = server.started_s
        self.num_loads += 1

        def loaded() -> None:
            if server.started_s != started_s or server.coming.get(name) != version:
                return  # it ended meanwhile, or does not want it any more
            server.coming.pop(name)
            is_bad = (name, version) in self.bad
            if is_bad:
                server.failed[name] = version
            had = is_bad or name in server.ready
            if not is_bad:
                server.ready[name] = version
            if had:  # one of the two is freed
                self._free(server, name)
            self._recount(name)
            if server.waiting:
                server.waiting.clear()
            self._follow(server)

        self.at(self._clock.now() + _LOAD_S + size / _LOADED_BYTES_PER_S, loaded)

    def _free(self, server: VirtualServer, name: str) -> None:
        server.taken_bytes -= self._version_bytes(name)

    def _version_bytes(self, name: str) -> int:
        return self.models[name].memory_bytes // 2  # which has room for two

    def _recount(self, name: str, *, is_fault: bool = False) -> None:
        routed = self.routes.get(name)
        if routed is None:
            return  # it is no model any more
        now_s, since_s = self._clock.now(), self._down_since.get(name)
        if any(name in self.servers[each].ready for each in routed):
            self.up.add(name)
            if since_s is not None:
                self.down_s += now_s - self._down_since.pop(name)
        elif name in self.up and since_s is None:
            if not is_fault:
                self._break(f"I1: nobody answers for {name}, and no server was lost")
            self._down_since[name] = now_s

    def _break(self, what: str) -> None:
        self.broken.append(f"{self._clock.now():.0f} s: {what}")


def _seen(server: VirtualServer, name: str) -> ReplicaSighting:
    ready, coming = server.ready.get(name), server.coming.get(name)
    failed = server.failed.get(name)
    return ReplicaSighting(
        0,
        ready,
        () if ready is None else (ready,),
        () if coming is None else (coming,),
        None,
        "" if failed is None else f"version {failed} fails to load",
    )
