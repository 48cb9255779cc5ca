"""A part that is computed layer by layer, and joined while it is."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.batching.gate import Gate
from tests.runtime.part_callers import Callers, wait_for_waiting
from tfs.core.errors import InvalidArgument
from tfs.runtime.batched import BatchedPart
from tfs.runtime.layered import layered
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


def double(x: Tensor) -> Tensor:
    return 2 * x


class Costly:
    """Adds one, in a time of the clock: so much fixed, and so much for each row."""

    def __init__(self, clock: FakeClock, fixed_s: float, row_s: float) -> None:
        self._clock = clock
        self._cost_s = fixed_s, row_s
        self.sizes: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        fixed_s, row_s = self._cost_s
        self._clock.advance(fixed_s + row_s * len(x))
        if bool((x < 0).any()):
            raise ValueError("negative")
        return x + 1


class Bench:
    """A cheap layer, a gate that holds whoever passes first, and a costly end."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cheap = Costly(self.clock, 0, 0.001)
        self.end = Costly(self.clock, 1, 0.001)
        self.gate: Gate[Tensor] = Gate(double)
        self.gate.open.set()
        self.part = layered(
            [self.cheap, self.gate, self.end], max_batch_size=8, clock=self.clock
        )
        self.part.measure(torch.ones(1, 2))
        for seen in (self.cheap.sizes, self.end.sizes, self.gate.sizes):
            seen.clear()
        self.callers = Callers()

    def hold_first(self, value: float = 1.0) -> None:
        """Makes one call that stays in the second layer until ``release``."""
        self.gate.open.clear()
        self.gate.entered.clear()
        self.callers.start("first", lambda: self.part(torch.full((1, 2), value)))
        assert self.gate.entered.wait(PATIENCE_S)

    def call(self, name: object, rows: Tensor, num_waiting: int) -> None:
        self.callers.start(name, lambda: self.part(rows))
        wait_for_waiting(self.part, num_waiting)

    def release(self) -> None:
        self.gate.open.set()
        self.callers.join()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_calls_join_a_running_batch_before_its_costly_layer(bench: Bench) -> None:
    """Their first layers are made up for, and each gets its own rows."""
    bench.hold_first()
    bench.call("second", torch.full((2, 2), 5.0), 1)
    bench.call("third", torch.full((1, 2), 7.0), 2)
    bench.release()
    assert bench.end.sizes == [4]
    assert bench.cheap.sizes == [1, 3]
    assert torch.equal(bench.callers.results["first"], torch.full((1, 2), 5.0))
    assert torch.equal(bench.callers.results["second"], torch.full((2, 2), 13.0))
    assert torch.equal(bench.callers.results["third"], torch.full((1, 2), 17.0))
    stats = bench.part.stats
    assert (stats.num_calls, stats.num_batches, stats.num_joined) == (3, 1, 2)


def test_calls_of_another_shape_or_beyond_the_batch_wait(bench: Bench) -> None:
    """They are computed next; nobody is lost."""
    bench.hold_first()
    bench.call("other", torch.ones(1, 3), 1)
    bench.call("large", torch.ones(8, 2), 2)
    bench.release()
    assert sorted(bench.end.sizes) == [1, 1, 8]
    assert bench.callers.results["other"].shape == (1, 3)
    assert bench.callers.results["large"].shape == (8, 2)
    assert bench.part.stats.num_joined == 0


def test_calls_that_cannot_be_joined_are_computed_apart(bench: Bench) -> None:
    """A layer gave them other shapes than those that run: nobody is left without answer."""

    def ragged(x: Tensor) -> Tensor:
        (width,) = {1 if row[0] > 20 else 2 for row in bench.cheap(x)}
        return x[:, :width]

    bench.part = layered(
        [ragged, bench.gate, bench.end], max_batch_size=8, clock=bench.clock
    )
    bench.part.measure(torch.ones(1, 2))
    bench.hold_first()
    bench.call("narrow", torch.full((1, 2), 30.0), 1)
    bench.release()
    assert bench.part.stats.num_joined == 1
    assert torch.equal(bench.callers.results["first"], torch.full((1, 2), 3.0))
    assert torch.equal(bench.callers.results["narrow"], torch.full((1, 1), 61.0))


def test_a_lone_call_that_fails_is_not_run_twice(bench: Bench) -> None:
    """Its error is its own already."""
    with pytest.raises(ValueError, match="negative"):
        bench.part(torch.full((1, 2), -1.0))
    assert bench.cheap.sizes == [1]


@pytest.mark.parametrize("interrupted", ["those that join", "all of them"])
def test_what_no_exception_is_ends_every_call(interrupted: str) -> None:
    """Whoever joined, or was about to, is not left waiting for one that was interrupted."""
    clock = FakeClock()
    gate: Gate[Tensor] = Gate(double)
    gate.open.set()
    calls = {"those that join": 0, "all of them": 0}
    measured = 1 << 30

    def counted(x: Tensor, name: str) -> Tensor:
        calls[name] += 1
        if calls[name] > measured and name == interrupted:
            raise KeyboardInterrupt
        return x

    def begin(x: Tensor) -> Tensor:
        return counted(x, "those that join")

    def end(x: Tensor) -> Tensor:
        clock.advance(1)
        return counted(x, "all of them")

    part = layered([begin, gate, end], max_batch_size=8, clock=clock)
    part.measure(torch.ones(1, 1), budget_s=100)
    measured = calls["all of them"]
    calls["those that join"] = measured - 1  # the first call comes in between
    gate.open.clear()
    gate.entered.clear()
    ended: list[str] = []

    def ask(name: str) -> None:
        try:
            part(torch.ones(1, 1))
        except KeyboardInterrupt:
            ended.append(name)

    threads = [threading.Thread(target=ask, args=("first",))]
    threads[0].start()
    assert gate.entered.wait(PATIENCE_S)
    threads.append(threading.Thread(target=ask, args=("second",)))
    threads[1].start()
    wait_for_waiting(part, 1)
    gate.open.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(ended) == ["first", "second"]


def test_layers_may_hand_containers_on_and_take_several_arguments() -> None:
    """The first layer takes the call's own; rows are joined wherever tensors are."""
    clock = FakeClock()

    def first(x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        return {"x": x * scale, "n": torch.arange(len(x))}

    def last(found: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        clock.advance(1)
        return found["x"] + 1, found["n"]

    part = layered([first, last], max_batch_size=8, clock=clock)
    part.measure(torch.ones(1), scale=torch.ones(1))
    value, number = part(torch.tensor([2.0, 3.0]), scale=torch.tensor([2.0, 2.0]))
    assert value.tolist() == [5.0, 7.0]
    assert number.tolist() == [0, 1]


def test_a_layered_part_is_saved_with_its_layers() -> None:
    """A layered part is saved with its module, without what it measured."""
    part = layered(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), max_batch_size=4)
    copy: BatchedPart = pickle.loads(pickle.dumps(part))
    x = torch.rand(3, 2)
    assert torch.equal(copy(x), part(x))
    copy.measure(x)


def test_a_part_without_layers_is_refused() -> None:
    """There would be nothing to compute, and nothing to return."""
    nothing: list[Callable[[Tensor], Tensor]] = []
    with pytest.raises(InvalidArgument):
        layered(nothing, max_batch_size=4)
