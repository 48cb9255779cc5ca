"""What ``tfs tune`` says of computing a version in stages that other requests join."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from statistics import linear_regression
from typing import TYPE_CHECKING, Final

from tfs.core.errors import FailedPrecondition, ServingError

if TYPE_CHECKING:
    from tfs.core.servable import Servable
    from tfs.runtime.guest.layered.stage_times import StageTimes

_LOADS: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
_NUM_ARRIVALS: Final = 1500
_PAYS: Final = 0.97  # the same as AUTO asks before it changes


@dataclass(frozen=True, slots=True)
class Joining:
    """What joining between stages would be worth. Immutable.

    Attributes:
        text: Comments for the file of parameters, with the policy if it pays.
        means_s: Mean latency at each of some loads, by rule; empty if the version is
            computed whole.

    """

    text: str
    means_s: Mapping[str, Sequence[float]] = field(default_factory=dict)


def try_joining(servable: Servable, signature_name: str, max_rows: int) -> Joining:
    """Cuts a loaded version into stages, and simulates who would join. Blocks."""
    from tfs.runtime.guest.layered.simulation import Arrival, candidates, simulate

    try:
        times = _stage_times(servable, signature_name, max_rows)
    except ServingError as error:
        why = error.message
        return Joining(f"#\n# Requests cannot join a running batch: {why}.\n")
    dice = random.Random(1)
    means: dict[str, list[float]] = {}
    for load in _LOADS:
        rate = load * times.best_rate
        gaps = (dice.expovariate(rate) for _ in range(_NUM_ARRIVALS))
        arrivals = [Arrival(at_s) for at_s in accumulate(gaps)]
        for rule in candidates(times):
            mean_s = simulate(times, arrivals, rule).mean_s
            means.setdefault(rule.name, []).append(mean_s)
    shares = [min(each) / each[0] for each in zip(*means.values(), strict=True)]
    ratio = math.prod(shares) ** (1 / len(shares))  # greedy is the first rule
    pays = (
        "pays: policy { layered { mode: AUTO } }" if ratio < _PAYS else "does not pay."
    )
    text = (
        f"#\n# Requests could join a running batch between {times.num_stages} stages. By\n"
        f"# simulation the mean latency would be {ratio:.2f} of that without, over\n"
        f"# loads of 20 to 95 %. {_why(times)}\n# It {pays}\n"
    )
    return Joining(text, means)


def draw_joining(joining: Joining, path: str) -> bool:
    """Draws the mean latency over the load for each rule; returns whether it could."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not joining.means_s:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("requests that join a running batch, by simulation")
    axes.set_xlabel("load")
    axes.set_ylabel("mean latency, ms")
    for name, means_s in joining.means_s.items():
        axes.plot(_LOADS, [each * 1e3 for each in means_s], "o-", label=name)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
    return True


def _stage_times(servable: Servable, signature_name: str, max_rows: int) -> StageTimes:
    from tfs.runtime.guest.staged_model import StagedModel
    from tfs.runtime.inline.inline_interpreter import InlineInterpreter
    from tfs.servables.loaded_version import LoadedVersion

    model = servable.model if isinstance(servable, LoadedVersion) else None
    if model is None:
        raise FailedPrecondition("its platform computes it whole")
    interpreter = InlineInterpreter("tune-layered")
    interpreter.start()
    try:
        rows = {signature_name: max_rows}
        staged = interpreter.load(replace(model.source, staged_rows=rows))
        assert isinstance(staged.guest, StagedModel)
        return staged.guest.times_of(signature_name).frozen()
    finally:
        interpreter.close()


def _why(times: StageTimes) -> str:
    """Says where the fixed costs lie, at the boundary where joining is worth most."""

    def costs(stage: int) -> tuple[float, float, float, float]:
        before, per_row = _affine(times, partial(times.until_s, stage))
        behind, per_row_behind = _affine(times, partial(times.from_s, stage))
        per_row += per_row_behind
        return behind - before - per_row, before, behind, per_row

    stage = max(range(1, times.num_stages), key=costs)
    _, before, behind, per_row = costs(stage)
    return (
        f"Before stage {stage + 1},\n# what is left has a fixed cost of "
        f"{behind * 1e3:.1f} ms, and the stages before one of {before * 1e3:.1f} ms;\n"
        f"# a row costs {per_row * 1e3:.1f} ms in all."
    )


def _affine(times: StageTimes, of: Callable[[int], float]) -> tuple[float, float]:
    """Returns fixed seconds and seconds per row, by least squares."""
    sizes = range(1, times.max_rows + 1)
    slope, fixed = linear_regression(sizes, [of(rows) for rows in sizes])
    return max(0.0, fixed), slope
