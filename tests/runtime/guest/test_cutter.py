"""Where a model may be cut into stages, and what is computed whole, and why."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Sequence

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.runtime.guest.row_call import RowCall, share
from tfs.core.clock import MonotonicClock
from tfs.core.errors import Cancelled
from tfs.runtime.guest.layered.cutter import NotCut, cut
from tfs.runtime.guest.layered.stages import Stage, Stages
from tfs.runtime.guest.platforms.torch_callable import Cuttable
from tfs.testing.patience import PATIENCE_S

WIDTH = 6


def even() -> Callable[[], float]:
    """A clock by which every piece of a model takes equally long."""
    return map(float, itertools.count()).__next__


def named_x(module: nn.Module) -> Cuttable:
    return Cuttable(module, ("x",) if isinstance(module, nn.Sequential) else ())


def stages_of(module: nn.Module, rows: Tensor | None = None) -> list[Stage]:
    torch.manual_seed(3)
    inputs = {"x": torch.rand(3, WIDTH) if rows is None else rows}
    with torch.inference_mode():
        return cut(named_x(module.eval()), inputs, 0.0, even())


class Residual(nn.Module):
    """Two layers beside a shortcut: inside of it two tensors cross."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.second(torch.relu(self.first(x)))
        return y


class Reshaping(nn.Module):
    """Counts its rows in several places, and returns two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.first(x).view(x.shape[0], 2, WIDTH)
        y = torch.relu(y)
        y = self.second(y).reshape(x.size(0), -1)
        return {"scores": y, "best": y.argmax(1)}


class OverRows(nn.Module):
    """Takes the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return torch.relu(self.second(y - y.mean(0)))


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class TwoStreams(nn.Module):
    """Two tensors cross from the first operator to the last."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        for _ in range(3):
            x, y = torch.relu(y), torch.sigmoid(x)
        return x + y


def answers(stages: Sequence[Stage], rows: Tensor) -> object:
    value: object = stages[0](x=rows)
    for stage in stages[1:]:
        value = stage(value)
    return value


def test_a_sequence_is_cut_between_its_children_those_of_inner_ones_too() -> None:
    """Parameters are shared, and answers are those of the whole."""
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model = nn.Sequential(inner, nn.Flatten(), inner, nn.Linear(WIDTH, 3))
    stages = stages_of(model)
    assert len(stages) == 6
    rows = torch.rand(5, WIDTH)
    assert torch.equal(answers(stages, rows), model(rows))  # type: ignore[arg-type]


def test_a_residual_stream_is_cut_between_its_blocks_only() -> None:
    """Its children in order would be another model."""
    model = nn.Sequential(Residual(), Residual())

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.blocks(x)
            return y

    stages = stages_of(Wrapped())
    assert len(stages) == 2
    rows = torch.rand(4, WIDTH)
    assert torch.equal(answers(stages, rows), model(rows))  # type: ignore[arg-type]


@pytest.mark.parametrize("exported", [False, True])
def test_graphs_that_count_their_rows_are_cut(exported: bool) -> None:
    """What is counted before a cut is counted anew behind it; outputs keep their names."""
    module = Reshaping().eval()
    rows = torch.rand(3, WIDTH)
    model = Cuttable(module)
    if exported:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = ({0: torch.export.Dim("rows")},)
            program = torch.export.export(
                module, (rows,), dynamic_shapes=shapes, strict=False
            )
        model = Cuttable(program.module(), ("x",))
    with torch.inference_mode():
        stages = cut(model, {"x": rows}, 0.0, even())
        assert len(stages) >= 3
        for num_rows in (1, 7):
            more = torch.rand(num_rows, WIDTH)
            found, expected = answers(stages, more), module(more)
            assert isinstance(found, dict)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(found[name], value)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (OverRows(), "get other answers than alone"),
        (Branching(), "torch.fx cannot trace it"),
        (TwoStreams(), "nowhere does a single tensor of the batch cross"),
        (
            nn.Sequential(
                nn.Linear(WIDTH, 4), nn.BatchNorm1d(4, track_running_stats=False)
            ),
            "1 uses statistics of the batch",
        ),
        (nn.Sequential(nn.Linear(WIDTH, 4)), "nowhere does a single tensor"),
    ],
    ids=["over-rows", "branches", "two-streams", "statistics", "single"],
)
def test_what_cannot_be_cut_stays_whole_and_says_why(
    module: nn.Module, why: str
) -> None:
    """The status of its version tells."""
    with pytest.raises(NotCut, match=why):
        stages_of(module)


def test_models_of_other_threads_answer_while_one_is_traced() -> None:
    """A trace patches the modules of the whole process."""
    other = nn.Linear(WIDTH, WIDTH)
    rows = torch.rand(3, WIDTH)
    found: list[Tensor] = []

    class Traced(Reshaping):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            thread = threading.Thread(target=lambda: found.append(other(rows)))
            thread.start()
            thread.join(PATIENCE_S)
            return super().forward(x)

    assert len(stages_of(Traced())) >= 3
    assert torch.equal(found[0], other(rows))


def test_a_model_in_train_mode_stays_whole() -> None:
    """Its rows may depend on chance, and on each other."""
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout())
    with pytest.raises(NotCut, match="train mode"):
        cut(Cuttable(model), {"x": torch.rand(3, WIDTH)}, 0.0, even())


def test_stages_too_short_for_others_to_join_are_grouped() -> None:
    """Three operators in a hundred of the model's time make one."""
    model = nn.Sequential(*(nn.ReLU() for _ in range(100)))
    assert 20 <= len(stages_of(model)) <= 34
    with pytest.raises(NotCut, match="one row takes"):
        cut(named_x(model.eval()), {"x": torch.rand(3, WIDTH)}, 10.0)


# -- random graphs, and random requests ------------------------------------------------------------


def random_module(kinds: Sequence[int]) -> nn.Module:
    torch.manual_seed(len(kinds))
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(WIDTH, WIDTH),
        nn.Tanh,
        Residual,
        lambda: nn.LayerNorm(WIDTH),
    ]
    return nn.Sequential(*(makers[kind]() for kind in kinds))


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(
    kinds=st.lists(st.integers(0, 3), min_size=2, max_size=7),
    beginning=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
)
def test_whoever_joins_leaves_or_fails_everybody_else_gets_the_answers_of_alone(
    kinds: list[int], beginning: list[int], data: st.DataObject
) -> None:
    """At each boundary of each graph, with stages padded at will."""
    model = random_module(kinds).eval()
    with torch.inference_mode():
        parts = cut(named_x(model), {"x": torch.randn(3, WIDTH)}, 0.0, even())
        stages = Stages(parts, 64, MonotonicClock(), share)
        for stage in range(len(parts)):
            for size in (1, 2, 4, 8, 16, 64):  # some sizes are padded
                stages.times.put(stage, size, data.draw(st.sampled_from([1.0, 2.0])))
        calls: list[RowCall] = []

        def call(num_rows: int, width: int = WIDTH) -> RowCall:
            calls.append(RowCall(torch.randn(num_rows, width)))
            return calls[-1]

        batch = [call(rows) for rows in beginning]

        def take(_: object) -> list[RowCall]:
            match data.draw(st.sampled_from(["nobody", "some", "bad", "leaves"])):
                case "some":
                    sizes = data.draw(st.lists(st.integers(1, 3), max_size=2))
                    return [call(rows) for rows in sizes]
                case "bad":
                    return [call(1, width=3)]
                case "leaves":
                    batch[0].cancel.cancel(Cancelled("gone"))
            return []

        stages.serve(batch, take=take)
        for each in calls:
            (outcome,) = each.outcomes
            if isinstance(outcome, Cancelled):
                assert each is batch[0]
            elif isinstance(outcome, Exception):
                assert each.kwargs["x"].shape[1] == 3
            else:
                torch.testing.assert_close(
                    outcome, model(each.kwargs["x"]), rtol=1e-4, atol=1e-5
                )
