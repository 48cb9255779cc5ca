"""`make bench-swap`: versions change under load, and nobody notices.

Two hundred versions of the demo's digits network, all with weights of their own, are
renamed into the base path, one a second, while another process asks 200 times a second
over four connections, at fixed times. Each reply names its version, and its scores must
be what plain torch computes with that version's weights. Whether a request overlaps a
load or an unload is decided by the server's own log: from LOADING to AVAILABLE, from
UNLOADING to END.

Then, each time in a fresh server, a second version whose import takes 3 s comes up
beside the first. The longest answer from its rename until the first version is gone is
the row; the longest of as much undisturbed load before it is the baseline, because what
the machine itself does to an answer is in both.

A load is paced while requests come (`tfs/core/loop/pacing.py`): it works for a seventh of
the time, so that most requests beside a swap meet no work of it at all, and takes 130 to
170 ms where it took 30. On two cores that answer in 1.0 ms, beside little other work, their
90th percentile was 1.03 to 1.11 times that of the rest and their p99 1.1 to 1.2 times; 1.35 and
1.3 to 1.7 when loads worked whenever nothing was answered. A longer load also overlaps four
times as many requests, which is a part of that; the same work is done in all. What is left, by where
in a load the slowest come and by `perf sched`:

- what cannot be divided, mostly at a load's end: calls of the new version in its worker,
  each with a message of 0.3 ms to the worker's control thread or with the loop's part of it;
- a worker's load that has the core, until it looks at its sign. Whoever was preempted and
  has had microseconds more than its share is passed over for it until the next tick or wake-up (EEVDF);
- a load in the server that has Python's lock, or the core: whoever it wakes up by giving
  that lock back is put on its own core, because an idle virtual one counts as taken.

And their own work takes 1.2 to 1.6 times as long while the other core computes.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc
import numpy as np
import torch

import tfs.export
from tests.benchmarks.harness import ROOT, Area, Report, main
from tests.benchmarks.open_loop import Exchange, open_loop
from tests.benchmarks.process_pss import read_tree_pss_mb
from tests.benchmarks.row import Goal, Row
from tests.benchmarks.server_process import ServerProcess
from tests.benchmarks.slow_import import FORMS, Form, export_slow_import
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

DEMO = ROOT / "deploy" / "demo"
sys.path.insert(0, str(DEMO))

from digits_net import DigitsNet  # noqa: E402

PREDICT = "/tensorflow.serving.PredictionService/Predict"
READY_TIMEOUT_S = 60.0
# A version that imports for 3 s does so more than once: to be measured, and to serve.
SWAP_TIMEOUT_S = 60.0
NUM_IMAGES = 16
EARLY_SWAP = 10
# Long enough after a rename for its load and the unload before, before the next one.
PSS_PAUSE_S = 0.8

ROWS = (
    Row("swap/failed/200-swaps", "", Goal("value", "<=", 0)),
    Row("swap/overlapping-p99-vs-rest/200-swaps", "ms", Goal("ratio", "<=", 1.5)),
    Row("swap/tree-pss/200-swaps-vs-10", "MB", Goal("ratio", "<=", 1.05)),
    *(
        Row(f"swap/longest-answer/import-{form}", "ms", Goal("value", "<=", 30))
        for form in FORMS
    ),
    # What tells whether the rows above say what they seem to.
    Row("swap/versions-that-served/200-swaps", "", Goal("value", ">=", 200)),
    Row("swap/generator-lateness-p99/200-swaps", "ms"),
    Row("swap/load-time/200-swaps", "ms"),
)
FAILED, OVERLAPPING, PSS = (row.name for row in ROWS[:3])
SERVED, LATENESS, LOAD_TIME = (row.name for row in ROWS[-3:])

_STATE = re.compile(
    r"^(\S+ \S+?),(\d{3}) .*event=servable_(\w+) servable=digits/(\d+)\b",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure; the default is for figures, tests take less."""

    num_swaps: int = 200
    swap_period_s: float = 1.0
    rate_per_s: float = 200.0
    import_s: float = 3.0
    quiet_s: float = 8.0
    forms: Sequence[Form] = FORMS


@dataclass(frozen=True, slots=True)
class StateChange:
    """A line of the server's log; wall clock, to the millisecond."""

    time_s: float
    state: str
    version: int


@dataclass(frozen=True, slots=True)
class Interval:
    """A load or an unload of a version."""

    start_s: float
    end_s: float
    version: int
    is_load: bool


def read_state_changes(output: str) -> list[StateChange]:
    """Returns what the server's output says of the versions' states, in order."""
    return [
        StateChange(
            datetime.strptime(when, "%Y-%m-%d %H:%M:%S").timestamp()
            + int(millis) / 1000,
            state,
            int(version),
        )
        for when, millis, state, version in _STATE.findall(output)
    ]


def find_intervals(changes: Sequence[StateChange]) -> list[Interval]:
    """Pairs loading with available, and unloading with end; the unpaired are left out."""
    ends = {"available": ("loading", True), "end": ("unloading", False)}
    begun: dict[tuple[int, str], float] = {}
    intervals = []
    for change in changes:
        if change.state in ("loading", "unloading"):
            begun[change.version, change.state] = change.time_s
        elif change.state in ends:
            state, is_load = ends[change.state]
            start_s = begun.pop((change.version, state), None)
            if start_s is not None:
                intervals.append(
                    Interval(start_s, change.time_s, change.version, is_load)
                )
    return intervals


def split_by_overlap(
    exchanges: Sequence[Exchange], intervals: Sequence[Interval]
) -> tuple[list[Exchange], list[Exchange]]:
    """Returns the exchanges under way during some interval, and the rest."""
    during: list[Exchange] = []
    rest: list[Exchange] = []
    for exchange in exchanges:
        overlaps = any(
            exchange.sent_s <= each.end_s and exchange.done_s >= each.start_s
            for each in intervals
        )
        (during if overlaps else rest).append(exchange)
    return during, rest


def p99_ms(latencies_s: Sequence[float]) -> float:
    """Returns what 99 of 100 did not exceed."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3


class Nets:
    """The network of each version, by its number alone. Confined to one thread."""

    def __init__(self) -> None:
        # Imports scikit-learn, which takes a second; tests of this file do without.
        from digits import load_data

        self.images = load_data().held_out_images[:NUM_IMAGES].contiguous()
        self._scores: dict[int, torch.Tensor] = {}

    def net(self, version: int) -> DigitsNet:
        """Returns the network with the weights of that version, and of no other."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(version)
            return DigitsNet().eval()

    def export(self, version: int, folder: Path) -> Path:
        """Writes that version below `folder`; returns its directory."""
        example = {"images": self.images[:4]}
        return Path(tfs.export.save(self.net(version), example, folder, version))

    def bodies(self) -> list[bytes]:
        """Returns a Predict for each image, as ordinary clients encode it."""
        bodies = []
        for image in self.images:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "digits"
            tensor = request.inputs["images"]
            tensor.dtype = types_pb2.DT_FLOAT
            for size in (1, 64):
                tensor.tensor_shape.dim.add(size=size)
            tensor.tensor_content = image.numpy().tobytes()
            bodies.append(request.SerializeToString())
        return bodies

    def is_right(self, image_index: int, reply: bytes) -> bool:
        """Tells whether the reply's scores are those of the version that it names.

        Not bit for bit: a row of a batch may round differently. Two versions differ by
        a thousand times more.
        """
        response = predict_pb2.PredictResponse.FromString(reply)
        version: int = response.model_spec.version.value
        tensor = response.outputs["scores"]
        values = np.array(tensor.float_val, np.float32)
        if tensor.tensor_content:
            values = np.frombuffer(tensor.tensor_content, np.float32)
        if version not in self._scores:
            with torch.no_grad():
                self._scores[version] = self.net(version)(self.images)["scores"]
        expected = self._scores[version][image_index].numpy()
        return values.shape == expected.shape and np.allclose(
            values, expected, rtol=0, atol=1e-6
        )


@contextmanager
def serve_digits(base_path: Path, nets: Nets) -> Iterator[ServerProcess]:
    """Serves what is in `base_path` by default options, once it answers rightly."""
    command = [
        *(sys.executable, "-m", "tfs", "serve"),
        *("--grpc_host=127.0.0.1", "--any_port=true"),
        *("--model_name=digits", f"--model_base_path={base_path}"),
    ]
    with ServerProcess(command) as server:
        body = nets.bodies()[0]
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        with grpc.insecure_channel(server.target) as channel:
            call = channel.unary_unary(PREDICT, bytes, bytes)
            while True:
                try:
                    reply = call(body, timeout=5, wait_for_ready=True)
                    break
                except grpc.RpcError as error:
                    if time.monotonic() > deadline_s:
                        raise TimeoutError(
                            f"digits/1 does not serve: {error}"
                        ) from None
                    time.sleep(0.05)  # it is loading; there is nothing to wait on
        if not nets.is_right(0, reply):
            raise ValueError(f"the server answers wrongly: {reply[:100]!r}")
        yield server


def wait_for_state(
    server: ServerProcess, version: int, state: str, timeout_s: float = SWAP_TIMEOUT_S
) -> None:
    """Blocks until the server says so of that version.

    Raises:
        TimeoutError: it did not; ends with what it said last.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        output = server.output()
        if any(
            change.version == version and change.state == state
            for change in read_state_changes(output)
        ):
            return
        time.sleep(0.1)
    raise TimeoutError(f"digits/{version} is not {state}: {server.output()[-1000:]}")


def measure_swaps(report: Report, effort: Effort) -> None:
    """Two hundred swaps under load."""
    nets = Nets()
    with tempfile.TemporaryDirectory() as name:
        folder, base_path = Path(name), Path(name, "digits")
        last = effort.num_swaps + 1
        staged = {
            version: nets.export(version, folder / "staged")
            for version in range(1, last + 1)
        }
        base_path.mkdir()
        staged[1].rename(base_path / "1")
        pss_mb: dict[int, dict[int, float]] = {}
        num_early = min(EARLY_SWAP, max(1, effort.num_swaps - 1))
        read_at = {num_early, effort.num_swaps, *range(50, effort.num_swaps, 50)}
        with serve_digits(base_path, nets) as server:
            bodies = nets.bodies()
            with open_loop(
                server.target, PREDICT, bodies, rate_per_s=effort.rate_per_s
            ) as load:
                started_s = time.monotonic()
                for swap in range(1, effort.num_swaps + 1):
                    due_s = started_s + swap * effort.swap_period_s
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    version = swap + 1
                    staged[version].rename(base_path / str(version))
                    # The one before it still serves; that before that does not.
                    shutil.rmtree(base_path / str(version - 2), ignore_errors=True)
                    if swap in read_at:
                        time.sleep(PSS_PAUSE_S * effort.swap_period_s)
                        pss_mb[swap] = read_tree_pss_mb(server.pid)
                wait_for_state(server, last, "available")
                wait_for_state(server, last - 1, "end")
            changes = read_state_changes(server.output())
            output = server.output()
    exchanges = load.result.exchanges
    faults = load.result.faults(nets.is_right)
    intervals = find_intervals(changes)
    answered = [each for each in exchanges if each.reply is not None]
    during, rest = split_by_overlap(answered, intervals)
    results_ok = not faults["wrong reply"]
    served = {read_version(reply) for reply in {e.reply for e in answered} if reply}
    _print_notes(output, faults, during, rest, pss_mb, server.pid)
    report.record(FAILED, faults.total(), results_ok=results_ok)
    if during:  # few, short swaps may meet no request
        report.record(
            OVERLAPPING,
            p99_ms([each.latency_s for each in during]),
            p99_ms([each.latency_s for each in rest]),
            results_ok=results_ok,
        )
    report.record(
        PSS,
        sum(pss_mb[effort.num_swaps].values()),
        sum(pss_mb[num_early].values()),
        results_ok=results_ok,
    )
    report.record(SERVED, len(served - {1}), results_ok=results_ok)
    report.record(LATENESS, p99_ms([each.lateness_s for each in exchanges]))
    report.record(
        LOAD_TIME,
        float(
            np.median(
                [e.end_s - e.start_s for e in intervals if e.is_load and e.version > 1]
            )
            * 1e3
        ),
    )


def read_version(reply: bytes) -> int:
    """Returns the version that the reply names."""
    response = predict_pb2.PredictResponse.FromString(reply)
    version: int = response.model_spec.version.value
    return version


def _print_notes(
    output: str,
    faults: dict[str, int],
    during: Sequence[Exchange],
    rest: Sequence[Exchange],
    pss_mb: dict[int, dict[int, float]],
    server_pid: int,
) -> None:
    """Prints what explains the rows: where versions ran, what the tree is made of."""
    if faults:
        print(f"  failed: {dict(faults)}")
    backends = re.findall(r"event=placed .*note='runs in (\w+):", output)
    counts = {backend: backends.count(backend) for backend in sorted({*backends})}
    print(f"  placed: {counts}; {len(during)} overlapping requests, {len(rest)} others")
    longest = {
        name: f"{max((each.latency_s for each in some), default=0) * 1e3:.1f} ms"
        for name, some in (("overlapping", during), ("others", rest))
    }
    print(f"  longest answer: {longest}")
    for swap, sizes_mb in sorted(pss_mb.items()):
        print(
            f"  PSS after swap {swap}: {sum(sizes_mb.values()):.0f} MB, "
            f"{sizes_mb.get(server_pid, 0):.0f} MB the server, {len(sizes_mb)} processes"
        )


def measure_slow_import(report: Report, effort: Effort, form: Form) -> None:
    """A version that imports for long comes up beside one that serves."""
    nets = Nets()
    with tempfile.TemporaryDirectory() as name:
        folder, base_path = Path(name), Path(name, "digits")
        nets.export(1, base_path)
        slow = export_slow_import(
            form,
            (DEMO / "digits_net.py").read_text(),
            nets.net(2).state_dict(),
            nets.images[:4],
            folder / "staged" / "2",
            import_s=effort.import_s,
        )
        with serve_digits(base_path, nets) as server:
            with open_loop(
                server.target, PREDICT, nets.bodies(), rate_per_s=effort.rate_per_s
            ) as load:
                time.sleep(effort.quiet_s)
                renamed_s = time.time()
                slow.rename(base_path / "2")
                wait_for_state(server, 1, "end")
                ended_s = time.time()
            output = server.output()
    faults = load.result.faults(nets.is_right)
    window = Interval(renamed_s, ended_s, 2, is_load=True)
    before = Interval(renamed_s - effort.quiet_s, renamed_s, 1, is_load=False)
    answered = [each for each in load.result.exchanges if each.reply is not None]
    during, rest = split_by_overlap(answered, [window])
    quiet, _ = split_by_overlap(rest, [before])
    longest = max(during, key=lambda each: each.latency_s)
    (placed,) = re.findall(r"event=placed servable=digits/2 note='([^']*)'", output)[:1]
    print(
        f"  import-{form}: came up in {ended_s - renamed_s:.1f} s, {placed}; "
        f"longest answer {longest.sent_s - renamed_s:.2f} s after the rename; "
        f"p99 {p99_ms([e.latency_s for e in during]):.1f} ms; generator late by at most "
        f"{max(each.lateness_s for each in during) * 1e3:.1f} ms"
    )
    for change in read_state_changes(output):
        if change.time_s >= renamed_s:
            after_s = change.time_s - renamed_s
            print(f"    {after_s:6.2f} s digits/{change.version} {change.state}")
    if faults:
        print(f"  failed: {dict(faults)}")
    report.record(
        f"swap/longest-answer/import-{form}",
        longest.latency_s * 1e3,
        max(each.latency_s for each in quiet) * 1e3,
        results_ok=not faults,
    )


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""

    def swaps(report: Report) -> None:
        measure_swaps(report, effort)

    def slow_import(form: Form) -> Callable[[Report], None]:
        def measure(report: Report) -> None:
            measure_slow_import(report, effort, form)

        measure.__name__ = f"slow_import_{form}"
        return measure

    return Area("swap", ROWS, (swaps, *map(slow_import, effort.forms)))


if __name__ == "__main__":
    raise SystemExit(main(build_area(Effort())))
