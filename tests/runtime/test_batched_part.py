"""A part of a model, batched across requests that run at the same time."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest
import torch

from tests.batching.gate import Gate
from tests.runtime.part_callers import Callers, wait_for_waiting
from tfs.core.errors import (
    InvalidArgument,
    Unavailable,
)
from tfs.runtime.batched import BatchedPart, batched
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def blocked(part: BatchedPart, gate: Gate[torch.Tensor], callers: Callers) -> None:
    """Makes one call that is being computed until the gate opens."""
    callers.start("first", lambda: part(torch.zeros(1, 2)))
    assert gate.entered.wait(PATIENCE_S)


class Halves(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


def test_named_tuples_are_shared_out_and_put_together() -> None:
    """Their constructors take the parts one by one, unlike those of other tuples."""
    gate, callers = Gate(double), Callers()

    def halves(x: torch.Tensor) -> Halves:
        y = gate(x)
        return Halves(y[:, :1], y[:, 1:])

    part = batched(halves, max_batch_size=3)
    blocked(part, gate, callers)
    for name in ("a", "b"):
        callers.start(name, lambda: part(torch.ones(1, 2)))
    wait_for_waiting(part, 2)
    gate.open.set()
    callers.join()
    assert gate.sizes == [1, 2]
    assert isinstance(callers.results["a"], Halves)
    large = part(torch.arange(10.0).reshape(5, 2))
    assert large.high.tolist() == [[2.0], [6.0], [10.0], [14.0], [18.0]]


def test_calls_that_wait_are_computed_together() -> None:
    """While one batch is computed the next gathers; each gets its own rows."""
    gate, callers = Gate(double), Callers()
    part = batched(gate, max_batch_size=8)
    blocked(part, gate, callers)
    for number in range(3):
        rows = torch.full((number + 1, 2), float(number))
        callers.start(number, lambda rows=rows: part(rows))  # type: ignore[misc]
    wait_for_waiting(part, 3)
    gate.open.set()
    callers.join()
    assert gate.sizes == [1, 6]
    for number in range(3):
        expected = torch.full((number + 1, 2), 2.0 * number)
        assert torch.equal(callers.results[number], expected)
    assert (part.stats.num_calls, part.stats.num_batches) == (4, 2)


def test_a_lone_call_is_the_function_itself() -> None:
    """Nobody waits for company, and nothing is copied."""
    seen: list[torch.Tensor] = []
    part = batched(lambda x: seen.append(x) or x, max_batch_size=8)  # type: ignore[func-returns-value]
    x = torch.ones(2, 2)
    assert part(x) is x
    assert seen[0] is x


def test_a_part_within_a_part_does_not_deadlock() -> None:
    """The leader computes outside the lock, and may call other parts."""
    inner = batched(lambda x: x * 2, max_batch_size=4)
    outer = batched(lambda x: inner(x) + 1, max_batch_size=4)
    callers = Callers()
    for number in range(8):
        callers.start(
            number,
            lambda number=number: float(outer(torch.tensor([float(number)]))),  # type: ignore[misc]
        )
    callers.join()
    assert callers.results == {number: 2.0 * number + 1 for number in range(8)}


def test_all_kinds_of_results_are_taken_apart() -> None:
    """Tuples, lists and dicts of tensors, as models return them."""
    gate, callers = Gate(double), Callers()

    def many(x: torch.Tensor, *, scale: float) -> dict[str, Any]:
        y = gate(x) * scale
        return {"pair": (y, y + 1), "list": [y.sum(1)]}

    part = batched(many, max_batch_size=8)
    callers.start("first", lambda: part(torch.zeros(1, 2), scale=1.0))
    assert gate.entered.wait(PATIENCE_S)
    for number in range(2):
        x = torch.full((1, 2), float(number))
        callers.start(number, lambda x=x: part(x, scale=3.0))  # type: ignore[misc]
    wait_for_waiting(part, 2)
    gate.open.set()
    callers.join()
    assert gate.sizes == [1, 2]
    result = callers.results[1]
    assert torch.equal(result["pair"][1], torch.full((1, 2), 7.0))
    assert torch.equal(result["list"][0], torch.tensor([12.0]))


def test_calls_with_different_shapes_or_settings_do_not_meet() -> None:
    """What cannot be joined is computed in batches of its own."""
    gate, callers = Gate(double), Callers()
    part = batched(lambda x, flag=False: gate(x), max_batch_size=8)
    callers.start("first", lambda: part(torch.zeros(1, 2)))
    assert gate.entered.wait(PATIENCE_S)
    callers.start("wide", lambda: part(torch.zeros(1, 3)))
    callers.start("flag", lambda: part(torch.zeros(1, 2), flag=True))
    callers.start("int", lambda: part(torch.zeros(1, 2, dtype=torch.int64)))
    wait_for_waiting(part, 3)
    gate.open.set()
    callers.join()
    assert gate.sizes == [1, 1, 1, 1]
    assert callers.results["int"].dtype is torch.int64


def test_a_full_batch_does_not_wait_for_the_window_of_others() -> None:
    """Calls of one shape go when they are enough, whoever came before them."""
    clock, callers = FakeClock(), Callers()
    part = batched(double, max_batch_size=2, timeout_s=5.0, clock=clock)
    callers.start("early", lambda: part(torch.ones(1, 3)))
    clock.block_until_sleepers(1)
    for name in ("a", "b"):
        callers.start(name, lambda: part(torch.ones(1, 2)))
    callers.join("a", "b")
    assert "early" not in callers.results
    clock.advance(5.0)
    callers.join()
    assert callers.results["early"].tolist() == [[2.0, 2.0, 2.0]]


def test_calls_that_no_other_can_join_are_computed_by_themselves() -> None:
    """Rows that are none, and settings that cannot be compared, are no mistakes."""

    def scaled(x: torch.Tensor, by: Any = (1,)) -> torch.Tensor:
        return torch.mul(x, sum(by))

    part = batched(scaled, max_batch_size=4)
    assert part(torch.ones(0, 2)).shape == (0, 2)
    assert part(torch.ones(1, 2), [2, 3]).tolist() == [[5.0, 5.0]]
    assert part(torch.ones(1, 2), by=(torch.tensor(2.0),)).tolist() == [[2.0, 2.0]]
    assert part.stats.num_calls == 3
    with pytest.raises(TypeError):
        part(torch.ones(1, 2), ["no number"])
    assert part(torch.ones(1, 2)).tolist() == [[1.0, 1.0]]  # the next may compute


def test_settings_of_different_types_are_different() -> None:
    """Python calls 1, 1.0 and True equal; what a model computes with them is not."""
    gate, callers = Gate(double), Callers()

    def scaled(x: torch.Tensor, by: Any) -> torch.Tensor:
        return torch.mul(gate(x), by)

    part = batched(scaled, max_batch_size=8)
    callers.start("first", lambda: part(torch.ones(1, 1), 7))
    assert gate.entered.wait(PATIENCE_S)
    whole = torch.ones(1, 1, dtype=torch.int64)
    callers.start("int", lambda: part(whole, 1))
    wait_for_waiting(part, 1)
    callers.start("float", lambda: part(whole, 1.0))
    wait_for_waiting(part, 2)
    gate.open.set()
    callers.join()
    assert callers.results["int"].dtype == torch.int64
    assert callers.results["float"].dtype == torch.float32


def test_one_bad_call_fails_alone() -> None:
    """A batch that raises is computed in halves until the call at fault is alone."""
    gate, callers = Gate(double), Callers()

    def choosy(x: torch.Tensor) -> torch.Tensor:
        y = gate(x)
        if bool((x < 0).any()):
            raise ValueError("negative")
        return y

    part = batched(choosy, max_batch_size=8)
    blocked(part, gate, callers)
    for number in (1, 2, -3, 4):
        x = torch.tensor([[float(number)]])
        callers.start(number, lambda x=x: float(part(x)))  # type: ignore[misc]
    wait_for_waiting(part, 4)
    gate.open.set()
    callers.join()
    assert isinstance(callers.results.pop(-3), ValueError)
    callers.results.pop("first")
    assert callers.results == {1: 2.0, 2: 4.0, 4: 8.0}


def test_a_part_that_exits_fails_its_calls() -> None:
    """Nobody waits for ever for a batch that ended its leader's code."""

    def exits(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)

    part = batched(exits, max_batch_size=8)
    with pytest.raises(SystemExit):
        part(torch.zeros(1, 1))


def test_a_window_gathers_calls_until_its_end() -> None:
    """With a timeout the first call waits for others, and no longer."""
    clock, callers = FakeClock(), Callers()
    sizes: list[int] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.shape[0])
        return x

    part = batched(noting, max_batch_size=8, timeout_s=1.0, clock=clock)
    for number in range(2):
        callers.start(number, lambda: part(torch.zeros(1, 1)))
    wait_for_waiting(part, 2)
    clock.block_until_sleepers(2)
    assert sizes == []
    clock.advance(1.0)
    callers.join()
    assert sizes == [2]


def test_batches_are_padded_to_allowed_sizes() -> None:
    """Every batch is padded to an allowed size, even that of a single call."""
    sizes: list[int] = []

    def noting(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.shape[0])
        return x * 2

    part = batched(noting, max_batch_size=4, allowed_batch_sizes=(2, 4))
    assert torch.equal(part(torch.ones(3, 1)), torch.full((3, 1), 2.0))
    assert sizes == [4]


def test_a_call_larger_than_a_batch_is_computed_in_several() -> None:
    """Whoever calls need not know the limit; the rows come back in order."""
    sizes: list[int] = []

    def noting(x: torch.Tensor, *, plus: int) -> dict[str, Any]:
        sizes.append(x.shape[0])
        return {"y": x + plus, "both": (x, [2 * x])}

    part = batched(noting, max_batch_size=8)
    x = torch.arange(20.0)[:, None]
    result = part(x, plus=1)
    assert sizes == [8, 8, 4]
    assert torch.equal(result["y"], x + 1)
    assert torch.equal(result["both"][0], x)
    assert torch.equal(result["both"][1][0], 2 * x)


def test_too_many_calls_are_refused() -> None:
    """A bounded queue, as everywhere."""
    gate, callers = Gate(double), Callers()
    part = batched(gate, max_batch_size=1, max_waiting_rows=1)
    blocked(part, gate, callers)
    callers.start("waits", lambda: part(torch.zeros(1, 2)))
    wait_for_waiting(part, 1)
    with pytest.raises(Unavailable):
        part(torch.zeros(1, 2))
    gate.open.set()
    callers.join()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "needs a tensor"),
        ((torch.tensor(1.0),), "needs a batch dimension"),
        ((torch.zeros(2, 1), torch.zeros(3, 1)), "2 and 3 rows"),
    ],
)
def test_calls_that_cannot_be_batched_are_refused(
    args: tuple[torch.Tensor, ...], message: str
) -> None:
    """The mistake is the model author's, and is named."""
    part = batched(lambda *xs: xs[0], max_batch_size=8)
    with pytest.raises(InvalidArgument, match=message):
        part(*args)


@pytest.mark.parametrize("result", [torch.zeros(()), torch.zeros(9, 1), "text", None])
def test_results_that_are_no_rows_are_refused(result: object) -> None:
    """Results that cannot be taken apart fail the batch: nobody gets another's rows."""
    part = batched(lambda x: result, max_batch_size=4, allowed_batch_sizes=(4,))
    with pytest.raises(InvalidArgument, match="a batched part returned"):
        part(torch.zeros(1, 1))


# -- what it is for ---------------------------------------------------------------


def test_a_failed_member_leaves_the_loop_to_the_others() -> None:
    """Its session ends with its error; nobody waits for it any more."""
    callers = Callers()
    step = batched(lambda x: x + 1, max_batch_size=8, timeout_s=3600.0)
    ready = threading.Barrier(2)

    def loop(fails_at: int) -> float:
        x = torch.zeros(1)
        with step.session():
            ready.wait(PATIENCE_S)
            for index in range(6):
                if index == fails_at:
                    raise ValueError("its own code failed")
                x = step(x)
        return float(x)

    callers.start("fails", lambda: loop(2))
    callers.start("goes on", lambda: loop(-1))
    callers.join()
    assert isinstance(callers.results["fails"], ValueError)
    assert callers.results["goes on"] == 6.0
