"""Workers bring the loop to their core where every core has a call."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package
from tests.runtime.process_host import ProcessHost, process_host
from tests.runtime.zoo import Scale
from tfs.core.serving_loop import ServingLoop
from tfs.core.thread_priority import bring
from tfs.runtime.process.busy_cores import BusyCores
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool

CORES = os.sched_getaffinity(0)


@pytest.fixture
def loop() -> Iterator[ServingLoop]:
    """A loop of this test's own thread, whose affinity is put back."""
    loop = ServingLoop()
    loop.step()
    yield loop
    loop.close()
    os.sched_setaffinity(0, CORES)


def test_the_loop_follows_once_each_core_has_a_call(loop: ServingLoop) -> None:
    """While one is free the kernel finds it, and the worker goes on undisturbed."""
    cores = BusyCores(loop)
    cores.num_running = len(CORES) - 1
    assert not cores.follower()
    cores.num_running += 1
    assert cores.follower() == threading.get_native_id()


def test_the_loop_may_run_anywhere_when_a_core_is_free(loop: ServingLoop) -> None:
    """The loop may run anywhere again, even after calls that will still bring it."""
    cores = BusyCores(loop)
    one = {min(CORES)}
    cores.num_running = len(CORES)
    cores.follower()
    os.sched_setaffinity(0, one)
    cores.settle()
    assert os.sched_getaffinity(0) == one
    for left in reversed(range(len(CORES))):
        cores.num_running = left
        os.sched_setaffinity(0, one)
        cores.settle()
        assert os.sched_getaffinity(0) == CORES
    os.sched_setaffinity(0, one)
    cores.settle()
    assert os.sched_getaffinity(0) == one, "nobody brings it: it is the operator's"


def test_a_thread_that_waits_is_brought_to_one_core() -> None:
    """A thread is moved to the caller's core; one that is gone is no error."""
    told, go_on = threading.Event(), threading.Event()
    idents: list[int] = []

    def wait() -> None:
        idents.append(threading.get_native_id())
        told.set()
        go_on.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    told.wait()
    bring(idents[0])
    (core,) = os.sched_getaffinity(idents[0])
    go_on.set()
    thread.join()
    assert core in CORES
    bring(1 << 30)


def test_the_loop_is_free_again_after_calls_on_every_core(tmp_path: Path) -> None:
    """Whatever workers did to its affinity meanwhile, and when one of them died."""
    seen: list[set[int]] = []

    def look(host: ProcessHost) -> set[int]:
        host.on_loop(lambda: seen.append(os.sched_getaffinity(0)))
        return seen[-1]

    with process_host() as host:
        options = ProcessOptions()
        members = [host.interpreter(options) for _ in CORES]
        model = ProcessPool("all", members, options).load(package(tmp_path, Scale()))
        slow = {"x": floats((0.01, 0))}
        for _ in range(5):
            for answer in [ask(model, slow, "slow") for _ in members]:
                answer.outputs()
        assert host.zygote.busy_cores.num_running == 0
        assert look(host) == CORES
        crashes = [ask(model, {"x": floats((-1, 0))}, "crash") for _ in members[:1]]
        for answer in [*(ask(model, slow, "slow") for _ in members[1:]), *crashes]:
            answer.outcome()
        assert host.zygote.busy_cores.num_running == 0
        assert look(host) == CORES
