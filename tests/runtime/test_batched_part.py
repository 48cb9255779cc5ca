"""A part of a model, batched across requests that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.batching.gate import Gate
from tests.runtime.part_callers import Callers, wait_for_waiting
from tfs.core.batch.batch_task import request_scope
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    Unavailable,
)
from tfs.core.executor import ThreadExecutor
from tfs.core.servable import CancelToken
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


def test_more_requests_than_threads_do_not_deadlock() -> None:
    """The callers compute; no thread of the part's own is needed."""
    part = batched(lambda x: x + 1, max_batch_size=4)
    results: dict[int, float] = {}
    executor = ThreadExecutor(3, "outer")

    def request(number: int) -> None:
        x = torch.tensor([[float(number)]])
        for _ in range(5):
            x = part(x)
        results[number] = float(x)

    for number in range(60):
        executor.submit(lambda number=number: request(number))  # type: ignore[misc]
    assert executor.close()
    assert results == {number: number + 5.0 for number in range(60)}


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


def test_a_cancelled_or_expired_member_leaves_at_the_next_boundary() -> None:
    """It costs no compute, and its caller gets the reason."""
    gate, callers, clock = Gate(double), Callers(), FakeClock()
    part = batched(gate, max_batch_size=8, clock=clock)
    blocked(part, gate, callers)
    cancel = CancelToken()
    deadline_s = clock.now() + 1.0

    def call(**scope: Any) -> torch.Tensor:
        with request_scope(**scope):
            result: torch.Tensor = part(torch.ones(1, 2))
            return result

    callers.start("gone", lambda: call(cancel=cancel))
    callers.start("late", lambda: call(deadline_s=deadline_s))
    callers.start("stays", call)
    wait_for_waiting(part, 3)
    cancel.cancel(Cancelled("gone"))
    clock.advance(2.0)
    gate.open.set()
    callers.join()
    assert isinstance(callers.results["gone"], Cancelled)
    assert isinstance(callers.results["late"], DeadlineExceeded)
    assert torch.equal(callers.results["stays"], torch.full((1, 2), 2.0))
    assert gate.sizes == [1, 1]


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


def test_preprocessing_runs_on_its_own_and_the_core_together() -> None:
    """A servable with per-request Python work and a batched network."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3).eval()
    core = batched(net, max_batch_size=16)
    ready = threading.Barrier(8)
    alone = threading.local()

    def predict(text: str) -> torch.Tensor:
        alone.words = [float(len(word)) for word in text.split()]
        ready.wait(PATIENCE_S)
        with torch.inference_mode():
            scores: torch.Tensor = core(torch.tensor([alone.words]))
        return scores

    callers = Callers()
    texts = [f"{'a' * number} bb ccc dddd" for number in range(1, 9)]
    for text in texts:
        callers.start(text, lambda text=text: predict(text))  # type: ignore[misc]
    callers.join()
    for text in texts:
        words = torch.tensor([[float(len(word)) for word in text.split()]])
        assert torch.allclose(callers.results[text], net(words), rtol=1e-4, atol=1e-6)
    assert core.stats.num_calls == 8


class Decoder(nn.Module):
    """One step of a small recurrent decoder: token and state in, both out."""

    def __init__(self, num_tokens: int = 11, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_tokens, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, num_tokens)

    def forward(
        self, token: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.cell(self.embedding(token), state)
        return self.head(state).argmax(1), state


def decode(
    step: Callable[..., Any], source: int, length: int, leave: Callable[[], None]
) -> list[int]:
    token, state = torch.tensor([source]), torch.zeros(1, 8)
    tokens = []
    with torch.inference_mode():
        for _ in range(length):
            token, state = step(token, state)
            tokens.append(int(token))
    leave()
    return tokens


def test_decode_loops_join_and_leave_at_iterations() -> None:
    """Continuous batching: loops of different lengths stay in step while they last,
    and every sequence is what it would be alone.
    """
    torch.manual_seed(1)
    model = Decoder().eval()
    sizes: list[int] = []

    def noting(
        token: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(token.shape[0])
        result: tuple[torch.Tensor, torch.Tensor] = model(token, state)
        return result

    step = batched(noting, max_batch_size=8, timeout_s=3600.0)
    lengths = {0: 2, 1: 5, 2: 5, 3: 9}
    ready = threading.Barrier(len(lengths))
    callers = Callers()

    def request(source: int, length: int) -> list[int]:
        with step.session():
            ready.wait(PATIENCE_S)
            return decode(step, source, length, lambda: None)

    for source, length in lengths.items():
        callers.start(
            source,
            lambda source=source, length=length: request(source, length),  # type: ignore[misc]
        )
    callers.join()
    assert sizes == [4, 4, 3, 3, 3, 1, 1, 1, 1]
    for source, length in lengths.items():
        alone = decode(model, source, length, lambda: None)
        assert callers.results[source] == alone


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
