"""`make bench-rpc`: what a Predict costs the server, from the socket to the socket.

The identity model, so that all that is measured is serving: decode, lookup, pin,
deadline, batching, the call of the model, encode, counters. Every server is pinned to
one core and the load comes from another; a server's CPU is user and system time of its
process tree. What is compared takes turns, round by round.

    reference   tests/benchmarks/reference_server.py: grpcio.aio, uvloop, numpy
    grpcio      TFS with --grpc_transport=grpcio
    echo        express alone, which returns what it gets
    alone       the same client without the others
    plain       the same without encryption

A row's name says where the model ran: "front", on the serving loop
(--interpreter_backend=front), or "process". Left to `auto`, a server decides by
measuring, and on a busy machine not twice alike; a server that took the model off its
loop on the way makes its row a missed one. All servers have the allocator
settings that TFS gives itself.

Rates and latencies of small requests are those of two programs that wait for each
other hundreds of times in what another process may take of a core at a time. So there
servers and generators go ahead of everything else, where this user may have them so.

h2load looks at no reply. Before it starts, each server's answer to the same bytes is
compared with plain torch, and afterwards the bytes of all its answers are counted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import torch
import trustme

import tfs.export
from tests.benchmarks import h2load
from tests.benchmarks.fairness import PAUSE_S, flooding, latency_measurer
from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.load import run_closed_loop
from tests.benchmarks.models.identity import Identity
from tests.benchmarks.priority import ahead_of_others
from tests.benchmarks.process_cpu import ProcessTreeCpu
from tests.benchmarks.quiet_client import QuietClient
from tests.benchmarks.row import Goal, Row
from tests.benchmarks.server_process import ServerProcess
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.server.system.malloc import SETTINGS

PREDICT = "/tensorflow.serving.PredictionService/Predict"
READY_TIMEOUT_S = 60.0
# One thread per operator: all servers get the same single core's worth of model. TFS
# sets the allocator up itself; the environment gives them to the others.
ENV = {
    "OMP_NUM_THREADS": "1",
    **{setting.variable: str(setting.value) for setting in SETTINGS},
}

SMALL = (1, 4)
IMAGE = (1, 3, 224, 224)
LARGE = (1, 2_621_440)

ROWS = (
    Row("rpc/small-front-cpu/16-in-flight", "us", Goal("value", "<=", 18)),
    Row("rpc/small-front-rate/16-in-flight", "1/s", Goal("value", ">=", 45_000)),
    Row(
        "rpc/small-front-cpu-vs-reference/16-in-flight",
        "us",
        Goal("ratio", ">=", 15),
        ratio="baseline/value",
    ),
    Row(
        "rpc/small-front-cpu-vs-grpcio/16-in-flight",
        "us",
        Goal("ratio", ">=", 7),
        ratio="baseline/value",
    ),
    Row(
        "rpc/small-front-aio-client-cpu/16-in-flight-deadlines",
        "us",
        Goal("value", "<=", 28),
    ),
    Row("rpc/small-front-p50/one-in-flight", "us", Goal("value", "<=", 150)),
    Row(
        "rpc/image-front-cpu-vs-reference/602kb",
        "us",
        Goal("ratio", "<=", 0.5),
    ),
    Row(
        "rpc/large-front-cpu-vs-reference/10mb",
        "us",
        Goal("ratio", "<=", 0.75),
    ),
    # "Memory flat": what is resident after the last round, beside after the first.
    Row("rpc/large-front-resident/10mb", "MB", Goal("ratio", "<=", 1.05)),
    Row("rpc/small-process-tree-cpu/64-in-flight", "us", Goal("value", "<=", 25)),
    # The floor of the two shapes above: what the transport takes of it all, the
    # kernel's copies in and out included.
    Row("rpc/image-echo-cpu-vs-reference/602kb", "us"),
    Row("rpc/large-echo-cpu-vs-reference/10mb", "us"),
    # One flooding connection moves another's p99 by at most 2x: beside the same quiet
    # client's without the flood.
    Row("rpc/quiet-p99/beside-128-small", "us", Goal("ratio", "<=", 2)),
    Row("rpc/quiet-p99/beside-8-images", "us", Goal("ratio", "<=", 2)),
    # What encryption adds: beside the same without it.
    Row("rpc/small-front-tls-cpu/16-in-flight", "us"),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure; the default is for figures, tests take less.

    Attributes:
        round_s: of load on one server; 10 ms of it are the resolution of CPU time.
        num_rounds: counted; one more comes before them.
        num_first: requests of the first round, whose rate tells how many the next
            ones take: the small ones, images a tenth and 10 MB a hundredth of it.
    """

    round_s: float = 2.0
    num_rounds: int = 5
    num_first: int = 2000


def request_body(inputs: torch.Tensor, model_name: str = "identity") -> bytes:
    """Returns a Predict of `inputs`, as ordinary clients encode it."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model_name
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in inputs.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = inputs.numpy().tobytes()
    return request.SerializeToString()


def is_right(reply: bytes, inputs: torch.Tensor) -> bool:
    """Tells whether the reply's only output is, bit for bit, what torch computes."""
    response = predict_pb2.PredictResponse.FromString(reply)
    if len(response.outputs) != 1:
        return False
    (tensor,) = response.outputs.values()
    if tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, np.float32)
    else:
        values = np.array(tensor.float_val, np.float32)
    expected = Identity()(inputs)["y"].numpy()
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    return shape == expected.shape and np.array_equal(values, expected.reshape(-1))


def split_cores() -> tuple[set[int], set[int]]:
    """Returns the server's core and the generator's; one for both if that is all."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, {cores[-1]}


@contextmanager
def running_on(cores: set[int]) -> Iterator[None]:
    """Keeps this thread, and what it starts, on `cores`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers rightly.

    Attributes:
        reply_bytes: of its answer to `body`.
        is_tls: whether it takes encrypted connections, and no others.
    """

    process: ServerProcess
    body: bytes
    inputs: torch.Tensor
    reply_bytes: int
    is_tls: bool = False


def wait_until_right(
    target: str, body: bytes, inputs: torch.Tensor, root: bytes | None = None
) -> int:
    """Blocks until `body` is answered; returns the size of the answer.

    Encrypted if there is a root certificate.

    Raises:
        TimeoutError: it was not in time; says what came instead.
        ValueError: the answer is wrong.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    fault = "no answer"
    unlimited = [("grpc.max_receive_message_length", -1)]
    with (
        grpc.insecure_channel(target, options=unlimited)
        if root is None
        else grpc.secure_channel(
            target, grpc.ssl_channel_credentials(root), options=unlimited
        )
    ) as channel:
        call = channel.unary_unary(PREDICT, bytes, bytes)
        while time.monotonic() < deadline_s:
            try:
                reply = call(body, timeout=5, wait_for_ready=True)
            except grpc.RpcError as error:
                fault = f"{error.code().name}: {error.details()}"
                time.sleep(0.05)  # it is loading; there is nothing to wait on
                continue
            if reply != body and not is_right(reply, inputs):
                raise ValueError(f"{target} answers wrongly: {reply[:100]!r}")
            return len(reply)
    raise TimeoutError(f"{target} does not serve after {READY_TIMEOUT_S:g} s: {fault}")


class Servers:
    """Starts servers for one shape, all pinned to one core; ends them together.

    Args:
        shape: of the model's inputs.
        go_first: whether they, and the load, are kept from waiting for others.
    """

    def __init__(self, shape: Sequence[int], *, go_first: bool = False) -> None:
        torch.manual_seed(1)
        self._go_first = go_first
        self._inputs = torch.randn(*shape)
        self._body = request_body(self._inputs)
        self._cores, self._generator_cores = split_cores()
        self._stack = ExitStack()
        self._base_path = Path()
        self._processes: list[ServerProcess] = []

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._base_path = Path(folder) / "identity"
        # Two rows, and not alike: what can not be told apart is not batched.
        examples = torch.cat([self._inputs, self._inputs + 1])
        tfs.export.save(Identity().eval(), examples, self._base_path, version=1)
        self._stack.enter_context(running_on(self._generator_cores))
        if self._go_first and not self._stack.enter_context(ahead_of_others()):
            print(
                "  not ahead of other processes: take no rate or p50 if there are any"
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def tfs(self, transport: str, backend: str, *, is_tls: bool = False) -> Server:
        """Starts TFS with one transport and one backend."""
        command = [
            *("tfs", "serve", "--log_level=warning", "--grpc_host=127.0.0.1"),
            *("--any_port=true", "--model_name=identity", "--num_interpreters=1"),
            f"--model_base_path={self._base_path}",
            f"--grpc_transport={transport}",
            f"--interpreter_backend={backend}",
        ]
        root = None
        if is_tls:
            authority = trustme.CA()
            root = authority.cert_pem.bytes()
            config = self._base_path.parent / "ssl.config"
            config.write_text(ssl_config(authority.issue_cert("127.0.0.1")))
            command.append(f"--ssl_config_file={config}")
        return self._start(command, r"(127\.0\.0\.1:\d+)", root)

    def tfs_with(self, shape: Sequence[int]) -> tuple[Server, Server]:
        """Starts TFS with a second model, for inputs of `shape`; both as servers."""
        inputs = torch.randn(*shape)
        second = self._base_path.parent / "second"
        examples = torch.cat([inputs, inputs + 1])
        tfs.export.save(Identity().eval(), examples, second, version=1)
        config = self._base_path.parent / "models.config"
        entries = "".join(
            f'config {{ name: "{path.name}" base_path: "{path}" }} '
            for path in (self._base_path, second)
        )
        config.write_text(f"model_config_list {{ {entries}}}")
        command = [
            *("tfs", "serve", "--log_level=warning", "--grpc_host=127.0.0.1"),
            *("--any_port=true", "--num_interpreters=1", "--grpc_transport=express"),
            *("--interpreter_backend=front", f"--model_config_file={config}"),
        ]
        first = self._start(command, r"(127\.0\.0\.1:\d+)")
        body = request_body(inputs, second.name)
        size = wait_until_right(first.process.target, body, inputs)
        return first, Server(first.process, body, inputs, size)

    def reference(self) -> Server:
        """Starts the reference server."""
        return self._start(["tests.benchmarks.reference_server"])

    def echo(self) -> Server:
        """Starts express alone."""
        return self._start(["tests.benchmarks.express_echo"])

    def left_front(self) -> bool:
        """Tells whether a server took the model off its loop, and says so."""
        left = [
            line
            for server in self._processes
            for line in server.output().splitlines()
            if "event=left_front" in line
        ]
        for line in left:
            print(f"  not in front any more: {line}")
        return bool(left)

    def _start(
        self,
        module: Sequence[str],
        announcement: str = r"listening on (\S+)",
        root: bytes | None = None,
    ) -> Server:
        process = self._stack.enter_context(
            ServerProcess(
                [sys.executable, "-m", *module],
                announcement=announcement,
                env=ENV,
                cores=self._cores,
            )
        )
        self._processes.append(process)
        size = wait_until_right(process.target, self._body, self._inputs, root)
        return Server(process, self._body, self._inputs, size, root is not None)


def h2load_measurer(
    program: h2load.H2load, server: Server, effort: Effort, *, num_in_flight: int
) -> Callable[[], Sample]:
    """Returns the measurer of one server under h2load.

    Its quantities are cpu_us per request, rate in 1/s, and p50_us.
    """
    cpu = ProcessTreeCpu(server.process.pid)
    share = max(1, len(server.body) // 6000)
    num_requests = max(num_in_flight, effort.num_first // share)

    def measure() -> Sample:
        nonlocal num_requests
        before_s = cpu.read_s()
        load = h2load.run(
            program,
            server.process.target,
            PREDICT,
            server.body,
            num_requests=num_requests,
            num_in_flight=num_in_flight,
            is_tls=server.is_tls,
        )
        used_s = cpu.read_s() - before_s
        load.check(server.reply_bytes)
        num_requests = max(num_in_flight, int(load.rate_per_s * effort.round_s))
        return {
            "cpu_us": used_s * 1e6 / load.num_done,
            "rate": load.rate_per_s,
            "p50_us": load.latency_us(0.5),
        }

    return measure


def measure_small(report: Report, effort: Effort) -> None:
    """Four floats, 16 in flight on one connection, and one at a time."""
    program = h2load.find()
    with Servers(SMALL, go_first=True) as servers:
        all_servers = {
            "tfs": servers.tfs("express", "front"),
            "echo": servers.echo(),
            "reference": servers.reference(),
            "grpcio": servers.tfs("grpcio", "front"),
        }
        runs = interleave(
            {
                name: h2load_measurer(program, server, effort, num_in_flight=16)
                for name, server in all_servers.items()
            },
            num_rounds=effort.num_rounds,
        )
        alone = interleave(
            {
                name: h2load_measurer(
                    program, all_servers[name], effort, num_in_flight=1
                )
                for name in ("tfs", "echo")
            },
            num_rounds=effort.num_rounds,
        )
        ok = not servers.left_front()
    ours = runs["tfs"]
    for row, quantity, name in (
        (ROWS[0], "cpu_us", "echo"),
        (ROWS[1], "rate", "echo"),
        (ROWS[2], "cpu_us", "reference"),
        (ROWS[3], "cpu_us", "grpcio"),
    ):
        report.record(row.name, ours[quantity], runs[name][quantity], results_ok=ok)
    report.record(
        ROWS[5].name, alone["tfs"]["p50_us"], alone["echo"]["p50_us"], results_ok=ok
    )


def measure_aio_client(report: Report, effort: Effort) -> None:
    """A real client: grpcio.aio, each call with a deadline, every reply compared."""
    faults: dict[str, int] = {}

    def measurer(server: Server) -> Callable[[], Sample]:
        cpu = ProcessTreeCpu(server.process.pid)
        right: set[bytes] = set()

        def check(reply: bytes) -> bool:
            # Parsing each would take the client's core; it sees few different ones.
            if reply not in right and is_right(reply, server.inputs):
                right.add(reply)
            return reply in right

        def measure() -> Sample:
            before_s = cpu.read_s()
            load = run_closed_loop(
                server.process.target,
                PREDICT,
                server.body,
                num_in_flight=16,
                duration_s=effort.round_s,
                check=check,
            )
            used_s = cpu.read_s() - before_s
            for fault, num in load.faults.items():
                faults[fault] = faults.get(fault, 0) + num
            return {"cpu_us": used_s * 1e6 / max(1, load.num_ok)}

        return measure

    with Servers(SMALL, go_first=True) as servers:
        runs = interleave(
            {
                "tfs": measurer(servers.tfs("express", "front")),
                "reference": measurer(servers.reference()),
            },
            num_rounds=effort.num_rounds,
        )
        ok = not servers.left_front()
    if faults:
        print(f"  wrong under the grpcio.aio client: {faults}")
    report.record(
        ROWS[4].name,
        runs["tfs"]["cpu_us"],
        runs["reference"]["cpu_us"],
        results_ok=ok and not faults,
    )


def measure_large(report: Report, effort: Effort) -> None:
    """An image and 10 MB, four in flight; how much memory the latter takes."""
    program = h2load.find()
    for row, floor, shape in ((ROWS[6], ROWS[10], IMAGE), (ROWS[7], ROWS[11], LARGE)):
        with Servers(shape) as servers:
            ours = servers.tfs("express", "front")
            measure = h2load_measurer(program, ours, effort, num_in_flight=4)
            resident: list[float] = []

            def measure_ours(
                measure: Callable[[], Sample] = measure,
                resident: list[float] = resident,
                pid: int = ours.process.pid,
            ) -> Sample:
                sample = measure()
                resident.append(resident_mb(pid))
                return sample

            runs = interleave(
                {
                    "tfs": measure_ours,
                    "reference": h2load_measurer(
                        program, servers.reference(), effort, num_in_flight=4
                    ),
                    "echo": h2load_measurer(
                        program, servers.echo(), effort, num_in_flight=4
                    ),
                },
                num_rounds=effort.num_rounds,
            )
            ok = not servers.left_front()
        report.record(
            row.name,
            runs["tfs"]["cpu_us"],
            runs["reference"]["cpu_us"],
            results_ok=ok,
        )
        report.record(floor.name, runs["echo"]["cpu_us"], runs["reference"]["cpu_us"])
    # The last shape's: the first counted round is the first with its full load.
    report.record(ROWS[8].name, resident[-1], resident[1])


def measure_process(report: Report, effort: Effort) -> None:
    """Four floats through a process interpreter, with batching."""
    program = h2load.find()
    with Servers(SMALL) as servers:
        runs = interleave(
            {
                name: h2load_measurer(program, server, effort, num_in_flight=64)
                for name, server in {
                    "tfs": servers.tfs("express", "process"),
                    "reference": servers.reference(),
                }.items()
            },
            num_rounds=effort.num_rounds,
        )
    report.record(ROWS[9].name, runs["tfs"]["cpu_us"], runs["reference"]["cpu_us"])


def ssl_config(certificate: trustme.LeafCert) -> str:
    """Returns a server's `SSLConfig` as text."""
    key = certificate.private_key_pem.bytes()
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    texts = {"server_key": key.decode(), "server_cert": chain.decode()}
    return "".join(f"{name}: {json.dumps(text)}\n" for name, text in texts.items())


def measure_tls(report: Report, effort: Effort) -> None:
    """Four floats over an encrypted connection, beside the same in plain text."""
    program = h2load.find()
    with Servers(SMALL) as servers:
        runs = interleave(
            {
                name: h2load_measurer(
                    program,
                    servers.tfs("express", "front", is_tls=name == "tls"),
                    effort,
                    num_in_flight=16,
                )
                for name in ("tls", "plain")
            },
            num_rounds=effort.num_rounds,
        )
        ok = not servers.left_front()
    report.record(
        ROWS[14].name,
        runs["tls"]["cpu_us"],
        runs["plain"]["cpu_us"],
        results_ok=ok,
    )


def measure_fairness(report: Report, effort: Effort) -> None:
    """A quiet client's p99 beside a connection that floods the same server."""
    program = h2load.find()
    with Servers(SMALL) as servers:
        small, image = servers.tfs_with(IMAGE)
        target = small.process.target
        num_requests = max(100, int(effort.round_s / (2 * PAUSE_S)))
        with QuietClient(target, PREDICT, small.body) as client:
            if not is_right(client.ask(), small.inputs):
                raise ValueError("the quiet client got a wrong reply")
            measure = latency_measurer(client, num_requests)

            def beside(server: Server, num_in_flight: int) -> Callable[[], Sample]:
                def measure_beside() -> Sample:
                    with flooding(program, target, PREDICT, server.body, num_in_flight):
                        return measure()

                return measure_beside

            runs = interleave(
                {
                    "alone": measure,
                    "small": beside(small, 128),
                    "images": beside(image, 8),
                },
                num_rounds=effort.num_rounds,
            )
        ok = not servers.left_front()
    for row, name in ((ROWS[12], "small"), (ROWS[13], "images")):
        alone, flooded = runs["alone"]["p99_us"], runs[name]["p99_us"]
        report.record(row.name, flooded, alone, results_ok=ok)


def resident_mb(pid: int) -> float:
    """Returns what the process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s*(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return int(found[1]) / 1024


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""

    def small(report: Report) -> None:
        measure_small(report, effort)

    def aio_client(report: Report) -> None:
        measure_aio_client(report, effort)

    def large(report: Report) -> None:
        measure_large(report, effort)

    def process(report: Report) -> None:
        measure_process(report, effort)

    def fairness(report: Report) -> None:
        measure_fairness(report, effort)

    def tls(report: Report) -> None:
        measure_tls(report, effort)

    return Area("rpc", ROWS, (small, aio_client, large, process, fairness, tls))


if __name__ == "__main__":
    raise SystemExit(main(build_area(Effort())))
