"""`make bench-http`: what a Predict over HTTP costs the server, from socket to socket.

As in `make bench-rpc`, whose identity model and ways it has: every server is pinned to
one core, the load (h2load --h1, in one row wrk) comes from another, a server's CPU is user and system
time of its process tree, and what is compared takes turns. Requests in flight are
connections, one request each, as HTTP's clients have it.

    reference   tests/benchmarks/fastapi_server.py: FastAPI on uvicorn, httptools, uvloop
    express     the same server's gRPC, by the same h2load over HTTP/2
    parse       orjson.loads and numpy.asarray of the same body, and nothing else
    decode      orjson.loads and base64.b64decode of the same body, and nothing else

Beside it: the Open Inference Protocol by both transports, a small gRPC Predict while the
metrics of 1,000 models are read, the page of 10,000, and what tracing costs. There the baseline is the same
server without the extra ``otel``, and a collector that takes whatever is sent.

Before it starts, each server's answer to the same bytes is compared with plain torch, and
afterwards the bytes of all its answers are counted. The image in JSON is answered as
.npy: its row is about reading JSON.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import io
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import grpc
import msgpack
import numpy as np
import orjson
import torch

import tfs.export
from tests.benchmarks import h2load, wrk
from tests.benchmarks.fairness import latency_measurer
from tests.benchmarks.harness import Area, Report, Sample, interleave, main
from tests.benchmarks.many_models import ManyModels
from tests.benchmarks.models.identity import Identity
from tests.benchmarks.priority import ahead_of_others
from tests.benchmarks.process_cpu import ProcessTreeCpu
from tests.benchmarks.quiet_client import QuietClient
from tests.benchmarks.row import Goal, Row
from tests.benchmarks.rpc import (
    ENV,
    IMAGE,
    READY_TIMEOUT_S,
    SMALL,
    Effort,
    Server,
    h2load_measurer,
    request_body,
    running_on,
    split_cores,
    wait_until_right,
)
from tests.benchmarks.rpc import PREDICT as RPC_PREDICT
from tests.benchmarks.server_process import ServerProcess
from tests.e2e.serving import free_port
from tfs.proto.inference import open_inference_grpc_pb2 as pb

PREDICT = "/v1/models/identity:predict"
INFER = "/v2/models/identity/infer"
INFER_RPC = "/inference.GRPCInferenceService/ModelInfer"
JSON = "application/json"
OIP = "application/octet-stream"
NPY = "application/x-npy"
MSGPACK = "application/msgpack"

ROWS = (
    Row("http/json-cpu/16-in-flight", "us", Goal("value", "<=", 25)),
    Row(
        "http/json-cpu-vs-reference/16-in-flight",
        "us",
        Goal("ratio", ">=", 5),
        ratio="baseline/value",
    ),
    # The same by the other generator.
    Row("http/json-cpu-by-wrk/16-in-flight", "us", Goal("value", "<=", 25)),
    Row("http/npy-cpu/16-in-flight", "us", Goal("value", "<=", 20)),
    Row("http/msgpack-cpu/16-in-flight", "us", Goal("value", "<=", 20)),
    Row("http/json-p50-vs-express/one-in-flight", "us", Goal("ratio", "<=", 1.1)),
    Row("http/image-npy-cpu-vs-express/602kb", "us", Goal("ratio", "<=", 1.1)),
    Row("http/image-json-cpu-vs-parse/602kb", "us", Goal("ratio", "<=", 1.3)),
    Row("http/oip-grpc-cpu/16-in-flight", "us", Goal("value", "<=", 14)),
    Row("http/oip-binary-cpu/16-in-flight", "us", Goal("value", "<=", 22)),
    Row("http/metrics-cpu/1000-models", "s", Goal("value", "<=", 0.5)),
    Row("http/small-p99-beside-metrics/1000-models", "us", Goal("ratio", "<=", 1.5)),
    Row("http/tracing-off-cpu/16-in-flight", "us", Goal("ratio", "<=", 1.03)),
    Row("http/tracing-1-percent-cpu/16-in-flight", "us", Goal("ratio", "<=", 1.1)),
    Row("http/page-first-paint/10000-models", "s", Goal("value", "<=", 0.5)),
    Row("http/page-update/10000-models", "KB", Goal("value", "<=", 50)),
    # Of the loop, as a client sees it; the best that it sees otherwise is not counted.
    Row("http/metrics-longest-stop/1000-models", "ms", Goal("value", "<=", 5)),
    Row("http/b64-cpu-vs-decode/100kb", "us"),
)
JPEG_BYTES = 100_000
NUM_TABLES = 999
NUM_ON_PAGE = 9999
SCRAPE_PAUSE_S = 0.5  # Prometheus asks every fifteen seconds


@dataclass(frozen=True, slots=True)
class Question:
    """A Predict request over HTTP. Immutable.

    Attributes:
        body: what is sent.
        content_type: its form.
        accept: the form of the answer.
        path: what is asked.
        json_bytes: how much of the body is JSON, where that is told.
    """

    body: bytes
    content_type: str
    accept: str
    path: str = PREDICT
    json_bytes: int = 0

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": self.content_type, "accept": self.accept}
        if self.json_bytes:
            headers["inference-header-content-length"] = str(self.json_bytes)
        return headers


def question(inputs: torch.Tensor, form: str, accept: str = "") -> Question:
    """Returns a Predict of `inputs` in that form, to be answered in it or another."""
    if form == JSON:
        body = orjson.dumps({"instances": inputs.tolist()})
    elif form == NPY:
        file = io.BytesIO()
        np.save(file, inputs.numpy())
        body = file.getvalue()
    elif form == OIP:
        elements = inputs.numpy().tobytes()
        tensor = {
            "name": "x",
            "datatype": "FP32",
            "shape": list(inputs.shape),
            "parameters": {"binary_data_size": len(elements)},
        }
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        text = orjson.dumps(asked)
        return Question(text + elements, form, form, INFER, len(text))
    else:
        tensor = {
            "dtype": "float32",
            "shape": list(inputs.shape),
            "data": inputs.numpy().tobytes(),
        }
        body = msgpack.packb({"inputs": {"x": tensor}})
    return Question(body, form, accept or form)


def is_right(reply: bytes, form: str, inputs: torch.Tensor) -> bool:
    """Tells whether a reply in that form is, value for value, what torch computes."""
    expected = Identity()(inputs)["y"].numpy()
    if form == JSON:
        (values,) = orjson.loads(reply).values()
        found = np.asarray(values, np.float32)
    elif form == NPY:
        found = np.load(io.BytesIO(reply))
    elif form == OIP:
        whole = reply.decode("latin-1")  # a character for each byte
        answer, end = json.JSONDecoder().raw_decode(whole)
        found = np.frombuffer(reply[end:], np.float32)
        found = found.reshape(answer["outputs"][0]["shape"])
    else:
        (tensor,) = msgpack.unpackb(reply)["outputs"].values()
        found = np.frombuffer(tensor["data"], np.float32).reshape(tensor["shape"])
    return found.shape == expected.shape and np.array_equal(found, expected)


def ask(target: str, asked: Question, inputs: torch.Tensor) -> int:
    """Asks once; returns the size of the answer.

    Raises:
        ValueError: the answer is wrong.
        OSError, http.client.HTTPException: there is none.
    """
    body = post(target, asked)
    if not is_right(body, asked.accept, inputs):
        raise ValueError(f"{target} answers wrongly: {body[:100]!r}")
    return len(body)


def post(target: str, asked: Question) -> bytes:
    """Asks once; returns the answer.

    Raises:
        ValueError: it is an error.
        OSError, http.client.HTTPException: there is none.
    """
    connection = http.client.HTTPConnection(target, timeout=READY_TIMEOUT_S)
    try:
        connection.request("POST", asked.path, asked.body, asked.headers)
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != 200:
        raise ValueError(f"{target} answers {reply.status}: {body[:100]!r}")
    return body


class Servers:
    """Starts servers for one shape, all pinned to one core; ends them together.

    Args:
        shape: of the model's inputs.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        torch.manual_seed(1)
        self.inputs = torch.randn(*shape)
        self._cores, self._generator_cores = split_cores()
        self._stack = ExitStack()
        self._base_path = Path()

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(TemporaryDirectory())
        self._base_path = Path(folder) / "identity"
        examples = torch.cat([self.inputs, self.inputs + 1])
        tfs.export.save(Identity().eval(), examples, self._base_path, version=1)
        self._stack.enter_context(running_on(self._generator_cores))
        if not self._stack.enter_context(ahead_of_others()):
            print("  not ahead of other processes: take no p50 if there are any")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def tfs(
        self, env: Mapping[str, str] | None = None, num_tables: int = 0
    ) -> tuple[Server, str]:
        """Starts TFS; returns its gRPC, and where its HTTP listens.

        Args:
            env: more variables.
            num_tables: of models beside the identity.
        """
        port = free_port()
        others = ManyModels(self._base_path.parent, num_tables, 0)
        others.stage(1)
        others.publish(1)
        config = others.write_config()
        own = f'config {{ name: "identity" base_path: "{self._base_path}" }}'
        text = config.read_text().replace(
            "model_config_list {", f"model_config_list {{ {own}"
        )
        config.write_text(text)
        process = self._start(
            [
                *("tfs", "serve", "--log_level=warning", "--grpc_host=127.0.0.1"),
                *("--any_port=true", "--num_interpreters=1"),
                f"--model_config_file={config}",
                *("--interpreter_backend=front", f"--rest_api_port={port}"),
            ],
            r"(127\.0\.0\.1:\d+)",
            env,
        )
        body = request_body(self.inputs)
        size = wait_until_right(process.target, body, self.inputs)
        return Server(process, body, self.inputs, size), f"127.0.0.1:{port}"

    def reference(self) -> ServerProcess:
        """Starts the reference."""
        return self._start(["tests.benchmarks.fastapi_server"])

    def _start(
        self,
        module: Sequence[str],
        announcement: str = r"listening on (\S+)",
        env: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        return self._stack.enter_context(
            ServerProcess(
                [sys.executable, "-m", *module],
                announcement=announcement,
                env={**ENV, **(env or {})},
                cores=self._cores,
            )
        )

    def read_measurer(
        self, read: Callable[[], object], num_rounds: int
    ) -> Callable[[], Sample]:
        """Returns the measurer of reading a body, and nothing else, on their core."""

        def measure() -> Sample:
            with running_on(self._cores):
                begun_s = time.thread_time()
                for _ in range(num_rounds):
                    read()
                used_s = time.thread_time() - begun_s
            return {"cpu_us": used_s * 1e6 / num_rounds}

        return measure


def http_measurer(
    program: h2load.H2load,
    pid: int,
    target: str,
    asked: Question,
    reply_bytes: int,
    effort: Effort,
    *,
    num_in_flight: int,
) -> Callable[[], Sample]:
    """Returns the measurer of one server's answers to one question under h2load."""
    cpu = ProcessTreeCpu(pid)
    num_requests = max(
        num_in_flight, effort.num_first // max(1, len(asked.body) // 6000)
    )

    def measure() -> Sample:
        nonlocal num_requests
        before_s = cpu.read_s()
        load = h2load.send(
            program,
            f"http://{target}{asked.path}",
            asked.body,
            [f"{name}: {value}" for name, value in asked.headers.items()],
            num_requests=num_requests,
            num_connections=num_in_flight,
            is_http1=True,
        )
        used_s = cpu.read_s() - before_s
        load.check(reply_bytes, prefix_bytes=0)
        num_requests = max(num_in_flight, int(load.rate_per_s * effort.round_s))
        return {
            "cpu_us": used_s * 1e6 / load.num_done,
            "p50_us": load.latency_us(0.5),
        }

    return measure


def measure_small(report: Report, effort: Effort) -> None:
    """Four floats, in each form with 16 in flight, and one at a time."""
    program = h2load.find()
    with Servers(SMALL) as servers:
        ours, target = servers.tfs()
        reference = servers.reference()
        pid = ours.process.pid

        def measurer(form: str, num_in_flight: int = 16) -> Callable[[], Sample]:
            asked = question(servers.inputs, form)
            return http_measurer(
                program,
                pid,
                target,
                asked,
                ask(target, asked, servers.inputs),
                effort,
                num_in_flight=num_in_flight,
            )

        in_json = question(servers.inputs, JSON)

        runs = interleave(
            {
                "json": measurer(JSON),
                "npy": measurer(NPY),
                "msgpack": measurer(MSGPACK),
                "oip": measurer(OIP),
                "oip_grpc": infer_measurer(program, ours, effort),
                "reference": http_measurer(
                    program,
                    reference.pid,
                    reference.target,
                    in_json,
                    ask(reference.target, in_json, servers.inputs),
                    effort,
                    num_in_flight=16,
                ),
            },
            num_rounds=effort.num_rounds,
        )
        alone = interleave(
            {
                "json": measurer(JSON, 1),
                "express": h2load_measurer(program, ours, effort, num_in_flight=1),
            },
            num_rounds=effort.num_rounds,
        )
    ours_us, baseline = runs["json"]["cpu_us"], runs["reference"]["cpu_us"]
    report.record(ROWS[0].name, ours_us, baseline)
    report.record(ROWS[1].name, ours_us, baseline)
    report.record(ROWS[3].name, runs["npy"]["cpu_us"], baseline)
    report.record(ROWS[4].name, runs["msgpack"]["cpu_us"], baseline)
    report.record(ROWS[8].name, runs["oip_grpc"]["cpu_us"], baseline)
    report.record(ROWS[9].name, runs["oip"]["cpu_us"], baseline)
    report.record(ROWS[5].name, alone["json"]["p50_us"], alone["express"]["p50_us"])


def measure_by_wrk(report: Report, effort: Effort) -> None:
    """Four floats as JSON, with 16 in flight, from wrk."""
    with Servers(SMALL) as servers:
        ours, target = servers.tfs()
        asked = question(servers.inputs, JSON)
        reply_bytes = ask(target, asked, servers.inputs)
        cpu = ProcessTreeCpu(ours.process.pid)

        def measure() -> Sample:
            before_s = cpu.read_s()
            load = wrk.send(
                f"http://{target}{asked.path}",
                asked.body.decode(),
                asked.headers,
                num_connections=16,
                duration_s=max(1, round(effort.round_s)),
            )
            load.check(reply_bytes)
            return {"cpu_us": (cpu.read_s() - before_s) * 1e6 / load.num_done}

        runs = interleave({"json": measure}, num_rounds=effort.num_rounds)
    report.record(ROWS[2].name, runs["json"]["cpu_us"])


def measure_image(report: Report, effort: Effort) -> None:
    """An image, four in flight, as .npy and as JSON."""
    program = h2load.find()
    with Servers(IMAGE) as servers:
        ours, target = servers.tfs()
        asked = {
            "npy": question(servers.inputs, NPY),
            "json": question(servers.inputs, JSON, NPY),
        }
        measurers: Mapping[str, Callable[[], Sample]] = {
            name: http_measurer(
                program,
                ours.process.pid,
                target,
                each,
                ask(target, each, servers.inputs),
                effort,
                num_in_flight=4,
            )
            for name, each in asked.items()
        }
        num_parsed = max(1, effort.num_first // 100)

        def parse() -> object:
            body = asked["json"].body
            return np.asarray(orjson.loads(body)["instances"], np.float32)

        runs = interleave(
            {
                **measurers,
                "express": h2load_measurer(program, ours, effort, num_in_flight=4),
                "parse": servers.read_measurer(parse, num_parsed),
            },
            num_rounds=effort.num_rounds,
        )
    for row, name, baseline in (
        (ROWS[6], "npy", "express"),
        (ROWS[7], "json", "parse"),
    ):
        report.record(row.name, runs[name]["cpu_us"], runs[baseline]["cpu_us"])


def measure_b64(report: Report, effort: Effort) -> None:
    """A key of a lookup table that is as long as a JPEG."""
    program = h2load.find()
    with Servers(SMALL) as servers:
        ours, target = servers.tfs(num_tables=1)
        wait_until_ready(target)
        path = "/v1/models/table0:predict"

        def asked_for(key: bytes) -> Question:
            text = base64.b64encode(key).decode()
            body = orjson.dumps({"instances": [{"b64": text}]})
            return Question(body, JSON, JSON, path)

        sizes = {}
        for key, is_found in ((b"a", True), (random.randbytes(JPEG_BYTES), False)):
            asked = asked_for(key)
            reply = post(target, asked)
            (answer,) = orjson.loads(reply)["predictions"]
            if answer["found"] is not is_found:
                raise ValueError(f"{target} answers wrongly: {reply[:100]!r}")
            sizes[key] = len(reply)

        def decode() -> object:
            (row,) = orjson.loads(asked.body)["instances"]
            return base64.b64decode(row["b64"])

        runs = interleave(
            {
                "json": http_measurer(
                    program,
                    ours.process.pid,
                    target,
                    asked,
                    sizes[key],
                    effort,
                    num_in_flight=4,
                ),
                "decode": servers.read_measurer(decode, effort.num_first),
            },
            num_rounds=effort.num_rounds,
        )
    report.record(ROWS[17].name, runs["json"]["cpu_us"], runs["decode"]["cpu_us"])


def infer_measurer(
    program: h2load.H2load, server: Server, effort: Effort
) -> Callable[[], Sample]:
    """Returns the measurer of a server's ModelInfer, 16 in flight on one connection."""
    cpu = ProcessTreeCpu(server.process.pid)
    request = pb.ModelInferRequest(model_name="identity")
    request.inputs.add(name="x", datatype="FP32", shape=server.inputs.shape)
    request.raw_input_contents.append(server.inputs.numpy().tobytes())
    body, target = request.SerializeToString(), server.process.target
    with grpc.insecure_channel(target) as channel:
        reply: bytes = channel.unary_unary(INFER_RPC, bytes, bytes)(body)
    (contents,) = pb.ModelInferResponse.FromString(reply).raw_output_contents
    expected = Identity()(server.inputs)["y"].numpy().tobytes()
    if contents != expected:
        raise ValueError(f"{target} answers wrongly: {reply[:100]!r}")
    num_requests = effort.num_first

    def measure() -> Sample:
        nonlocal num_requests
        before_s = cpu.read_s()
        load = h2load.run(
            program,
            target,
            INFER_RPC,
            body,
            num_requests=num_requests,
            num_in_flight=16,
        )
        used_s = cpu.read_s() - before_s
        load.check(len(reply))
        num_requests = max(16, int(load.rate_per_s * effort.round_s))
        return {"cpu_us": used_s * 1e6 / load.num_done}

    return measure


def measure_metrics(report: Report, effort: Effort) -> None:
    """The metrics of 1,000 models, and a quiet client's Predict while they are read."""
    with Servers(SMALL) as servers:
        ours, target = servers.tfs(num_tables=NUM_TABLES)
        cpu = ProcessTreeCpu(ours.process.pid)

        def read() -> bytes:
            return get(target, "/metrics")

        wait_until_ready(target)
        pages = []
        for _ in range(effort.num_rounds):
            before_s = cpu.read_s()
            read()
            pages.append(cpu.read_s() - before_s)
        with QuietClient(ours.process.target, RPC_PREDICT, ours.body) as client:
            measure = latency_measurer(client, max(100, int(effort.round_s / 0.002)))

            def beside() -> Sample:
                done = threading.Event()

                def go_on() -> None:
                    while not done.wait(SCRAPE_PAUSE_S):
                        read()

                reader = threading.Thread(target=go_on)
                reader.start()
                try:
                    return measure()
                finally:
                    done.set()
                    reader.join()

            runs = interleave(
                {"alone": measure, "beside": beside}, num_rounds=effort.num_rounds
            )
            with_ordinary_priority(ours.process.pid)
            stops_ms = [longest_stop_ms(client, read) for _ in range(effort.num_rounds)]
    report.record(ROWS[16].name, statistics.median(stops_ms))
    report.record(ROWS[10].name, statistics.median(pages))
    report.record(ROWS[11].name, runs["beside"]["p99_us"], runs["alone"]["p99_us"])


def with_ordinary_priority(pid: int) -> None:
    """Has the threads of a process take turns: of two in the real-time class, one waits
    until the other blocks."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


def longest_stop_ms(client: QuietClient, read: Callable[[], object]) -> float:
    """Asks one request after the other while something is read; returns the longest wait."""
    taken_us: list[float] = []
    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        taken_us += client.latencies_us(10, 0.0)
    reader.join()
    return (max(taken_us) - min(taken_us)) / 1000


def measure_page(report: Report) -> None:
    """The page of 10,000 models: the first one that is shown, and an update of it."""
    with Servers(SMALL) as servers:
        _, target = servers.tfs(num_tables=NUM_ON_PAGE)
        wait_until_ready(target)
        begun_s = time.monotonic()
        get(target, "/")
        painted_s = time.monotonic() - begun_s
        update = get(target, "/?part=live")
    report.record(ROWS[14].name, painted_s)
    report.record(ROWS[15].name, len(update) / 1000)


def get(target: str, path: str) -> bytes:
    """Returns what is there.

    Raises:
        OSError: nothing is.
    """
    url = f"http://{target}{path}"
    with urllib.request.urlopen(url, timeout=READY_TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body


def wait_until_ready(target: str) -> None:
    """Blocks until all models of the start have settled.

    Raises:
        TimeoutError: they have not in time.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            get(target, "/readyz")
        except urllib.error.HTTPError:
            if time.monotonic() > deadline_s:
                raise TimeoutError("the models have not settled") from None
            time.sleep(0.5)
        else:
            return


@contextmanager
def collector() -> Iterator[str]:
    """Takes whatever is posted to it; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def measure_tracing(report: Report, effort: Effort) -> None:
    """A small gRPC Predict: without the extra, with it, and with 1 % sampled."""
    program = h2load.find()
    with Servers(SMALL) as servers, TemporaryDirectory() as folder, collector() as url:
        missing = Path(folder) / "opentelemetry"
        missing.mkdir()
        (missing / "__init__.py").write_text("raise ImportError(__name__)\n")
        sampled = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
        }
        environments = {
            "without": {"PYTHONPATH": folder},
            "off": {},
            "sampled": sampled,
        }
        runs = interleave(
            {
                name: h2load_measurer(
                    program, servers.tfs(env)[0], effort, num_in_flight=16
                )
                for name, env in environments.items()
            },
            num_rounds=effort.num_rounds,
        )
    without_us = runs["without"]["cpu_us"]
    report.record(ROWS[12].name, runs["off"]["cpu_us"], without_us)
    report.record(ROWS[13].name, runs["sampled"]["cpu_us"], without_us)


def build_area(effort: Effort) -> Area:
    """Returns the area, measured with that effort."""

    def small(report: Report) -> None:
        measure_small(report, effort)

    def by_wrk(report: Report) -> None:
        measure_by_wrk(report, effort)

    def image(report: Report) -> None:
        measure_image(report, effort)

    def b64(report: Report) -> None:
        measure_b64(report, effort)

    def metrics(report: Report) -> None:
        measure_metrics(report, effort)

    def page(report: Report) -> None:
        measure_page(report)

    def tracing(report: Report) -> None:
        measure_tracing(report, effort)

    return Area("http", ROWS, (small, by_wrk, image, b64, metrics, page, tracing))


if __name__ == "__main__":
    raise SystemExit(main(build_area(Effort())))
