"""How many waiting rows join a running batch between two of its layers. Pure.

Whoever joins has the layers behind it computed first, while the others wait; from there on
all go together. LBCI joins as many as the time that a user allows permits. That is worse
than not to join wherever the fixed cost of a batch is spread over all layers (transformers:
5 to 13 % longer), so here joining has to pay: by what it is predicted to come to, the time
that all requests spend, those running, those joining and those left waiting, has to fall.
It does where the last layers cost nearly the same for one row as for many, as the weight-bound
ones of an AlexNet, and early in a run; elsewhere nobody joins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tfs.runtime.layer_times import LayerTimes

_MARGIN: Final = 1.05
"""A prediction may be short by so much where a deadline depends on it."""


_SAVES: Final = 0.98
"""What joining comes to has to be less than that share of what not to join comes to."""


def rows_to_join(
    times: LayerTimes,
    layer: int,
    running: int,
    waiting: Sequence[int],
    left_s: float = math.inf,
) -> int:
    """Returns how many rows, from the first that wait, are to join; 0 for none.

    Args:
        times: What layers take.
        layer: The one that comes next, 1 or more.
        running: Rows of the batch.
        waiting: Rows of each call that waits, in order; calls join whole.
        left_s: Time until the first deadline of those that run. If they would meet it
            alone, nobody joins with whom they would not.

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

    The next batch takes what it can of those that wait, the rest flows off at the best
    rate: a sum without that tail joins too often where many wait.
    """
    batch = min(waiting, times.max_rows)
    rest = waiting - batch
    next_s = run_s + times.total_s(batch)
    tail_s = rest * rest / (2 * times.best_rate) if rest else 0.0
    return running * run_s + waiting * next_s + tail_s
