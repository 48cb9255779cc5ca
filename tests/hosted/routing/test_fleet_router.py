"""What every router promises, asked of each: the right server, whatever happens to others."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hosted.routing.engines import skip_without_envoy
from tests.hosted.routing.fake_servers import FakeServer
from tfs.codec import wire
from tfs.core.call import ListenerOptions
from tfs.core.clock import MonotonicClock
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.express.transport import ExpressTransport
from tfs.hosted.routing import envoy_config
from tfs.hosted.routing.ads import AdsServer
from tfs.hosted.routing.envoy_config import EnvoyOptions, address_of
from tfs.hosted.routing.envoy_router import EnvoyRouter
from tfs.hosted.routing.fleet_router import FORWARDED, FleetRouter
from tfs.hosted.routing.job_requests import JobRequests
from tfs.hosted.routing.python_router import PythonRouter
from tfs.proto.inference import open_inference_grpc_pb2 as oip_pb2
from tfs.proto.tensorflow_serving.apis import (
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
)
from tfs.testing.patience import PATIENCE_S

PREDICT = "/tensorflow.serving.PredictionService/Predict"
HEDGE_AFTER_S = 0.2


def predict(model: str, size: int = 0) -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].tensor_content = b"x" * size
    return request.SerializeToString()


class Bench:
    """A router before three servers."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.servers = {name: FakeServer(folder, name) for name in "abc"}
        for each in self.servers.values():
            each.start()
        self.address = f"unix:{folder}/router.sock"
        self.loop = ServingLoop()
        self.routers = self.make(folder)
        self.transport = ExpressTransport(self.loop, stats=Stats())
        self.loop.start()
        methods = {m.path: m for each in self.routers for m in each.methods()}
        listeners = [each for router in self.routers for each in router.listeners]
        self.transport.start(listeners, methods)
        self.channel = grpc.insecure_channel(
            self.address, (("grpc.max_receive_message_length", -1),)
        )

    def make(self, folder: Path) -> list[FleetRouter]:
        jobs = JobRequests(self.loop)
        if self.kind == "python":
            listeners = [ListenerOptions("listen", self.address)]
            return [PythonRouter(listeners, self.loop, jobs, 0.5)]
        own = PythonRouter([], self.loop, jobs, 0.5)
        options = EnvoyOptions(self.address, f"{folder}/envoy", HEDGE_AFTER_S)
        return [own, EnvoyRouter(options, self.loop, AdsServer())]

    def route(self, **routes: str) -> None:
        """Sets routes, by the names of servers; returns when the router has them."""
        found = {
            model: tuple(self.servers[each].address for each in names)
            for model, names in routes.items()
        }
        for router in self.routers:
            self.loop.post(partial(router.set_routes, found))
        for model, names in routes.items():
            if names:
                self.until(partial(self._is_on, model, names))

    def _is_on(self, model: str, names: str) -> bool:
        return self.ask(model)[:1] in names

    def until(self, holds: Callable[[], bool]) -> None:
        patient = threading.Event()
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                if holds():
                    return
            except grpc.RpcError as error:
                last = error
                assert time.monotonic() < until_s, last
            assert not patient.wait(0.02)

    def ask(
        self,
        model: str,
        *,
        message: bytes = b"",
        method: str = PREDICT,
        timeout_s: float = 20.0,
        metadata: Mapping[str, str] | None = None,
        compression: grpc.Compression | None = None,
    ) -> str:
        """Returns the name of the server that answered, and a colon."""
        call: Any = self.channel.unary_unary(method, None, None)
        sent = message or predict(model)
        reply = call(
            sent,
            timeout=timeout_s,
            metadata=tuple((metadata or {}).items()) or None,
            compression=compression,
        )
        assert reply[2:] == sent
        return str(reply[:2].decode())

    def refused(self, model: str, **how: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(model, **how)
        error: Any = caught.value
        return error.code(), error.details()

    def close(self) -> None:
        deadline_s = MonotonicClock.now() + PATIENCE_S
        self.channel.close()
        for router in self.routers:
            router.drain(deadline_s)
            router.close()
        self.transport.close()
        self.loop.close(deadline_s)
        for each in self.servers.values():
            each.stop()


@pytest.fixture(params=["python", "envoy"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "envoy":
        skip_without_envoy()
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        made = Bench(request.param, Path(folder))
        yield made
        made.close()


def test_requests_go_by_their_model_to_who_has_it(bench: Bench) -> None:
    """Whatever the method, however large, and wherever in the message the name is."""
    bench.route(m="ab", n="c")
    assert {bench.ask("m") for _ in range(40)} <= {"a:", "b:"}
    multi = inference_pb2.MultiInferenceRequest()
    multi.tasks.add().model_spec.name = "n"
    multi.tasks.add().model_spec.name = "n"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "n"
    late = predict_pb2.PredictRequest()
    late.inputs["x"].tensor_content = b"x" * 9000
    late.inputs["y"].tensor_content = b"x" * 300
    name_last = late.SerializeToString() + predict("n")
    for method in FORWARDED:
        message = predict("n")
        if method.endswith("MultiInference"):
            message = multi.SerializeToString()
        if method.endswith("GetModelStatus"):
            message = status.SerializeToString()
        if method.startswith("/inference."):
            infer = oip_pb2.ModelInferRequest(raw_input_contents=[b"x" * 9000])
            message = infer.SerializeToString() + wire.delimited(1, b"n")
        assert bench.ask("n", method=method, message=message) == "c:"
    assert bench.ask("n", message=name_last) == "c:"
    assert bench.ask("n", message=predict("n", 20 << 20)) == "c:"
    assert {method for method, _ in bench.servers["c"].requests} == set(FORWARDED)


def test_what_callers_send_besides_arrives(bench: Bench) -> None:
    """Metadata, and what is left of the deadline; an error comes back with its words."""
    bench.route(m="a")
    server = bench.servers["a"]
    bench.ask("m", timeout_s=7.0, metadata={"tfs-priority": "low"})
    assert server.metadata["tfs-priority"] == "low"
    assert 5.0 < server.requests[-1][1] <= 7.1
    server.answer = lambda _, context: context.abort(
        grpc.StatusCode.INVALID_ARGUMENT, "wrong shape: 7 of 8"
    )
    before = len(server.requests)
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "wrong shape: 7 of 8")
    assert bench.refused("m") == invalid
    assert len(server.requests) == before + 1, "what would fail anywhere fails once"


def test_what_is_not_served_is_told(bench: Bench) -> None:
    """A model of the fleet without a server is UNAVAILABLE, another one NOT_FOUND."""
    bench.route(m="a", waits="")
    code, said = bench.refused("other", timeout_s=5.0)
    assert code == grpc.StatusCode.NOT_FOUND
    assert "other is" in said or "no model other" in said
    code, said = bench.refused("waits", timeout_s=5.0)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "waits is available on no server yet" in said
    code, said = bench.refused("", message=b"\x12\x00")
    assert (code, "names no model" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_nothing_but_requests_for_models_is_passed_on(bench: Bench) -> None:
    """Who may ask for a prediction may not tell servers what to serve."""
    bench.route(m="a")
    method = "/tfs.v1.AdminService/UnloadVersion"
    code, _ = bench.refused("m", method=method, metadata={"x-model": "m"})
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert method not in {asked for asked, _ in bench.servers["a"].requests}


def test_a_compressed_request_finds_its_model(bench: Bench) -> None:
    """Whether or not the router can read it where it is fastest."""
    bench.route(m="a", n="b")
    assert bench.ask("n", compression=grpc.Compression.Gzip) == "b:"


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.CANCELLED,
    ],
)
def test_a_server_that_does_not_take_a_request_costs_none(
    bench: Bench, code: grpc.StatusCode
) -> None:
    """One that drains, ends, or gave the model up a moment ago: the next one answers."""
    bench.route(m="abc")
    bench.servers["a"].answer = lambda _, context: context.abort(code, "not here")
    assert "a:" not in {bench.ask("m") for _ in range(60)}


def asked_again(server: FakeServer, num_before: int) -> bool:
    return len(server.requests) > num_before


def load(bench: Bench, meanwhile: Callable[[], None]) -> list[str]:
    """Asks for m all the time; returns what failed."""
    failures: list[str] = []
    stopping = threading.Event()

    def call() -> None:
        while not stopping.is_set():
            try:
                bench.ask("m")
            except grpc.RpcError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    meanwhile()
    stopping.set()
    for thread in threads:
        thread.join()
    return failures


def test_a_server_that_is_gone_fails_no_request(bench: Bench) -> None:
    """Nobody told the router; and when it is back, requests go there again."""
    bench.route(m="abc")
    gone = bench.servers["a"]

    def meanwhile() -> None:
        seen = len(bench.servers["b"].requests)
        gone.stop()
        bench.until(lambda: len(bench.servers["b"].requests) > seen + 300)
        gone.start()
        seen = len(gone.requests)
        bench.until(lambda: len(gone.requests) > seen)

    assert load(bench, meanwhile) == []


def test_other_routes_interrupt_no_request(bench: Bench) -> None:
    """Servers come, go and take each other's place while requests run."""
    bench.route(m="a")

    def meanwhile() -> None:
        for names in ("ab", "b", "bc", "c", "abc", "a"):
            bench.route(m=names, n="c")
            server = bench.servers[names[0]]
            seen = len(server.requests)
            bench.until(partial(asked_again, server, seen))

    assert load(bench, meanwhile) == []
    assert {bench.ask("m") for _ in range(9)} == {"a:"}


def test_a_host_that_is_not_found_keeps_no_other_server_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go to the servers that can be found, and by later routes."""
    bench.route(m="a")
    lost = bench.servers["c"].address

    def fail(address: str) -> dict[str, Any]:
        if address == lost:
            raise OSError("no such host")
        return address_of(address)

    monkeypatch.setattr(envoy_config, "address_of", fail)
    for names in ("bc", "b", "ac"):
        found = tuple(bench.servers[each].address for each in names)
        # Envoy alone is told, so that the router beside it does not answer in its place.
        bench.loop.post(partial(bench.routers[-1].set_routes, {"m": found}))
        bench.until(partial(bench._is_on, "m", names))


def test_a_late_request_is_answered_by_a_second_server(bench: Bench) -> None:
    """Its caller waits neither for the late one nor for its deadline."""
    bench.route(m="ab")
    for _ in range(40):  # the router learns how long answers take
        bench.ask("m")
    late, released = bench.servers["a"], threading.Event()

    def answer(message: bytes, context: Any) -> bytes:
        released.wait(PATIENCE_S)
        return late.plain(message, context)

    late.answer = answer
    begun_s = time.monotonic()
    assert {bench.ask("m") for _ in range(4)} == {"b:"}
    assert time.monotonic() - begun_s < 4 * (HEDGE_AFTER_S + 2.0)
    released.set()


def test_a_request_ends_at_its_deadline(bench: Bench) -> None:
    """It does not matter who hangs."""
    bench.route(m="a")
    released = threading.Event()

    def answer(message: bytes, context: Any) -> bytes:
        released.wait(PATIENCE_S)
        return b""

    bench.servers["a"].answer = answer
    begun_s = time.monotonic()
    code, _ = bench.refused("m", timeout_s=0.5)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - begun_s < 5.0
    released.set()
