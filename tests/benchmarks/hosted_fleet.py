"""A fleet of real processes under load, for the area ``hosted``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc
import psutil

from tests.benchmarks.open_loop import OpenLoopResult, open_loop
from tests.benchmarks.server_process import ROOT, ServerProcess
from tfs.core.dtype import BOOL, INT64, STRING
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.version.manifest import Producer
from tfs.core.version_directory import commit, new_version
from tfs.proto.grpc.health.v1 import health_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2
from tfs.proto.tfs.v1 import controller_pb2 as pb

PREDICT = "/tensorflow.serving.PredictionService/Predict"
MODEL = "prices"
NUM_SERVERS = 3
ANSWER_S = 60.0
_NUM_ASKING = 8
QUICK = "--interpreter_backend=inline --load_probe_budget_s=0"


def request(model: str = MODEL) -> bytes:
    """Returns a Predict of one key."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    tensor = message.inputs["key"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add(size=1)
    tensor.string_val.append(b"apple")
    return message.SerializeToString()


def version_of(reply: bytes) -> int:
    """Returns the version that answered; 0 if its answer is not that version's."""
    message = predict_pb2.PredictResponse.FromString(reply)
    version = message.model_spec.version.value
    prices = message.outputs["price"].int64_val
    return version if list(prices) == [version] else 0


def write_version(base_path: Path, version: int) -> None:
    """Puts a version into place by a rename; its answer is its number."""
    key = {"key": TensorSpec(STRING, (-1,))}
    row = {"price": TensorSpec(INT64, (-1,)), "found": TensorSpec(BOOL, (-1,))}
    signatures = {"serving_default": Signature(Method.PREDICT, key, row)}
    base_path.mkdir(exist_ok=True)
    # With a manifest: without one, servers wait until files have rested for two seconds.
    with new_version(str(base_path), version) as folder:
        Path(folder, "table.csv").write_text(f"key,price\napple,{version}\n")
        commit(folder, "hashmap", signatures, entry={}, producer=Producer())


def _serving_at_s(address: str, model: str) -> float:
    """Waits until a server or router says that a model answers; returns when it did."""
    question = health_pb2.HealthCheckRequest(service=model).SerializeToString()
    with grpc.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)
        for answer in watch(question, timeout=ANSWER_S):
            status = health_pb2.HealthCheckResponse.FromString(answer).status
            if status == health_pb2.HealthCheckResponse.SERVING:
                return time.monotonic()
    raise RuntimeError(f"{address} stopped to say how {model} fares")


class LocalFleet:
    """``tfs hosted up`` over a folder, whose processes may be killed. For one thread.

    Args:
        folder: Short, because sockets are in it.
        flags: Further flags.
        router: Where its router listens; by default a socket in the folder.

    """

    def __init__(self, folder: Path, *flags: str, router: str = "") -> None:
        self.folder = folder
        self.base_path = folder / MODEL
        self.router = router or f"unix:{folder}/router.sock"
        self._control = f"unix:{folder}/control.sock"
        self._flags = flags
        self._up: ServerProcess | None = None
        self.ready_s = 0.0

    def __enter__(self) -> Self:
        self.start(f"--servers={NUM_SERVERS}", "--memory=3G")
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill_control()
        for each in self.processes("run", "serve", "--config-path"):
            with contextlib.suppress(psutil.Error):
                each.kill()

    def start(self, *flags: str) -> None:
        """Starts it, again after it ended; returns when all of it is ready."""
        command = [
            *(sys.executable, "-m", "tfs", "hosted", "up", f"--folder={self.folder}/f"),
            *(f"--listen={self.router}", f"--control={self._control}"),
            *(f"--server_flags={QUICK}", *flags, *self._flags),
        ]
        begun_s = time.monotonic()
        self._up = ServerProcess(command, announcement=r"tfs: (ready)").__enter__()
        self.ready_s = time.monotonic() - begun_s

    def kill_control(self) -> None:
        """Kills controller and synchronizer; servers and router go on."""
        if self._up is not None:
            os.kill(self._up.pid, signal.SIGKILL)
            self._up.__exit__(None, None, None)
            self._up = None

    def hide_store(self) -> None:
        """Takes the store's files away, with its log, which has the last changes."""
        (away := self.folder / "away").mkdir(exist_ok=True)
        for each in (self.folder / "f").glob("fleet.db*"):
            each.rename(away / each.name)

    def put_store_back(self) -> None:
        """Puts them back, in the place of what somebody made there meanwhile."""
        for each in (self.folder / "f").glob("fleet.db*"):
            each.unlink()
        for each in (self.folder / "away").iterdir():
            each.rename(self.folder / "f" / each.name)

    def start_again(self, process: psutil.Process) -> None:
        """Kills a process and starts another as it was started; waits for the router."""
        command = process.cmdline()
        process.kill()
        process.wait(ANSWER_S)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        quiet = subprocess.DEVNULL
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=quiet, stderr=quiet)
        with grpc.insecure_channel(self.router) as channel:
            grpc.channel_ready_future(channel).result(ANSWER_S)

    def processes(self, *words: str) -> Sequence[psutil.Process]:
        """Returns the fleet's processes whose command line has one of these words."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = each.cmdline()
                ours = any(str(self.folder) in part for part in line)
                if ours and any(word in line for word in words):
                    found.append(each)
        return found

    def servers(self) -> Sequence[psutil.Process]:
        """Returns the servers that run."""
        return self.processes("serve")

    def addresses(self) -> Sequence[str]:
        """Returns where the servers listen."""
        sockets = (self.folder / "f" / "jobs" / "local").glob("*/grpc.sock")
        return [f"unix:{each}" for each in sockets]

    def ask(
        self,
        method: str,
        message: Any,
        *,
        until_s: float = ANSWER_S,
        wait_s: float = ANSWER_S,
    ) -> pb.Op:
        """Makes a change, repeating it under one request id while nobody answers.

        Raises:
            RuntimeError: It was refused, or is not in force in time.

        """
        message.edit.request_id = uuid.uuid4().hex
        message.edit.wait_s = wait_s
        deadline_s = time.monotonic() + until_s
        while True:
            with grpc.insecure_channel(self._control) as channel:
                call: Any = channel.unary_unary(
                    f"/tfs.v1.Controller/{method}", None, None
                )
                try:
                    reply = call(
                        message.SerializeToString(),
                        timeout=until_s + 5,
                        wait_for_ready=False,
                    )
                except grpc.RpcError as error:
                    code = error.code()
                    if (
                        code is not grpc.StatusCode.UNAVAILABLE
                        or time.monotonic() > deadline_s
                    ):
                        raise RuntimeError(f"{method}: {error}") from error
                    time.sleep(0.1)
                    continue
            op = pb.Op.FromString(reply)
            if op.waits_for and wait_s:
                raise RuntimeError(f"{method} waits for {op.waits_for}")
            return op

    def add_model(self, *, is_written: bool = False) -> None:
        """Adds the model with its first version, on all servers."""
        if not is_written:
            write_version(self.base_path, 1)
        hints = pb.Hints(
            min_replicas=NUM_SERVERS, max_replicas=NUM_SERVERS, memory_bytes=1 << 24
        )
        self.ask(
            "AddModel",
            pb.AddModelRequest(model=MODEL, base_path=str(self.base_path), hints=hints),
        )

    def register(self, num_rare: int, num_resident: int) -> Sequence[str]:
        """Adds models of one table, most of them on demand; returns those that are not."""
        (folder := self.folder / "models").mkdir()
        write_version(folder / "rare0", 1)
        resident = [f"resident{each}" for each in range(num_resident)]
        rare = [f"rare{each}" for each in range(num_rare)]
        for name in (*rare[1:], *resident):
            shutil.copytree(folder / "rare0", folder / name)
        with ThreadPoolExecutor(_NUM_ASKING) as threads:
            for _ in threads.map(partial(self._add, "residency: ON_DEMAND"), rare):
                pass
            for _ in threads.map(partial(self._add, ""), resident):
                pass
        self.ask("AddVersion", pb.AddVersionRequest(model=rare[-1], version=1))
        return resident

    def _add(self, config: str, name: str) -> None:
        added = pb.AddModelRequest(
            model=name,
            base_path=str(self.folder / "models" / name),
            config=config,
            hints=pb.Hints(min_replicas=1, memory_bytes=1 << 20),
        )
        self.ask("AddModel", added, wait_s=0.0)

    def answering_version(self, model: str) -> int:
        """Returns the version of a model that answers a request; 0 if none does right."""
        with grpc.insecure_channel(self.router) as channel:
            predict: Any = channel.unary_unary(PREDICT, None, None)
            return version_of(predict(request(model), timeout=ANSWER_S))

    def wait_for_version(self, model: str, version: int) -> None:
        """Blocks until a version answers.

        Raises:
            TimeoutError: it has not in time.
        """
        deadline_s = time.monotonic() + ANSWER_S
        while self.answering_version(model) != version:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{model}/{version} does not answer")
            time.sleep(0.01)

    def route_change_s(self, model: str) -> float:
        """Adds a model; returns how long after its first server the router has it."""
        write_version(self.folder / "models" / model, 1)
        addresses = [self.router, *self.addresses()]
        with ThreadPoolExecutor(len(addresses)) as threads:
            at_s = [
                threads.submit(_serving_at_s, address, model) for address in addresses
            ]
            self._add("", model)
            routed_s, *loaded_s = (each.result(ANSWER_S) for each in at_s)
        return routed_s - min(loaded_s)

    @contextlib.contextmanager
    def load(
        self, rate_per_s: float, address: str = ""
    ) -> Iterator[list[OpenLoopResult]]:
        """Sends requests meanwhile; the list has the result after the block."""
        results: list[OpenLoopResult] = []
        with open_loop(
            address or self.router, PREDICT, [request()], rate_per_s=rate_per_s
        ) as loop:
            yield results
        results.append(loop.result)
