"""Decides how many waiting rows join a running batch between two of its layers. Pure.

When calls join, the layers that the batch has already passed are computed for them
first, while the others wait; from there on all go together. LBCI lets as many join as
the time that a user allows permits. That is worse than not joining wherever the fixed
cost of a batch is spread over all layers (transformers take 5 to 13 % longer). So here
joining has to pay: the time that all requests spend, those that run, join or are left
waiting, has to be predicted to fall. It does if the last layers cost nearly the same
for one row as for many, as the weight-bound ones of an AlexNet, and early in a run.
Otherwise nobody joins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tfs.runtime.layer_times import LayerTimes

_MARGIN: Final = 1.05
"""Predictions are multiplied by this where a deadline depends on them."""


_SAVES: Final = 0.98
"""The cost of joining has to be less than this share of the cost of not joining."""


def rows_to_join(
    times: LayerTimes,
    layer: int,
    running: int,
    waiting: Sequence[int],
    left_s: float = math.inf,
) -> int:
    """Returns how many of the first waiting rows should join; 0 for none.

    Args:
        times: How long layers take.
        layer: The layer that comes next, 1 or more.
        running: Rows of the batch.
        waiting: Rows of each call that waits, in order; a call joins as a whole.
        left_s: Time until the first deadline of the running calls. If they would meet
            it alone, no call may join that would make them miss it.

    """
    if not waiting or running >= times.max_rows or not times.are_known:
        return 0
    num_waiting = sum(waiting)
    alone_s = times.from_s(layer, running)
    best, least = 0, _SAVES * _cost(times, running, alone_s, num_waiting)
    joining = 0
    for rows in waiting:
        joining += rows
        if running + joining > times.max_rows:
            break
        together_s = times.until_s(layer, joining)
        together_s += times.join_s(layer, running + joining)
        together_s += times.from_s(layer, running + joining)
        if alone_s <= left_s < _MARGIN * together_s:
            continue
        cost = _cost(times, running + joining, together_s, num_waiting - joining)
        if cost < least:
            best, least = joining, cost
    return best


def _cost(times: LayerTimes, running: int, run_s: float, waiting: int) -> float:
    """Returns the time that all rows spend, from now on.

    The next batch takes as many of the waiting rows as it can, and the rest is computed
    at the best rate. Without counting that rest, calls would join too often when many
    wait.
    """
    batch = min(waiting, times.max_rows)
    rest = waiting - batch
    next_s = run_s + times.total_s(batch)
    tail_s = rest * rest / (2 * times.best_rate) if rest else 0.0
    return running * run_s + waiting * next_s + tail_s
