"""A model in stages: whoever joins, leaves or fails, each request ends once, with its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from tfs.core.clock import MonotonicClock
from tfs.core.dtype import FLOAT32
from tfs.core.errors import Cancelled, DeadlineExceeded, Internal, ServingError
from tfs.core.executor import InlineExecutor
from tfs.core.servable import CancelToken
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.runtime.guest.layered.auto import Auto
from tfs.runtime.guest.layered.rules import Boundary, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_callable import Cuttable, TorchCallable
from tfs.runtime.guest.staged_model import Outputs, StagedModel

NUM_STAGES = 4
POISON = 1e6


class Step(nn.Module):
    """Doubles; at stage ``at`` it fails if a row holds the poison of that stage."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.hook: Callable[[int, Tensor], None] = lambda _at, _x: None

    def forward(self, x: Tensor) -> Tensor:
        self.hook(self.at, x)
        if bool((x[:, 1] == POISON + self.at).any()):
            raise ValueError("poison")
        return torch.stack([2 * x[:, 0], x[:, 1]], 1)


class Everybody(Rule):
    """Lets all join that fit, at any boundary."""

    def most_rows(self, times: StageTimes) -> int:
        return times.max_rows

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        rows = 0
        for each in at.waiting:
            if at.running + rows + each > times.max_rows:
                break
            rows += each
        return rows


@dataclass
class Bench:
    """A staged model, and the requests that were given to it."""

    max_rows: int = 8
    outcomes: dict[int, list[Outputs | ServingError]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = TensorSpec(FLOAT32, (-1, 2))
        signature = Signature(
            Method.PREDICT, {"x": spec}, {"y": TensorSpec(FLOAT32, (-1, 2))}
        )
        source = ModelSource(
            ServableId("steps", 1),
            "/nowhere",
            "torch_package",
            {},
            {DEFAULT_SIGNATURE: signature},
            staged_rows={DEFAULT_SIGNATURE: self.max_rows},
        )
        self.steps = [Step(at) for at in range(NUM_STAGES)]
        module = Cuttable(nn.Sequential(*self.steps).eval(), ("x",))
        callable_ = TorchCallable(
            source,
            {DEFAULT_SIGNATURE: module},
            cuttable={DEFAULT_SIGNATURE: module},
        )
        self.clock = MonotonicClock()
        self.model = StagedModel(
            source,
            callable_,
            {DEFAULT_SIGNATURE: {"x": torch.rand(3, 2)}},
            self.clock,
            InlineExecutor(),
            least_s=0.0,
            budget_s=0.0,
        )
        self.join(Everybody())

    @property
    def auto(self) -> Auto:
        return self.model._stages[DEFAULT_SIGNATURE][1]

    def join(self, rule: Everybody) -> None:
        self.auto.rule = rule
        self.auto.begin_run = lambda *_, **__: None  # type: ignore[method-assign]

    def call(
        self,
        number: int,
        num_rows: int = 1,
        poison_at: int | None = None,
        deadline_s: float | None = None,
    ) -> CancelToken:
        """Has a request wait."""
        x = torch.full((num_rows, 2), float(number))
        x[:, 1] = 0.0 if poison_at is None else POISON + poison_at
        return self.add(number, x, deadline_s)

    def add(
        self, number: int, x: Tensor, deadline_s: float | None = None
    ) -> CancelToken:
        mark = CancelToken()

        def end(outcome: Outputs | ServingError) -> None:
            self.outcomes.setdefault(number, []).append(outcome)

        now_s = self.clock.now()
        self.model.add(
            DEFAULT_SIGNATURE, {"x": x}, len(x), now_s, deadline_s, mark, end
        )
        return mark

    def serve(self, look: Callable[[], None] = lambda: None) -> None:
        with torch.inference_mode():
            while self.model.waiting:
                self.model.serve(look)

    def value(self, number: int) -> float:
        (outcome,) = self.outcomes[number]
        assert not isinstance(outcome, ServingError), outcome
        y = outcome["y"]
        assert isinstance(y, Tensor)
        return float(y[0, 0])

    def error(self, number: int) -> ServingError:
        (outcome,) = self.outcomes[number]
        assert isinstance(outcome, ServingError)
        return outcome


def once(at: int, do: Callable[[], object]) -> Callable[[int, Tensor], None]:
    """Returns a hook that does something when a stage is computed for the first time."""
    done: list[int] = []

    def hook(stage: int, _: Tensor) -> None:
        if stage == at and not done:
            done.append(stage)
            do()

    return hook


@pytest.mark.parametrize("boundary", range(NUM_STAGES))
@pytest.mark.parametrize("poison_at", range(NUM_STAGES))
def test_a_poison_row_that_joins_at_any_boundary_fails_alone(
    boundary: int, poison_at: int
) -> None:
    """Wherever it fails: behind the boundary all have been one batch."""
    bench = Bench()
    bench.call(1)
    bench.call(2, 2)

    def come() -> None:
        bench.call(3, poison_at=poison_at)
        bench.call(4, 3)

    bench.steps[boundary].hook = once(boundary, come)
    bench.serve()
    scale = 2.0**NUM_STAGES
    assert [bench.value(number) for number in (1, 2, 4)] == [
        scale,
        2 * scale,
        4 * scale,
    ]
    assert isinstance(bench.error(3), Internal)
    assert "poison" in bench.error(3).message


def test_those_for_whom_nobody_waits_leave_at_the_next_boundary() -> None:
    """Cancelled, or late; what is left is computed without their rows."""
    bench = Bench()
    computed: list[set[float]] = []
    # Values, for measured times decide how many rows of padding there are.
    bench.steps[-1].hook = lambda _at, x: computed.append(set(x[:, 0].tolist()))
    bench.call(1)
    gone = bench.call(2, 3)
    bench.call(3, deadline_s=bench.clock.now() + 3600.0)
    bench.steps[0].hook = once(0, lambda: gone.cancel(Cancelled("gone")))
    bench.serve()
    assert computed == [{2.0 ** (NUM_STAGES - 1), 3 * 2.0 ** (NUM_STAGES - 1)}]
    assert isinstance(bench.error(2), Cancelled)
    assert bench.value(3) == 3 * 2.0**NUM_STAGES
    bench.call(4, deadline_s=bench.clock.now())
    bench.serve()
    assert isinstance(bench.error(4), DeadlineExceeded)


def test_a_request_larger_than_a_batch_or_of_another_shape_goes_by_itself() -> None:
    """Neither keeps the others from being answered."""
    bench = Bench()
    bench.call(1, 9)
    bench.call(2)
    bench.add(3, torch.zeros(1, 5))
    bench.serve()
    assert bench.value(1) == 2.0**NUM_STAGES
    assert bench.value(2) == 2 * 2.0**NUM_STAGES
    assert bench.value(3) == 0.0


def conserve(num: int, seed: int) -> None:
    """Gives the model requests at random moments, and takes some away."""
    dice = random.Random(seed)
    bench = Bench(max_rows=16)
    marks: list[CancelToken] = []
    expected_bad: set[int] = set()
    numbers = iter(range(num))

    def look() -> None:
        if len(bench.model.waiting) > 64:  # a server refuses more than some
            return
        for _ in range(dice.choice((0, 0, 1, 3, 6))):
            number = next(numbers, None)
            if number is None:
                return
            poison_at = dice.randrange(NUM_STAGES) if dice.random() < 0.02 else None
            late = dice.random() < 0.02
            deadline_s = bench.clock.now() + dice.uniform(0, 2e-4) if late else None
            if poison_at is not None:
                expected_bad.add(number)
            mark = bench.call(number, dice.randint(1, 4), poison_at, deadline_s)
            marks.append(mark)
            if dice.random() < 0.03:
                dice.choice(marks[-20:]).cancel(Cancelled("gone"))

    with torch.inference_mode():
        while len(bench.outcomes) < num:
            look()
            bench.model.serve(look)
    assert sorted(bench.outcomes) == list(range(num))
    assert all(len(each) == 1 for each in bench.outcomes.values())
    for number, (outcome,) in bench.outcomes.items():
        if isinstance(outcome, Internal):
            assert number in expected_bad
        elif isinstance(outcome, ServingError):
            assert isinstance(outcome, Cancelled | DeadlineExceeded)
        else:
            assert number not in expected_bad
            assert bench.value(number) == number * 2.0**NUM_STAGES


def test_every_request_ends_once_with_its_own_answer() -> None:
    """Whoever joins, is cancelled, late or fails at whichever boundary."""
    conserve(2000, 5)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_of_a_million_requests_none_is_lost_or_ends_twice(seed: int) -> None:
    """Whoever joins, is cancelled, late or fails at whichever boundary."""
    conserve(50_000, seed)
