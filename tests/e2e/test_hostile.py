"""A real server outlives hostile clients, and goes on serving the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from tests.e2e import hostile
from tests.e2e.serving import Serving
from tests.runtime.process_host import until
from tfs.testing.patience import PATIENCE_S

_MOST_GROWTH = 1.2
_TIMES = {"dropped": 70, "truncated": 10, "noise": 10}  # the quick ones
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@pytest.fixture(params=["grpcio", "express"])
def serving(scale: Path, request: pytest.FixtureRequest) -> Iterator[Serving]:
    with Serving(
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--grpc_transport={request.param}",
    ) as server:
        server.wait_for("scale/2 is available")
        yield server


class Regular(threading.Thread):
    """A client that calls all the while over one connection, and wants answers.

    grpcio's own server ends when a path is not UTF-8, and is opened again: there, a
    client that comes back must be answered.
    """

    def __init__(self, address: str, comes_back: bool) -> None:
        super().__init__(daemon=True)
        self._comes_back = comes_back
        self.num_answered = 0
        self.error: grpc.RpcError | None = None
        self._address = address
        self._enough = threading.Event()

    def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options) as channel:
            predict = channel.unary_unary(hostile.PREDICT, bytes, bytes)
            while not self._enough.wait(0.01):
                try:
                    predict(hostile.GOOD, timeout=PATIENCE_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    if not self._comes_back or error.code() not in _GONE:
                        self.error = error
                        return
                else:
                    self.num_answered += 1

    def stop(self) -> None:
        self._enough.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.error is None, self.error
        assert self.num_answered


def _besiege(serving: Serving, num_each: int, num_rounds: int) -> tuple[int, int]:
    """Returns the bytes resident after the first round, and after the last.

    The first round has one of each kind of message pass, the largest that are taken
    included: what it leaves is what honest ones of that size would leave as well.
    """
    process = psutil.Process(serving.process.pid)
    regular = Regular(serving.address, serving.flag("grpc_transport") == "grpcio")
    regular.start()
    seed = 0
    before = 0
    for number in range(num_rounds):
        for name in hostile.ATTACKS:
            for _ in range(num_each * _TIMES.get(name, 1)):
                hostile.attack(serving.address, name, seed)
                seed += 1
            assert serving.process.poll() is None, f"{name} ended the server"
            assert regular.error is None, f"{name}: {regular.error}"
        if number == 0:
            before = process.memory_info().rss
    regular.stop()
    after = process.memory_info().rss
    print(f"resident before {before >> 20} MiB, after {after >> 20} MiB")
    return before, after


def test_hostile_clients_are_outlived(serving: Serving) -> None:
    """Each kind a few times: the server lives, a regular client is served throughout.

    What they took is given back: by express all of it, once they are gone.
    """
    process = psutil.Process(serving.process.pid)
    at_first = process.memory_info().rss
    before, after = _besiege(serving, 2, 2)
    assert after < _MOST_GROWTH * before
    if serving.flag("grpc_transport") == "express":
        until(
            lambda: process.memory_info().rss < _MOST_GROWTH * at_first,
            "the memory of large messages to be returned",
        )


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_crowds_of_hostile_clients_are_outlived(serving: Serving) -> None:
    """Each kind 180 times, and 10,000 connections opened and dropped: memory stays
    within 1.2 times of what the first round left.
    """
    before, after = _besiege(serving, 30, 6)
    assert after < _MOST_GROWTH * before
