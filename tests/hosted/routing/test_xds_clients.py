"""What gRPC clients of ``xds:///`` are told: the servers of a model, wherever it is now."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import free_port
from tests.hosted.routing.engines import skip_without_ads, skip_without_envoy
from tests.hosted.routing.fake_servers import FakeServer
from tests.hosted.routing.xds_client import XdsClient
from tfs.core.call import ListenerOptions
from tfs.core.clock import MonotonicClock
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.express.transport import ExpressTransport
from tfs.hosted.routing import envoy_config
from tfs.hosted.routing.ads import AdsServer
from tfs.hosted.routing.envoy_config import EnvoyOptions, address_of
from tfs.hosted.routing.envoy_router import EnvoyRouter
from tfs.hosted.routing.fleet_router import FleetRouter
from tfs.hosted.routing.job_requests import JobRequests
from tfs.hosted.routing.python_router import PythonRouter
from tfs.hosted.routing.xds_clients import XdsRouter
from tfs.testing.patience import PATIENCE_S


class Bench:
    """Three servers, and a client that is told of them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.servers = {
            name: FakeServer(folder, name, f"127.0.0.1:{free_port()}") for name in "abc"
        }
        for each in self.servers.values():
            each.start()
        self.open()
        self.client = XdsClient(self.address)

    def open(self) -> None:
        """Starts the process that tells clients; it knows no routes yet."""
        self.loop = ServingLoop()
        self.routers = self.make()
        self.transport = ExpressTransport(self.loop, stats=Stats())
        self.loop.start()
        methods = {m.path: m for each in self.routers for m in each.methods()}
        listeners = [each for router in self.routers for each in router.listeners]
        self.transport.start(listeners, methods)

    def make(self) -> list[FleetRouter]:
        ads = AdsServer()
        routers: list[FleetRouter]
        routers = [PythonRouter([], self.loop, JobRequests(self.loop), 0.5)]
        if self.kind == "envoy":
            at = f"unix:{self.folder}/router.sock"
            options = EnvoyOptions(at, f"{self.folder}/envoy")
            routers.append(EnvoyRouter(options, self.loop, ads))
        door = ListenerOptions("xds", self.address)
        return [*routers, XdsRouter(door, self.loop, ads)]

    def route(self, **routes: str) -> None:
        """Sets routes, by the names of servers; z is one on a Unix socket."""
        sockets = {"z": "unix:/socket"}
        at = {name: each.address for name, each in self.servers.items()} | sockets
        found = {
            model: tuple(at[each] for each in names) for model, names in routes.items()
        }
        for router in self.routers:
            self.loop.post(partial(router.set_routes, found))

    def begin(
        self,
        model: str,
        num: int,
        *,
        waits: bool = False,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self.client.begin(model, b"", num, timeout_s, waits=waits)

    def ask(self, model: str, num: int = 1, **how: Any) -> set[str]:
        """Returns the names of the servers that answered, or codes."""
        self.begin(model, num, **how)
        return {each.rstrip(":") for each in self.client.outcomes()}

    def until(self, holds: Callable[[], bool]) -> None:
        patient = threading.Event()
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until_s
            patient.wait(0.02)

    def shut(self) -> None:
        """Ends the process that tells clients."""
        deadline_s = MonotonicClock.now() + PATIENCE_S
        for router in self.routers:
            router.drain(deadline_s)
            router.close()
        self.transport.close()
        self.loop.close(deadline_s)

    def close(self) -> None:
        self.client.close()
        self.shut()
        for each in self.servers.values():
            each.stop()


@pytest.fixture(params=["python", "envoy"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    skip_without_ads()
    if request.param == "envoy":
        skip_without_envoy()
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        made = Bench(request.param, Path(folder))
        yield made
        made.close()


def test_a_model_s_servers_answer_and_are_followed(bench: Bench) -> None:
    """Clients that were told of a model learn that it moved."""
    bench.route(m="ab", n="c")
    assert bench.ask("n") == {"c"}
    bench.until(lambda: bench.ask("m", 20) == {"a", "b"})
    bench.route(m="c", n="a")
    bench.until(lambda: bench.ask("m", 20) == {"c"})
    assert bench.ask("n", 20) == {"a"}


def test_moves_and_a_server_that_is_gone_fail_no_request(bench: Bench) -> None:
    """Nobody told the client; it asks the next server, and the one that is back again."""
    bench.route(m="abc")
    gone = bench.servers["a"]
    bench.begin("m", 6000)
    bench.until(lambda: len(gone.requests) > 100)
    gone.stop()
    seen = len(bench.servers["b"].requests)
    bench.until(lambda: len(bench.servers["b"].requests) > seen + 100)
    bench.route(m="b")
    gone.start()
    bench.route(m="ac")
    assert bench.client.outcomes().keys() <= {"a:", "b:", "c:"}
    bench.until(lambda: bench.ask("m", 20) == {"a", "c"})


def test_what_is_not_served_is_told(bench: Bench) -> None:
    """At once, unless the caller waits: an unknown model from one that has no server."""
    bench.route(m="a", waits="", socket="z")
    assert bench.ask("m") == {"a"}
    assert bench.ask("other", waits=True) == {"NOT_FOUND"}
    assert bench.ask("waits") == bench.ask("socket") == {"UNAVAILABLE"}
    assert bench.ask("waits", waits=True, timeout_s=0.2) == {"DEADLINE_EXCEEDED"}
    bench.begin("waits", 1, waits=True)
    bench.route(m="a", waits="b", other="c")
    assert set(bench.client.outcomes()) == {"b:"}
    bench.until(lambda: bench.ask("other") == {"c"})
    bench.route(m="a")
    bench.until(lambda: bench.ask("waits") == {"NOT_FOUND"})


def test_clients_go_on_without_the_fleet_s_process(bench: Bench) -> None:
    """One that has just started and knows no routes takes none away."""
    bench.route(m="ab")
    bench.until(lambda: bench.ask("m", 20) == {"a", "b"})
    bench.shut()
    assert bench.ask("m", 20) == {"a", "b"}
    bench.open()
    bench.begin("other", 1)  # is answered when this process knows
    bench.route(m="c", other="c")
    assert set(bench.client.outcomes()) == {"c:"}
    bench.until(lambda: bench.ask("m", 20) == {"c"})


@pytest.mark.parametrize("bench", ["python"], indirect=True)
def test_a_host_that_is_not_found_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers that can be found answer meanwhile."""
    bad = bench.servers["a"].address

    def fail(address: str) -> dict[str, Any]:
        if address == bad:
            raise OSError("no such host")
        return address_of(address)

    monkeypatch.setattr(envoy_config, "address_of", fail)
    bench.route(m="ab")
    assert bench.ask("m", 20) == {"b"}
