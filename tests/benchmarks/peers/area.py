"""`make bench-peers`: TFS beside other model servers, on the same models.

MOSEC, Triton, LitServe and TorchServe serve what TFS serves, each in an environment of
its own, over its best transport, with handlers that pass bytes straight to the model.
All are pinned to one core, with one thread for the model and the same allocator
settings; h2load asks from the other core, 1 to 64 requests at once. Everybody's answers
to different requests are compared with plain torch first. Servers take turns round by
round, so that drift of the machine hits all alike, and who is not in turn is stopped:
some are busy when idle.

With ``--http`` TFS is asked over HTTP as well, rather than by gRPC.

A row has two numbers, CPU per request (user and system time of the process tree) and
requests per second; its baseline is the best peer's. A number is won or lost only
beyond the spread of both sides, else it is a tie; the goals count what was lost.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks import h2load
from tests.benchmarks.harness import Area, Report, Sample, interleave
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.contest import Verdict, compare, count_lost, standing
from tests.benchmarks.peers.litserve import LitServe
from tests.benchmarks.peers.mosec import Mosec
from tests.benchmarks.peers.peer import Peer, Setting
from tests.benchmarks.peers.running_server import Folders, RunningServer
from tests.benchmarks.peers.tfs_server import Tfs
from tests.benchmarks.peers.torchserve import TorchServe
from tests.benchmarks.peers.triton import Triton
from tests.benchmarks.peers.workload import WORKLOADS, Workload
from tests.benchmarks.process_cpu import ProcessTreeCpu
from tests.benchmarks.process_pss import read_tree_pss_mb
from tests.benchmarks.row import Goal, Row, Series
from tests.benchmarks.rpc import ENV, running_on, split_cores

TFS: Peer = Tfs()
PEERS: tuple[Peer, ...] = (Mosec(), Triton(), LitServe(), TorchServe())
IN_FLIGHT = (1, 8, 32, 64)

TIME_LIMIT_S = 3600.0
# The zygote ends half a minute after its last worker.
ZYGOTE_END_TIMEOUT_S = 60.0
FOOTPRINT = "identity"

NOT_FIRST = "peers/identity-mlp/not-first"
RESNET_LOST = "peers/resnet18/lost"
PSS = "peers/footprint-pss/one-small-model"
IDLE = "peers/footprint-idle-cpu/one-small-model"
FIRST_ANSWER = "peers/footprint-first-answer/one-small-model"


@dataclass(frozen=True, slots=True)
class Effort:
    """What to measure and for how long; the default is for figures.

    Attributes:
        peers: names of those that take part.
        round_s: of load on one server; 10 ms of it are the resolution of CPU time.
        num_rounds: counted; one more comes before them. Below five nothing is decided.
        num_first: requests of the first round, whose rate tells how many the next
            ones take.
        idle_s: for which idle servers are watched; 0 leaves the footprint out.
        is_http: whether TFS is asked over HTTP, as its peers are, rather than by gRPC.
    """

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    batching: tuple[bool, ...] = (False, True)
    in_flight: tuple[int, ...] = IN_FLIGHT
    peers: tuple[str, ...] = tuple(peer.name for peer in PEERS)
    round_s: float = 1.5
    num_rounds: int = 5
    num_first: int = 300
    idle_s: float = 20.0
    is_http: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the comparison."""

    workload: Workload
    is_batching: bool
    num_in_flight: int

    @property
    def text(self) -> str:
        batched = "batched" if self.is_batching else "unbatched"
        return f"{batched}-{self.num_in_flight}-in-flight"

    def row_name(self, quantity: str) -> str:
        return f"peers/{self.workload.name}-{quantity}/{self.text}"


# Quantity, unit, whether less of it is better.
QUANTITIES = (("cpu", "us", True), ("rate", "1/s", False))


def conditions(effort: Effort) -> list[Condition]:
    """Returns the comparison's rows, in order."""
    return [
        Condition(WORKLOADS[name], is_batching, num_in_flight)
        for name in effort.workloads
        for is_batching in effort.batching
        for num_in_flight in effort.in_flight
    ]


def rows(effort: Effort) -> tuple[Row, ...]:
    """Returns the area's rows: the comparison, what was lost of it, the footprint."""
    compared = [
        Row(condition.row_name(quantity), unit)
        for condition in conditions(effort)
        for quantity, unit, _ in QUANTITIES
    ]
    if {"identity", "mlp"} & set(effort.workloads):
        compared.append(Row(NOT_FIRST, "", Goal("value", "<=", 0)))
    if "resnet18" in effort.workloads:
        compared.append(Row(RESNET_LOST, "", Goal("value", "<=", 0)))
    if effort.idle_s:
        compared += [
            Row(PSS, "MB", Goal("value", "<=", 260)),
            Row(IDLE, "%", Goal("value", "<=", 0.5)),
            Row(FIRST_ANSWER, "s", Goal("value", "<=", 3)),
        ]
    return tuple(compared)


@dataclass(slots=True)
class Field:
    """Who takes part, with the Python of each. Confined to one thread."""

    effort: Effort
    pythons: dict[str, Path] = field(default_factory=dict)

    def set_up(self) -> None:
        """Makes the environments; says who can not take part, and why."""
        self.pythons[TFS.name] = Path(sys.executable)
        for peer in PEERS:
            if peer.name not in self.effort.peers:
                continue
            try:
                self.pythons[peer.name] = environment.prepare(peer)
            except environment.MissingError as error:
                print(f"  left out: {error}", flush=True)

    def members(self) -> list[Peer]:
        """Returns TFS and the peers that can run; a part measured alone sets them up."""
        if not self.pythons:
            self.set_up()
        tfs: Peer = Tfs(is_http=self.effort.is_http)
        return [peer for peer in (tfs, *PEERS) if peer.name in self.pythons]

    @contextmanager
    def running(
        self, workload: Workload, *, is_batching: bool
    ) -> Iterator[dict[str, RunningServer]]:
        """Starts everybody, checks their answers, ends them.

        A peer that does not start or answers wrongly is left out, and that is said; a
        fault of TFS is raised.
        """
        with ExitStack() as stack:
            folders = stack.enter_context(Folders())
            servers: dict[str, RunningServer] = {}
            for peer in self.members():
                try:
                    server = stack.enter_context(
                        self.server(peer, workload, folders, is_batching=is_batching)
                    )
                    server.check()
                except Exception as error:
                    if peer.name == TFS.name:
                        raise
                    print(f"  left out: {peer.name} {workload.name}: {error}")
                    continue
                servers[peer.name] = server
            yield servers

    def server(
        self,
        peer: Peer,
        workload: Workload,
        folders: Folders,
        *,
        is_batching: bool,
        cores: Collection[int] | None = None,
    ) -> RunningServer:
        """Returns a server that starts when it is entered."""
        ports = free_ports(peer.num_ports)
        setting = Setting(
            workload, is_batching, folders.make(), self.pythons[peer.name], ports
        )
        return RunningServer(
            peer.name,
            peer.launch(setting),
            peer.exchange(workload, is_batching=is_batching),
            workload,
            environment=ENV,
            cores=cores or split_cores()[0],
        )


def free_ports(num_ports: int) -> list[int]:
    """Returns ports of the loopback that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def load_measurer(
    program: h2load.H2load, server: RunningServer, effort: Effort, num_in_flight: int
) -> Callable[[], Sample]:
    """Returns the measurer of one server: cpu in us per request, rate in 1/s, p50."""
    cpu = ProcessTreeCpu(server.pid)
    num_requests = max(num_in_flight, effort.num_first)
    if len(server.body) > 100_000:
        num_requests = max(num_in_flight, effort.num_first // 20)

    def measure() -> Sample:
        nonlocal num_requests
        server.resume()
        before_s = cpu.read_s()
        load = server.exchange.load(
            program,
            server.target,
            server.body,
            num_requests=num_requests,
            num_in_flight=num_in_flight,
        )
        used_s = cpu.read_s() - before_s
        server.pause()
        server.exchange.check(load, server.reply_bytes)
        rate_per_s = load.num_answered / load.duration_s
        num_requests = max(num_in_flight, int(rate_per_s * effort.round_s))
        return {
            "cpu": used_s * 1e6 / load.num_answered,
            "rate": rate_per_s,
            "p50": load.latency_us(0.5),
        }

    return measure


Runs = Mapping[str, Mapping[str, Series]]


def judge_runs(runs: Runs, quantity: str, *, less_is_better: bool) -> Verdict:
    """Returns where TFS stands among all in one number of one row."""
    return standing(
        runs[TFS.name][quantity],
        [run[quantity] for name, run in runs.items() if name != TFS.name],
        less_is_better=less_is_better,
    )


def best_of(runs: Runs, quantity: str, *, less_is_better: bool) -> Series | None:
    """Returns the best peer's series; None without a peer."""
    others = [run[quantity] for name, run in runs.items() if name != TFS.name]
    pick = min if less_is_better else max
    return pick(others, key=lambda series: series.median) if others else None


def lines(condition: Condition, runs: Runs) -> list[str]:
    """Returns what people read of a row: everybody's numbers, and who is ahead."""
    ours = runs[TFS.name]
    out = [f"  {condition.workload.name} {condition.text}"]
    for name, run in runs.items():
        text = f"    {name:<11}" + "".join(
            f" {run[quantity].median:>11,.1f} {unit}"
            f" ({run[quantity].spread[0]:,.1f} .. {run[quantity].spread[1]:,.1f})"
            for quantity, unit, _ in QUANTITIES
        )
        text += f"  p50 {run['p50'].median:,.0f} us"
        if name != TFS.name:
            text += "  TFS: " + ", ".join(
                f"{quantity} "
                + compare(
                    ours[quantity], run[quantity], less_is_better=less_is_better
                ).value
                for quantity, _, less_is_better in QUANTITIES
            )
        out.append(text)
    return out


class Comparison:
    """Measures the rows, then counts what was lost. Confined to one thread."""

    def __init__(self, effort: Effort, members: Field) -> None:
        self._effort = effort
        self._field = members
        self._verdicts: dict[str, list[Verdict]] = {}

    def part(self, name: str, is_batching: bool) -> Callable[[Report], None]:
        """Returns what measures one model with batching on or off."""

        def measure(report: Report) -> None:
            self._measure(report, WORKLOADS[name], is_batching)

        measure.__name__ = f"{name}_{'batched' if is_batching else 'unbatched'}"
        return measure

    def count(self, report: Report) -> None:
        """Records how many numbers somebody else leads."""
        for row, names in (
            (NOT_FIRST, ("identity", "mlp")),
            (RESNET_LOST, ("resnet18",)),
        ):
            verdicts = [
                verdict for name in names for verdict in self._verdicts.get(name, ())
            ]
            wanted = [name for name in names if name in self._effort.workloads]
            num_wanted = (
                len(wanted)
                * len(self._effort.batching)
                * len(self._effort.in_flight)
                * len(QUANTITIES)
            )
            # A row that was not measured is not a row that was not lost.
            if wanted and len(verdicts) == num_wanted:
                report.record(row, count_lost(verdicts))
                print(
                    f"  {row}: {len(verdicts)} numbers, "
                    + ", ".join(
                        f"{verdicts.count(each)} {each.value}" for each in Verdict
                    )
                )

    def _measure(self, report: Report, workload: Workload, is_batching: bool) -> None:
        program = h2load.find()
        with (
            running_on(split_cores()[1]),
            self._field.running(workload, is_batching=is_batching) as servers,
        ):
            for num_in_flight in self._effort.in_flight:
                condition = Condition(workload, is_batching, num_in_flight)
                runs = self._run(program, servers, num_in_flight)
                for line in lines(condition, runs):
                    print(line, flush=True)
                self.record(report, condition, runs)
            for line in servers[TFS.name].output().splitlines():
                if "event=left_front" in line:
                    print(f"  not in front any more: {line}")

    def _run(
        self,
        program: h2load.H2load,
        servers: Mapping[str, RunningServer],
        num_in_flight: int,
    ) -> Runs:
        for server in servers.values():
            server.pause()
        measurers = {
            name: load_measurer(program, server, self._effort, num_in_flight)
            for name, server in servers.items()
        }
        return interleave(measurers, num_rounds=self._effort.num_rounds)

    def record(self, report: Report, condition: Condition, runs: Runs) -> None:
        """Records a row's two numbers, and who is ahead in each."""
        for quantity, _, less_is_better in QUANTITIES:
            report.record(
                condition.row_name(quantity),
                runs[TFS.name][quantity],
                best_of(runs, quantity, less_is_better=less_is_better),
            )
            if len(runs) > 1:
                verdict = judge_runs(runs, quantity, less_is_better=less_is_better)
                self._verdicts.setdefault(condition.workload.name, []).append(verdict)


def measure_footprint(report: Report, effort: Effort, members: Field) -> None:
    """One small model: memory, CPU when idle, time to the first right answer."""
    workload = WORKLOADS[FOOTPRINT]
    # All of them: the limit is for a user's machine, not for a server's share of it.
    cores = os.sched_getaffinity(0)

    def starter(peer: Peer) -> Callable[[], Sample]:
        def start() -> Sample:
            with (
                Folders() as folders,
                members.server(
                    peer, workload, folders, is_batching=True, cores=cores
                ) as server,
            ):
                return {"first_answer_s": server.first_answer_s}

        return start

    starts = interleave(
        {peer.name: starter(peer) for peer in members.members()},
        num_rounds=effort.num_rounds,
    )
    best = best_of(starts, "first_answer_s", less_is_better=True)
    report.record(FIRST_ANSWER, starts[TFS.name]["first_answer_s"], best)
    with members.running(workload, is_batching=True) as servers:
        await_end_of_zygote(servers[TFS.name].pid)
        cpus = {name: ProcessTreeCpu(server.pid) for name, server in servers.items()}
        before_s = {name: cpu.read_s() for name, cpu in cpus.items()}
        time.sleep(effort.idle_s)
        idle = {
            name: (cpu.read_s() - before_s[name]) / effort.idle_s * 100
            for name, cpu in cpus.items()
        }
        pss = {
            name: sum(read_tree_pss_mb(server.pid).values())
            for name, server in servers.items()
        }
    for name in servers:
        print(
            f"    {name:<11} {pss[name]:7.0f} MB  idle {idle[name]:.2f} % of a core  "
            f"first answer {starts[name]['first_answer_s'].median:.1f} s"
        )
    others = [name for name in servers if name != TFS.name]
    report.record(PSS, pss[TFS.name], min((pss[name] for name in others), default=None))
    report.record(
        IDLE, idle[TFS.name], min((idle[name] for name in others), default=None)
    )


def await_end_of_zygote(pid: int) -> None:
    """Blocks until the server is alone, and says so if it does not come to that."""
    deadline_s = time.monotonic() + ZYGOTE_END_TIMEOUT_S
    while len(read_tree_pss_mb(pid)) > 1:
        if time.monotonic() > deadline_s:
            print(f"  process {pid} has children after {ZYGOTE_END_TIMEOUT_S:g} s")
            return
        time.sleep(0.5)


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""
    members = Field(effort)
    comparison = Comparison(effort, members)

    def set_up(report: Report) -> None:
        members.set_up()

    def footprint(report: Report) -> None:
        measure_footprint(report, effort, members)

    parts: Sequence[Callable[[Report], None]] = (
        set_up,
        *([footprint] if effort.idle_s else []),
        *(
            comparison.part(name, is_batching)
            for name, is_batching in itertools.product(
                effort.workloads, effort.batching
            )
        ),
        comparison.count,
    )
    return Area("peers", rows(effort), tuple(parts), TIME_LIMIT_S)
