"""`make bench-hosted`: what a fleet costs, and what it survives.

Real processes: controller, synchronizer, router and three servers of `tfs hosted up`, and
an open loop of requests from another process. A failed request is one that the caller saw
fail, or that was answered wrongly.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from tests.benchmarks import h2load
from tests.benchmarks.harness import Area, Report, main
from tests.benchmarks.hosted_fleet import (
    ANSWER_S,
    MODEL,
    NUM_SERVERS,
    PREDICT,
    LocalFleet,
    request,
    version_of,
    write_version,
)
from tests.benchmarks.many_models import ManyModels
from tests.benchmarks.models.straggler import (
    make_all_slow,
    num_calls,
    write_straggler,
)
from tests.benchmarks.open_loop import OpenLoopResult
from tests.benchmarks.probe_peaks import peaks_over_estimates
from tests.benchmarks.process_pss import read_tree_pss_mb
from tests.benchmarks.row import Goal, Row, Series
from tests.benchmarks.server_process import ServerProcess
from tests.e2e.serving import free_port
from tests.hosted.postgres_server import PostgresServer, postgres_lacks
from tests.hosted.transactions import feed, transact
from tfs.client import Client
from tfs.core.errors import FailedPrecondition
from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.packing import pack
from tfs.hosted.routing.envoy_router import find_envoy
from tfs.hosted.store.postgres import PostgresStore
from tfs.hosted.store.state_store import StateStore, Transaction
from tfs.proto.tfs.v1 import controller_pb2 as pb

NETWORK_INPUT = {"x": np.zeros((1, 4), np.float32)}
NONE_FAILED = Goal("value", "<=", 0.0)


def _no_envoy() -> str | None:
    try:
        find_envoy()
        importlib.import_module("envoy.service.discovery.v3.discovery_pb2")
    except (ImportError, FailedPrecondition) as error:
        return str(error)
    return None


ROWS = (
    Row("hosted/ready/three-servers", "s", Goal("value", "<=", 5.0)),
    Row("hosted/failed/kill-9-of-one-in-three", "", NONE_FAILED),
    Row("hosted/failed/frozen-one-in-three", "", NONE_FAILED),
    Row("hosted/p99.9/one-in-three-goes", "ms", Goal("value", "<=", 300.0)),
    Row("hosted/failed/transitions-with-kills", "", NONE_FAILED),
    Row("hosted/routed-after-p95/transitions", "s", Goal("value", "<=", 2.0)),
    Row("hosted/routed-after-p95/10000-models", "s", Goal("value", "<=", 2.0)),
    Row("hosted/route-change-p95/10000-models", "s", Goal("value", "<=", 1.0)),
    Row("hosted/failed/control-away", "", NONE_FAILED),
    Row("hosted/missed/20000-commits", "", NONE_FAILED, lacking=postgres_lacks()),
    Row("hosted/on-demand-memory/5000-models", "GB", Goal("value", "<=", 2.147)),
    Row("hosted/on-demand-first-answer-p95/5000-models", "ms", Goal("value", "<=", 50)),
    Row("hosted/probe-over-0.8-below-1/twelve-models", "", Goal("value", ">=", 11)),
    Row("hosted/probe-most/twelve-models", "x", Goal("value", "<=", 1.05)),
    Row("hosted/p99/stragglers", "ms", Goal("value", "<=", 50.0)),
    Row("hosted/calls/stragglers", "", Goal("ratio", "<=", 1.055)),
    Row("hosted/calls/all-slow", "", Goal("ratio", "<=", 1.055)),
    Row("hosted/router-cpu/python", "us", Goal("value", "<=", 150.0)),
    Row(
        "hosted/router-cpu/envoy", "us", Goal("value", "<=", 60.0), lacking=_no_envoy()
    ),
    Row("hosted/packing/20000-copies", "s", Goal("value", "<=", 2.0)),
    Row("hosted/packing-volume/20000-copies", "x", Goal("value", "<=", 1.15)),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure; the default is for figures."""

    rate_per_s: float = 220.0
    transitions: int = 200
    kills: int = 5
    away_s: float = 300.0
    calm_s: float = 6.0
    commits: int = 20_000
    registered: int = 5000
    networks: int = 100
    rare: int = 10_000
    versions: int = 30
    routed: int = 10_000


def _failed(result: OpenLoopResult, is_right: Callable[[int], bool]) -> float:
    faults = result.faults(lambda _, reply: is_right(version_of(reply)))
    if faults:
        print(f"  failed: {dict(faults)} of {len(result.exchanges)}", flush=True)
    return float(sum(faults.values()))


def measure_losses(report: Report, effort: Effort) -> None:
    """One of three servers is killed, then one is frozen."""
    with _fleet() as fleet:
        report.record("hosted/ready/three-servers", fleet.ready_s)
        fleet.add_model()
        latencies_ms: list[float] = []
        for how, name in (
            (signal.SIGKILL, "kill-9-of-one-in-three"),
            (signal.SIGSTOP, "frozen-one-in-three"),
        ):
            with fleet.load(effort.rate_per_s) as results:
                time.sleep(1.0)
                victim = fleet.servers()[0].pid
                os.kill(victim, how)
                time.sleep(effort.calm_s)
                if how is signal.SIGSTOP:
                    os.kill(victim, signal.SIGCONT)
                time.sleep(effort.calm_s)
            report.record(
                f"hosted/failed/{name}", _failed(results[0], lambda v: v == 1)
            )
            latencies_ms += [1e3 * each.latency_s for each in results[0].exchanges]
    latencies_ms.sort()
    slow = latencies_ms[int(0.999 * len(latencies_ms))]
    report.record("hosted/p99.9/one-in-three-goes", slow)


def measure_transitions(report: Report, effort: Effort) -> None:
    """Version after version; servers and the control plane are killed in between."""
    took_s: list[float] = []
    every = max(effort.transitions // (effort.kills + 1), 1)
    with _fleet() as fleet:
        fleet.add_model()
        with fleet.load(effort.rate_per_s) as results:
            for version in range(2, effort.transitions + 2):
                write_version(fleet.base_path, version)
                begun_s = time.monotonic()
                kill, at = divmod(version, every)
                if at == 0 and kill <= effort.kills:
                    if kill % 2:
                        random.choice(fleet.servers()).kill()
                    else:
                        fleet.kill_control()
                        fleet.start()
                fleet.ask(
                    "AddVersion", pb.AddVersionRequest(model=MODEL, version=version)
                )
                if at:
                    took_s.append(time.monotonic() - begun_s)
    last = effort.transitions + 1
    failed = _failed(results[0], lambda v: 1 <= v <= last)
    report.record("hosted/failed/transitions-with-kills", failed)
    took_s.sort()
    report.record(
        "hosted/routed-after-p95/transitions", took_s[int(0.95 * len(took_s))]
    )


def measure_registered(report: Report, effort: Effort) -> None:
    """Versions and new models, beside ten thousand that are loaded on demand."""
    routed_s = []
    with _fleet() as fleet:
        models = fleet.register(effort.rare, effort.versions)
        for name in models:
            path = fleet.folder / "models" / name
            write_version(path, 2)
            begun_s = time.monotonic()
            fleet.ask("AddVersion", pb.AddVersionRequest(model=name, version=2))
            fleet.wait_for_version(name, 2)
            routed_s.append(time.monotonic() - begun_s)
        changed_s = [
            fleet.route_change_s(f"new{each}") for each in range(effort.versions)
        ]
    for of, name in ((routed_s, "routed-after"), (changed_s, "route-change")):
        of.sort()
        report.record(f"hosted/{name}-p95/10000-models", of[int(0.95 * len(of))])


def measure_control_away(report: Report, effort: Effort) -> None:
    """Controller, synchronizer and store are away and come back; then they go for good.

    A server and the router that start again after that go on from their last state on
    disk. No request is under way while the only router is away.
    """
    with _fleet() as fleet:
        fleet.add_model()
        with fleet.load(effort.rate_per_s) as results:
            time.sleep(1.0)
            fleet.kill_control()
            fleet.hide_store()
            time.sleep(effort.away_s)
            fleet.put_store_back()
            fleet.start()
            time.sleep(effort.calm_s)
            fleet.kill_control()
            fleet.hide_store()
            fleet.start_again(fleet.servers()[0])
            time.sleep(effort.calm_s)
        fleet.start_again(*fleet.processes("run"))
        with fleet.load(effort.rate_per_s) as more:
            time.sleep(effort.calm_s)
    failed = sum(_failed(each, lambda v: v == 1) for each in (*results, *more))
    report.record("hosted/failed/control-away", failed)


def measure_commits(report: Report, effort: Effort) -> None:
    """Eight write to PostgreSQL at once; two watch, and count what they never saw."""
    if postgres_lacks():
        return
    num_writers, num_watchers = 8, 2
    with contextlib.ExitStack() as stack:
        server = PostgresServer()
        stack.callback(server.close)
        stores = []
        for _ in range(num_writers + num_watchers):
            stores.append(PostgresStore(server.url))
            stack.callback(stores[-1].close)
        # A feed from before the first revision is a snapshot.
        _write(stores[0], "first", 1)
        last = effort.commits + 1
        with ThreadPoolExecutor(len(stores)) as threads:
            seen = [
                threads.submit(_watched, each, last) for each in stores[num_writers:]
            ]
            each_writes = effort.commits // num_writers
            for index, store in enumerate(stores[:num_writers]):
                threads.submit(_write, store, f"{index}", each_writes)
        missed = [last - len(set(each.result())) for each in seen]
    report.record("hosted/missed/20000-commits", float(sum(missed)))


def _write(store: StateStore, key: str, number: int) -> None:
    for index in range(number):
        transact(store, partial(_put, f"{key}/{index}"))


def _put(key: str, transaction: Transaction) -> None:
    transaction.put("model", key, "x")


def _watched(store: StateStore, last: int) -> list[int]:
    """Returns the revisions that a watcher saw, from 1 to ``last``."""
    seen = [1]
    while seen[-1] < last:
        time.sleep(0.01)
        seen += [each.revision for each in feed(store, seen[-1]).changes]
    return seen


def measure_on_demand(report: Report, effort: Effort) -> None:
    """Tiny models that nobody has asked for yet, and the first answers of some."""
    every = max(effort.registered // 250, 1)
    with tempfile.TemporaryDirectory() as name:
        models = ManyModels(
            Path(name), effort.registered - effort.networks, effort.networks
        )
        models.stage(1)
        models.publish(1)
        with _registered(models.write_config("residency: ON_DEMAND")) as server:
            with Client(server.target) as client:
                took_ms = []
                for each in [*models.names[::every], *models.names[-40:]]:
                    is_table = each.startswith("table")
                    inputs = {"key": np.array([b"b"])} if is_table else NETWORK_INPUT
                    begun_s = time.monotonic()
                    answer = client.predict(each, inputs, timeout_s=30.0)
                    took_ms.append(1e3 * (time.monotonic() - begun_s))
                    if is_table and list(answer.outputs["value"]) != [1]:
                        raise RuntimeError(f"{each} answered {answer}")
            full_mb = sum(read_tree_pss_mb(server.pid).values())
        (empty := Path(name, "empty.config")).write_text("model_config_list {}")
        with _registered(empty) as server:
            empty_mb = sum(read_tree_pss_mb(server.pid).values())
    took_ms.sort()
    report.record("hosted/on-demand-memory/5000-models", (full_mb - empty_mb) / 1e3)
    report.record(
        "hosted/on-demand-first-answer-p95/5000-models",
        took_ms[int(0.95 * len(took_ms))],
    )


def _registered(config: Path) -> ServerProcess:
    command = [
        *(sys.executable, "-m", "tfs", "serve", "--any_port", "--grpc_host=127.0.0.1"),
        *(f"--model_config_file={config}", "--model_memory_limit_bytes=1000000000"),
    ]
    return ServerProcess(command, announcement=r"listening on (\S+)")


def measure_probes(report: Report) -> None:
    """What twelve models take at work, over what a probe of a server estimated."""
    ratios = peaks_over_estimates().values()
    within = sum(0.8 <= each <= 1.0 for each in ratios)
    report.record("hosted/probe-over-0.8-below-1/twelve-models", float(within))
    report.record("hosted/probe-most/twelve-models", max(ratios))


def measure_router(report: Report, effort: Effort) -> None:
    """What a request takes of a router's own processes, with 16 in flight and with few.

    The baseline, at 440 requests a second, is mostly what it takes to be woken for each.
    """
    program = h2load.find()
    for kind in ("python", *(() if _no_envoy() else ("envoy",))):
        with LocalFleet(
            Path(tempfile.mkdtemp(prefix="tfs-")),
            f"--router={kind}",
            router=f"127.0.0.1:{free_port()}",
        ) as fleet:
            fleet.add_model()
            router = fleet.processes("run", "--config-path")
            with grpc.insecure_channel(fleet.router) as channel:
                ask: Any = channel.unary_unary(PREDICT, None, None)
                reply = ask(request(), timeout=ANSWER_S)
            took_us: list[float] = []
            for _ in range(3):
                before_s = _cpu_s(router)
                load = h2load.run(
                    program,
                    fleet.router,
                    PREDICT,
                    request(),
                    num_requests=effort.routed,
                    num_in_flight=16,
                )
                load.check(len(reply))
                took_us.append(1e6 * (_cpu_s(router) - before_s) / effort.routed)
            rate_per_s = 2 * effort.rate_per_s
            with fleet.load(rate_per_s) as results:
                time.sleep(effort.calm_s / 3)  # connections are made
                before_s, begun_s = _cpu_s(router), time.monotonic()
                time.sleep(2 * effort.calm_s)
                cores = (_cpu_s(router) - before_s) / (time.monotonic() - begun_s)
            if _failed(results[0], lambda v: v == 1):
                raise RuntimeError(f"the router {kind} failed requests")
            report.record(
                f"hosted/router-cpu/{kind}",
                Series(tuple(took_us)),
                1e6 * cores / rate_per_s,
            )


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def measure_stragglers(report: Report, effort: Effort) -> None:
    """Two calls in a hundred take 200 ms more; then all of them do.

    Baselines are a server that is asked directly, and as many calls as requests.
    """
    with _fleet() as fleet:
        write_straggler(fleet.folder, fleet.base_path)
        fleet.add_model(is_written=True)
        alone = fleet.addresses()[0]
        with fleet.load(effort.rate_per_s / NUM_SERVERS, alone) as direct:
            time.sleep(2 * effort.calm_s)
        calls, p99_ms = _under_stragglers(fleet, effort)
        report.record("hosted/p99/stragglers", p99_ms, _p99_ms(direct[0]))
        report.record("hosted/calls/stragglers", *calls)
        make_all_slow(fleet.folder)
        calls, _ = _under_stragglers(fleet, effort)
        report.record("hosted/calls/all-slow", *calls)


def _under_stragglers(
    fleet: LocalFleet, effort: Effort
) -> tuple[tuple[float, float], float]:
    """Returns the calls of the model and the requests, and their p99."""
    before = num_calls(fleet.folder)
    with fleet.load(effort.rate_per_s) as results:
        time.sleep(4 * effort.calm_s)
    if _failed(results[0], lambda v: v == 1):
        raise RuntimeError("requests failed")
    calls = float(num_calls(fleet.folder) - before)
    return (calls, float(len(results[0].exchanges))), _p99_ms(results[0])


def _p99_ms(result: OpenLoopResult) -> float:
    latencies_s = sorted(each.latency_s for each in result.exchanges)
    return 1e3 * latencies_s[int(0.99 * len(latencies_s))]


def measure_packing(report: Report) -> None:
    """Two copies of 10,000 models on as many servers of 64 GiB as their volume fills."""
    gib = 1 << 30
    draw = random.Random(1)
    models = {}
    for index in range(10_000):
        size = min(int(300 * 2**20 * draw.lognormvariate(0, 1)), 20 * gib)
        name = f"m{index}"
        models[name] = HostedModel(name, "", size, False, 2, 2, num_replicas=2)
    volume = sum(2 * each.memory_bytes for each in models.values())
    bound = -(-volume // (64 * gib))
    took_s: list[float] = []
    needed = 0
    for _ in range(3):
        for needed in range(bound, 2 * bound):
            jobs = {f"j{index}": Job(f"j{index}", 64 * gib) for index in range(needed)}
            begun_s = time.monotonic()
            packing = pack(Fleet(jobs, models))
            took_s.append(time.monotonic() - begun_s)
            if not packing.shortfall:
                break
    report.record("hosted/packing/20000-copies", Series(tuple(took_s)))
    report.record("hosted/packing-volume/20000-copies", needed / bound)


def _fleet() -> LocalFleet:
    return LocalFleet(Path(tempfile.mkdtemp(prefix="tfs-")))


def build_area(effort: Effort | None = None) -> Area:
    """Returns the area, measured with that effort."""
    so = effort or Effort()

    def losses(report: Report) -> None:
        measure_losses(report, so)

    def transitions(report: Report) -> None:
        measure_transitions(report, so)

    def registered(report: Report) -> None:
        measure_registered(report, so)

    def control_away(report: Report) -> None:
        measure_control_away(report, so)

    def commits(report: Report) -> None:
        measure_commits(report, so)

    def on_demand(report: Report) -> None:
        measure_on_demand(report, so)

    def stragglers(report: Report) -> None:
        measure_stragglers(report, so)

    def router(report: Report) -> None:
        measure_router(report, so)

    def packing(report: Report) -> None:
        measure_packing(report)

    def probes(report: Report) -> None:
        measure_probes(report)

    parts = (
        losses,
        transitions,
        registered,
        control_away,
        commits,
        on_demand,
        stragglers,
        router,
        packing,
        probes,
    )
    return Area("hosted", ROWS, parts, time_limit_s=3600.0)


if __name__ == "__main__":
    raise SystemExit(main(build_area()))
