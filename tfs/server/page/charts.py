"""Small charts as the attributes of SVG elements; templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tfs.core.stats import HistogramFields, HistogramSnapshot
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.page.words import duration

WIDTH: Final = 320
HEIGHT: Final = 72
_MAX_BARS: Final = 16
_BAR_HEIGHT: Final = 18


class Lines(NamedTuple):
    """How latencies are spread: both versions' lines, and the axis' ends in words."""

    primary: str
    canary: str
    low: str
    high: str


def quantile(histogram: HistogramFields, share: float) -> str:
    """Returns a quantile of durations in words; "" if there are none."""
    found = HistogramSnapshot.merged([histogram])
    return duration(found.quantile(share)) if found.num else ""


def latency_lines(primary: pb.Histogram, canary: pb.Histogram) -> Lines | None:
    """Returns the lines of two latencies; None if one of them has none."""
    used = [
        index
        for each in (primary, canary)
        for index, num in enumerate(each.counts)
        if num
    ]
    if not sum(primary.counts) or not sum(canary.counts):
        return None
    first, last = max(0, min(used) - 1), min(len(primary.bounds), max(used) + 1)
    shares = [
        [num / sum(each.counts) for num in each.counts[first : last + 1]]
        for each in (primary, canary)
    ]
    top = max(map(max, shares))
    bounds = primary.bounds
    return Lines(
        _line(shares[0], top),
        _line(shares[1], top),
        duration(bounds[max(0, min(used) - 1)]),
        duration(bounds[min(len(bounds) - 1, max(used))]),
    )


def _line(shares: Sequence[float], top: float) -> str:
    step = WIDTH / max(1, len(shares) - 1)
    points = [
        f"{index * step:.0f} {HEIGHT - 4 - (HEIGHT - 8) * each / top:.1f}"
        for index, each in enumerate(shares)
    ]
    return "M" + "L".join(points)


def bars(histogram: pb.Histogram) -> str:
    """Returns the path of a histogram's bars, 80 wide and 18 high; "" if it is empty."""
    counts = list(histogram.counts)
    while counts and not counts[-1]:
        counts.pop()
    if not counts:
        return ""
    per_bar = -(-len(counts) // _MAX_BARS)
    sums = [
        sum(counts[index : index + per_bar]) for index in range(0, len(counts), per_bar)
    ]
    step, top = 80 / len(sums), max(sums)
    return "".join(
        f"M{index * step:.1f} {_BAR_HEIGHT}v-{max(1, _BAR_HEIGHT * num / top):.1f}"
        f"h{max(1.5, step - 1):.1f}V{_BAR_HEIGHT}z"
        for index, num in enumerate(sums)
        if num
    )


def moving(values: Sequence[float | None], limit: float) -> tuple[str, float | None]:
    """Returns the path of values over time, 100 wide and 28 high, with gaps for None.

    And how high their limit stands; None for no limit.
    """
    known = [each for each in values if each is not None]
    top = 1.15 * max([limit, *known], default=0.0) or 1.0
    step = 100 / max(1, len(values) - 1)
    path, pen = "", "M"
    for index, each in enumerate(values):
        if each is None:
            pen = "M"
            continue
        is_alone = pen == "M" and (values[index + 1 : index + 2] or [None])[0] is None
        path += f"{pen}{index * step:.1f} {_y(each, top):.1f}{'h1' if is_alone else ''}"
        pen = "L"
    return path, _y(limit, top) if limit else None


def _y(value: float, top: float) -> float:
    return 1 + 26 * (1 - value / top)
