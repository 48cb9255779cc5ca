"""A server's collections of garbage visit what came after its start only."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from tfs.server.memory.garbage import LONG_S, Collector, freeze_imported
from tfs.testing.fake_clock import FakeClock


class Node:
    """Something that can hold itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_made_before_and_after_are_handled_apart() -> None:
    """Garbage is not frozen with the rest, and later garbage is still collected."""
    before = weakref.ref(Node())
    try:
        freeze_imported()
        assert before() is None
        after = weakref.ref(Node())
        gc.collect()
        assert after() is None
    finally:
        gc.unfreeze()


class Cpu:
    """A processor clock on which each full collection takes so long."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.takes_s = 2 * LONG_S
        gc.callbacks.append(self.pass_time)

    def pass_time(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            self.now_s += self.takes_s


@pytest.fixture
def cpu() -> Iterator[Cpu]:
    made = Cpu()
    gc.disable()
    yield made
    gc.enable()
    gc.callbacks.remove(made.pass_time)
    gc.unfreeze()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def collector_of(clock: FakeClock, cpu: Cpu, *, has_models: bool = True) -> Collector:
    """Returns one that looks at collections before time passes on that clock."""
    made = Collector(clock, lambda: has_models, lambda: cpu.now_s)
    made.start()
    gc.callbacks.remove(cpu.pass_time)
    gc.callbacks.append(cpu.pass_time)
    return made


def test_what_a_long_collection_leaves_is_frozen(clock: FakeClock, cpu: Cpu) -> None:
    """The next one visits only what came since; a short one freezes nothing."""
    collector = collector_of(clock, cpu)
    try:
        cpu.takes_s = LONG_S / 2
        gc.collect()
        assert gc.get_freeze_count() == 0
        cpu.takes_s = 2 * LONG_S
        gc.collect()
        assert gc.get_freeze_count() > 1000
        assert len(gc.get_objects()) < 1000
        kept = Node()
        after = weakref.ref(Node())
        gc.collect()
        assert after() is None
        assert kept.itself is kept
    finally:
        collector.close()


def test_cycles_of_models_are_freed_although_they_were_frozen(
    clock: FakeClock, cpu: Cpu
) -> None:
    """At an unload everything is thawed, but for no more than a hundredth of the time."""
    collector = collector_of(clock, cpu)
    try:
        for _ in range(2):
            model: Node | None = Node()
            ref = weakref.ref(model)
            gc.collect()
            model = None
            wait_s = collector.release()
            if wait_s is not None:
                assert ref() is not None
                assert wait_s == pytest.approx(200 * LONG_S)
                clock.advance(wait_s)
                assert collector.release() is None
            assert ref() is None
        assert wait_s is not None
    finally:
        collector.close()


def test_nothing_is_thawed_where_no_model_runs(clock: FakeClock, cpu: Cpu) -> None:
    """Tables and models in processes leave no cycles with much memory."""
    collector = collector_of(clock, cpu, has_models=False)
    try:
        gc.collect()
        num_frozen = gc.get_freeze_count()
        cpu.takes_s = 0.0
        assert collector.release() is None
        assert gc.get_freeze_count() == num_frozen
    finally:
        collector.close()


def test_a_closed_collector_freezes_nothing(clock: FakeClock, cpu: Cpu) -> None:
    """It can be closed twice."""
    collector = collector_of(clock, cpu)
    collector.close()
    collector.close()
    gc.collect()
    assert gc.get_freeze_count() == 0


_SCRIPT = """
import gc, sys
from tfs.server import process

def counts(self, *args):
    print("torch" in sys.modules, gc.get_freeze_count(), len(gc.get_objects()))

prepare = process.ModelServer.prepare
process.ModelServer.start = lambda self, config: counts(self) or []
process.ModelServer.prepare = lambda self: (prepare(self), counts(self), sys.exit())
from tfs.cli.main import main
main(["serve", "--any_port", "--model_base_path=/nowhere"])
"""


def test_a_server_leaves_its_imports_to_no_collection() -> None:
    """Nearly all objects are frozen before the first port opens; torch, which takes a
    second, is imported after that, and frozen in its turn.
    """
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=200
    )
    lines = [line.split() for line in result.stdout.splitlines()]
    found = [line for line in lines if line[0] in ("True", "False")]
    assert [has_torch for has_torch, _, _ in found] == ["False", "True"], result.stderr
    for _, num_frozen, num_others in found:
        assert int(num_frozen) > 20 * int(num_others)
