"""A day of a fleet in virtual time: its controller, packer and synchronizer are the real ones.

A look comes every ``look_s``; between two of them servers load, end and come back. Every
ten minutes 5 % of the models get a new version, of which a few fail to load and are rolled
back. Each hour a node is lost, a model added and removed, what was seen forgotten, and the
processes of controller and synchronizer begin anew. Once a zone is lost, and once
a zone and then the store are cut off. Models have three copies, popularity by Zipf's law,
and load that varies by a fifth from look to look.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.hosted.failing_store import FailingStore
from tests.hosted.fleets import MIB, model, server
from tests.hosted.simulation.virtual_servers import VirtualServers
from tfs.core.errors import ServingError
from tfs.hosted.controller import Controller
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.fleet_state import Edit, FleetState
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, RunningJobs, Seen
from tfs.hosted.load_following import PER_REPLICA
from tfs.hosted.packing import free_bytes, pack
from tfs.hosted.snapshot import FleetCopy
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.synchronizer import Synchronizer, SynchronizerOptions
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
WAVE_S: Final = 600.0
START_S: Final = 5.0  # of a server that a runtime starts
NODE_BYTES: Final = 65536 * MIB
HOT: Final = "hot"
HOT_LOAD: Final = 12.0  # of which each replica takes four
LAUNCH: Final = "launch"
LAUNCH_SERVERS: Final = 20
ELASTIC: Final = ("elastic", "launches")  # partitions, of a job each with that name


@dataclass(frozen=True, slots=True)
class DayOptions:
    """How large and how long a day is. Immutable."""

    num_models: int = 1000
    num_nodes: int = 100
    num_hours: float = 24.0
    look_s: float = 5.0
    seed: int = 1
    limit_s: float = math.inf  # of processor time, after which it is broken off


@dataclass(slots=True)
class Day:
    """What became of it; the lists have one number for each ten minutes."""

    broken: list[str] = field(default_factory=list)
    num_hours: float = 0.0
    availability: float = 1.0
    num_changes: int = 0
    in_force_s: list[float] = field(default_factory=list)
    step_s: float = math.inf
    most_turns: int = 0
    at_launch: int = 0
    unavailable: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    hot_needed: list[float] = field(default_factory=list)
    hot_replicas: list[int] = field(default_factory=list)


class VirtualRuntime:
    """Implements :class:`~tfs.hosted.jobs.job_runtime.JobRuntime` in virtual time."""

    look_s = 1.0

    def __init__(self, servers: VirtualServers, clock: FakeClock) -> None:
        self._servers, self._clock = servers, clock
        self._has: dict[str, int] = {}

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        for spec in specs.values():
            self._look_at(spec)
        return {
            name: [Replica(f"{name}/{index}") for index in range(number)]
            for name, number in self._has.items()
        }

    def _look_at(self, spec: JobSpec) -> None:
        has = self._has.get(spec.name, 0)
        self._has[spec.name] = spec.num_replicas
        for index in range(spec.num_replicas, has):
            self._servers.kill(f"{spec.name}/{index}", is_fault=False)
        job = Job(spec.name, spec.memory_bytes, spec.name)
        for index in range(has, spec.num_replicas):
            address = f"{spec.name}/{index}"
            if address not in self._servers.servers:
                self._servers.add(job, address)
                self._servers.servers[address].is_alive = False

            def start(index: int = index, address: str = address) -> None:
                if index < self._has[spec.name]:
                    self._servers.restart(address, is_new=True)

            self._servers.at(self._clock.now() + START_S, start)


class SimulatedDay:
    """Runs a day.

    Args:
        options: How large it is.
        folder: For the synchronizer's copy.

    """

    def __init__(self, options: DayOptions, folder: Path) -> None:
        self.options = options
        self.day = Day()
        self._random = random.Random(options.seed)
        self._clock = FakeClock()
        self._servers = VirtualServers(self._clock, options.seed)
        self._store = FailingStore(SqliteStore(":memory:", self._clock))
        runtime = VirtualRuntime(self._servers, self._clock)
        self._jobs = RunningJobs(runtime, self._clock)
        self._folder = folder
        self._num_processes = self._num_requests = self._num_added = 0
        self._hot_load, self._launch_load = HOT_LOAD, 0.0
        self._turns: dict[str, list[tuple[float, int]]] = {}
        self._numbers: dict[str, int] = {}
        self._step_at_s = math.inf
        self._down_before = 0.0
        self._replace_processes()

    def run(self) -> Day:
        """Returns what became of the day; nothing is logged of it, for it is too much."""
        level = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            return self._run()
        finally:
            logging.disable(level)

    def _run(self) -> Day:
        self._set_up()
        begin_s = self._clock.now()
        self._servers.down_s = 0.0
        end_s = begin_s + self.options.num_hours * HOUR_S
        self._plan(begin_s, end_s)
        next_s, limit_s = begin_s, time.process_time() + self.options.limit_s
        while next_s < end_s and time.process_time() < limit_s:
            next_s += self.options.look_s
            self._servers.run_until(next_s)
            self._look()
        day = self.day
        down_s = self._servers.end()
        day.num_hours = (next_s - begin_s) / HOUR_S
        day.availability = 1 - down_s / (self.options.num_models * (next_s - begin_s))
        day.broken += self._servers.broken
        day.most_turns = max(map(_most_turns, self._turns.values()), default=0)
        return day

    # -- the day's plan -----------------------------------------------------------

    def _set_up(self) -> None:
        options = self.options
        jobs = [
            replace(
                server(f"n{each}", NODE_BYTES, "gpu" if each % 10 == 9 else ""),
                zone="abc"[each % 3],
            )
            for each in range(options.num_nodes)
        ]
        for job in jobs:
            self._servers.add(job, job.name)
        elastic = [
            Job(
                each, NODE_BYTES, each, 3, is_ours=True, min_replicas=3, max_replicas=60
            )
            for each in ELASTIC
        ]
        models = [
            self._model(f"m{rank}", rank) for rank in range(options.num_models - 2)
        ]
        models += [
            replace(model(name, 1000 * MIB, 3, 60), partition=each)
            for name, each in zip((HOT, LAUNCH), ELASTIC, strict=True)
        ]

        def apply(fleet: Any) -> Any:
            made = {each.name: each for each in models}
            at = {each.name: each for each in [*jobs, *elastic]}
            found = pack(Fleet(at, made))
            assert not found.shortfall
            return found.fleet

        self._state.change(Edit("the fleet", apply))
        self._servers.models = {each.name: each for each in models}
        self._servers.newest = dict.fromkeys(self._servers.models, 1)
        self._demand()
        for _ in range(int(20 * MINUTE_S / options.look_s)):
            self._servers.run_until(self._clock.now() + options.look_s)
            self._look()
        assert len(self._servers.up) == options.num_models, "not all of them came up"

    def _model(self, name: str, rank: int) -> HostedModel:
        size = min(self._random.lognormvariate(math.log(300), 1.0), 4000.0)
        most = 6 if rank < self.options.num_models // 50 else 3
        made = model(name, int(2 * size * MIB), 3, most)
        return replace(made, partition="gpu" if rank % 20 == 19 else "")

    def _plan(self, begin_s: float, end_s: float) -> None:
        length_s, servers, at = end_s - begin_s, self._servers, self._servers.at
        for number in range(int(length_s / WAVE_S)):
            at(begin_s + (number + 0.1) * WAVE_S, self._wave)
            at(begin_s + (number + 1) * WAVE_S - 1, self._note)
            at(begin_s + (number + 0.5) * WAVE_S, self._demand)
        for number in range(int(length_s / HOUR_S)):
            hour_s = begin_s + number * HOUR_S
            at(hour_s + self._random.uniform(0, HOUR_S), self._lose_node)
            at(hour_s + 700, self._replace_processes)
            at(hour_s + 1500, self._forget_what_was_seen)
            at(hour_s + 2100, self._add_and_remove)
        zone = [each for each, s in servers.servers.items() if s.job.zone == "a"]
        lost_s, half_an_hour_s = begin_s + 0.4 * length_s, 0.5 * HOUR_S
        for each in zone:
            at(lost_s, partial(servers.kill, each))
            back_s = lost_s + half_an_hour_s + self._random.uniform(0, MINUTE_S)
            at(back_s, partial(servers.restart, each, is_new=False))
        cut_s = begin_s + 0.65 * length_s
        other = [each for each, s in servers.servers.items() if s.job.zone == "b"]
        at(cut_s, lambda: servers.cut_off.update(other))
        at(cut_s + 0.3 * half_an_hour_s, lambda: self._set_away(is_away=True))
        at(cut_s + 0.5 * half_an_hour_s, self._replace_processes)
        at(cut_s + 0.7 * half_an_hour_s, lambda: self._set_away(is_away=False))
        at(cut_s + half_an_hour_s, servers.cut_off.clear)
        at(begin_s + 0.55 * length_s, self._announce)
        at(begin_s + 0.55 * length_s + 2 * MINUTE_S, self._launch)
        at(begin_s + 0.85 * length_s, self._step)

    def _wave(self) -> None:
        if self._store.is_away:
            return
        names = self._random.sample(
            sorted(self._servers.up), len(self._servers.up) // 20
        )
        for number, name in enumerate(names):
            if name not in self._state.read().fleet.models:
                continue
            version = self._servers.newest[name] + 1
            is_bad = number % 50 == 49
            self._servers.put_version(name, version, is_bad=is_bad)
            asked = pb.AddVersionRequest(model=name, version=version)
            self._ask(asked, may_fail=is_bad)
            if not number:
                self._ask_again(asked)
            if is_bad:
                self._servers.at(
                    self._clock.now() + 120, partial(self._roll_back, name)
                )

    def _roll_back(self, name: str) -> None:
        """The version that fails stays away; the one before goes on, pinned, then free."""
        if self._is_later(partial(self._roll_back, name)):
            return
        good = self._servers.newest[name] - 1
        policy = pb.SetPolicyRequest(model=name)
        policy.rollback.version = good
        self._ask(policy)

        def check() -> None:
            if self._is_later(check):
                return
            primaries = {
                self._servers.servers[each].ready.get(name)
                for each in self._servers.routes.get(name, ())
                if self._servers.servers[each].is_alive
            }
            if primaries != {good}:
                self._break(f"I10: {name} answers with {primaries}, not {good}")
            self._servers.bad.discard((name, good + 1))  # somebody mended it
            latest = pb.SetPolicyRequest(model=name)
            latest.latest.SetInParent()
            self._ask(latest)

        self._servers.at(self._clock.now() + 120, check)

    def _is_later(self, what: Callable[[], None]) -> bool:
        """Whether something has to wait, and is planned again, because the store is away."""
        if self._store.is_away:
            self._servers.at(self._clock.now() + 2 * MINUTE_S, what)
        return self._store.is_away

    def _lose_node(self) -> None:
        alive = [
            each
            for each, s in self._servers.servers.items()
            if s.is_alive and s.job.partition not in ELASTIC
        ]
        lost = self._random.choice(alive)
        self._servers.kill(lost)
        back_s = self._clock.now() + WAVE_S
        self._servers.at(back_s, lambda: self._servers.restart(lost, is_new=True))

    def _replace_processes(self) -> None:
        """Controller and synchronizer were killed; others begin, and know nothing."""
        self._num_processes += 1
        copy = FleetCopy(str(self._folder / "copy.json"))
        self._state = FleetState(self._store, copy)
        self._synchronizer = Synchronizer(
            self._state,
            self._servers,
            self._servers.take_routes,
            self._clock,
            options=SynchronizerOptions(
                self.options.look_s,
                max(10.0, 3 * self.options.look_s),
            ),
            jobs=self._jobs,
            holder=f"process {self._num_processes}",
        )
        reader = EditReader(lambda _: None, lambda _: MIB)
        self._controller = Controller(self._state, reader, self._clock)
        if self._num_processes > 1 and not self._store.is_away:
            in_s = 8 * self.options.look_s  # when the new one leads and has spoken
            before = self._servers.last_message
            self._servers.at(
                self._clock.now() + in_s, lambda: self._check_epoch(before)
            )

    def _forget_what_was_seen(self) -> None:
        """What was seen can be lost: it is seen again."""
        if self._store.is_away:
            return
        before = self._state.read()
        self._state.note(dict.fromkeys(before.models_seen), {})

        def check() -> None:
            now = self._state.read() if not self._store.is_away else before
            if now.models_seen.keys() != before.models_seen.keys():
                self._break("I8: what was seen is not seen again")

        self._servers.at(self._clock.now() + 30 + 2 * self.options.look_s, check)

    def _add_and_remove(self) -> None:
        if self._store.is_away:
            return
        self._num_added += 1
        name = f"added{self._num_added}"
        size = 500 * MIB
        self._servers.models = {**self._servers.models, name: model(name, size)}
        self._servers.newest[name] = 1
        hints = pb.Hints(min_replicas=3, memory_bytes=size)
        self._ask(pb.AddModelRequest(model=name, base_path=f"/{name}", hints=hints))
        if self._num_added > 1:
            self._ask(pb.RemoveModelRequest(model=f"added{self._num_added - 1}"))

    def _demand(self) -> None:
        """Zipf's law, and a day's curve."""
        wave = 1 + 0.5 * math.sin(2 * math.pi * self._clock.now() / (24 * HOUR_S))
        num_watched = self.options.num_models // 50
        self._servers.loads = {
            f"m{rank}": wave * 20.0 / (rank + 1) ** 0.9 for rank in range(num_watched)
        }
        self._servers.loads[HOT] = self._hot_load
        self._servers.loads[LAUNCH] = self._launch_load

    def _announce(self) -> None:
        """Somebody says how many servers a model needs when it is launched."""
        hints = pb.Hints(min_replicas=LAUNCH_SERVERS)
        self._ask(pb.SetHintsRequest(model=LAUNCH, hints=hints))

    def _launch(self) -> None:
        self.day.at_launch = len(self._servers.routes[LAUNCH])
        self._launch_load = 3.0 * LAUNCH_SERVERS
        self._demand()

    def _step(self) -> None:
        self._hot_load *= 10
        self._step_at_s = self._clock.now()
        self._demand()

    def _set_away(self, *, is_away: bool) -> None:
        self._store.is_away = self._servers.is_store_away = is_away

    # -- what is looked at --------------------------------------------------------

    def _look(self) -> None:
        try:
            self._synchronizer.look()
            state = self._state.read()
        except ServingError:
            return  # the store is away
        self._jobs.look()
        self._controller.take(state)
        fleet = state.fleet
        for name in self._servers.loads:
            number, before = fleet.models[name].num_replicas, self._numbers.get(name)
            if before is not None and number != before:
                turns = self._turns.setdefault(name, [])
                turns.append((self._clock.now(), 1 if number > before else -1))
            self._numbers[name] = number
        if self._step_at_s < self._clock.now() and self.day.step_s == math.inf:
            needed = self._hot_load / PER_REPLICA
            serving = len(self._servers.routes.get(HOT, ()))
            if needed / 1.3 <= serving <= needed * 1.3:
                self.day.step_s = self._clock.now() - self._step_at_s

    def _note(self) -> None:
        """Notes what the page shows, and checks what was reserved."""
        servers, day = self._servers, self.day
        down_s = servers.end()
        share = (down_s - self._down_before) / (self.options.num_models * WAVE_S)
        day.unavailable.append(share)
        self._down_before = down_s
        day.nodes.append(sum(each.is_alive for each in servers.servers.values()))
        day.loads.append(servers.num_loads)
        day.hot_needed.append(self._hot_load / PER_REPLICA)
        day.hot_replicas.append(len(servers.routes.get(HOT, ())))
        servers.num_loads = 0
        if not self._store.is_away:
            fleet = self._state.read().fleet
            free = free_bytes(fleet)
            if any(each < 0 for each in free.values()):
                self._break("I3: more is reserved on a job than it has")

    def _ask(self, request: Any, *, may_fail: bool = False) -> None:
        if self._store.is_away:
            return
        self._num_requests += 1
        request.edit.request_id = f"{self._num_requests}"
        asked_s, wait_s = self._clock.now(), 0.0 if may_fail else 10 * MINUTE_S
        request.edit.wait_s = wait_s

        def done(op: pb.Op) -> None:
            self.day.num_changes += 1
            if not op.waits_for:
                self.day.in_force_s.append(self._clock.now() - asked_s)

        try:
            self._controller.change(request, None, done)
        except ServingError as error:
            self._break(f"{request} was refused: {error}")

    def _ask_again(self, request: Any) -> None:
        """Whoever repeats a request gets the answer that there was, and changes nothing."""
        revision = self._state.read().revision
        answers: list[pb.Op] = []
        again = FleetState(self._store)
        reader = EditReader(lambda _: None, lambda _: MIB)
        request.edit.wait_s = 0
        Controller(again, reader, self._clock).change(request, None, answers.append)
        if again.read().revision != revision or answers[0].revision > revision:
            self._break(f"I2: request {request.edit.request_id} acted twice")

    def _check_epoch(self, before: Any) -> None:
        if before is not None and not self._store.is_away:
            for address, each in self._servers.servers.items():
                if each.is_alive and address not in self._servers.cut_off:
                    self._servers.check_that_the_past_is_refused(address, before)

    def _break(self, what: str) -> None:
        self.day.broken.append(f"{self._clock.now():.0f} s: {what}")


def _most_turns(steps: Sequence[tuple[float, int]]) -> int:
    """Returns how often a number of replicas changed direction within ten minutes."""
    turns = [
        at_s for (_, before), (at_s, now) in itertools.pairwise(steps) if now != before
    ]
    return max(
        (sum(each <= other < each + WAVE_S for other in turns) for each in turns),
        default=0,
    )


def p95(of: Sequence[float]) -> float:
    """Returns what nineteen of twenty are at most."""
    return statistics.quantiles(of, n=20)[-1] if len(of) > 1 else math.nan
