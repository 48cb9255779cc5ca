"""What ``tfs tune`` says of computing a version in stages that other requests join."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
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
        times: The table; None if the version is computed whole.
        why_whole: Why it is.
        means_s: Mean latency at each of some loads, by rule.

    """

    times: StageTimes | None
    why_whole: str = ""
    means_s: Mapping[str, Sequence[float]] | None = None

    @property
    def text(self) -> str:
        """Comments for the file of parameters, and the policy if it pays."""
        if self.times is None or self.means_s is None:
            return f"#\n# Requests cannot join a running batch: {self.why_whole}.\n"
        ratio = self.auto_ratio
        lines = [
            f"# Requests could join a running batch between {self.times.num_stages} stages. By",
            f"# simulation the mean latency would be {ratio:.2f} of that without, over",
            f"# loads of 20 to 95 %. {_why(self.times)}",
        ]
        if ratio < _PAYS:
            lines.append("# It pays: policy { layered { mode: AUTO } }")
        else:
            lines.append("# It does not pay.")
        return "#\n" + "\n".join(lines) + "\n"

    @property
    def auto_ratio(self) -> float:
        """The mean latency of the best rule at each load, as a share of greedy's."""
        assert self.means_s is not None
        greedy = self.means_s["greedy"]
        best = [min(each) for each in zip(*self.means_s.values(), strict=True)]
        ratios = [b / g for b, g in zip(best, greedy, strict=True)]
        return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def try_joining(servable: Servable, signature_name: str, max_rows: int) -> Joining:
    """Cuts a loaded version into stages, and simulates who would join. Blocks."""
    from tfs.runtime.guest.layered.auto import candidates
    from tfs.runtime.guest.layered.simulation import Arrival, simulate

    try:
        times = _stage_times(servable, signature_name, max_rows)
    except ServingError as error:
        return Joining(None, error.message)
    dice = random.Random(1)
    means: dict[str, list[float]] = {}
    for load in _LOADS:
        rate = load * times.best_rate
        gaps = (dice.expovariate(rate) for _ in range(_NUM_ARRIVALS))
        arrivals = [Arrival(at_s) for at_s in accumulate(gaps)]
        for rule in candidates(times):
            mean_s = simulate(times, arrivals, rule).mean_s
            means.setdefault(rule.name, []).append(mean_s)
    return Joining(times, means_s=means)


def draw_joining(joining: Joining, path: str) -> bool:
    """Draws the mean latency over the load for each rule; returns whether it could."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if joining.means_s is None:
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
    best, text = -math.inf, ""
    for stage in range(1, times.num_stages):
        before, per_row = _affine(times, partial(times.until_s, stage))
        behind, per_row_behind = _affine(times, partial(times.from_s, stage))
        gain = behind - before - per_row - per_row_behind
        if gain > best:
            best = gain
            text = (
                f"Before stage {stage + 1},\n# what is left has a fixed cost of "
                f"{behind * 1e3:.1f} ms, and the stages before one of {before * 1e3:.1f} "
                f"ms;\n# a row costs {(per_row + per_row_behind) * 1e3:.1f} ms in all."
            )
    return text


def _affine(times: StageTimes, of: Callable[[int], float]) -> tuple[float, float]:
    """Returns fixed seconds and seconds per row, by least squares."""
    sizes = range(1, times.max_rows + 1)
    ys = [of(rows) for rows in sizes]
    mean_x, mean_y = math.fsum(sizes) / len(sizes), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in sizes) or 1.0
    pairs = zip(sizes, ys, strict=True)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
    return max(0.0, mean_y - slope * mean_x), slope
