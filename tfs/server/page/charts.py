"""Small charts as paths of SVG, 100 wide and 28 high; templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfs.core.stats import HistogramFields, HistogramSnapshot
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.page.words import duration


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
    both = (primary, canary)
    if not all(sum(each.counts) for each in both):
        return None
    used = [index for each in both for index, num in enumerate(each.counts) if num]
    first, last = max(0, min(used) - 1), min(len(primary.bounds), max(used) + 1)
    shares = [
        [num / sum(each.counts) for num in each.counts[first : last + 1]]
        for each in both
    ]
    top = max(map(max, shares))
    return Lines(
        _line(shares[0], top),
        _line(shares[1], top),
        duration(primary.bounds[first]),
        duration(primary.bounds[min(len(primary.bounds) - 1, max(used))]),
    )


def moving(values: Sequence[float | None], limit: float) -> tuple[str, float | None]:
    """Returns the line of values over time, with gaps for None.

    And how high their limit stands; None for no limit.
    """
    known = [each for each in values if each is not None]
    top = 1.15 * max([limit, *known], default=0.0) or 1.0
    return _line(values, top), _y(limit, top) if limit else None


def _line(values: Sequence[float | None], top: float) -> str:
    step = 100 / max(1, len(values) - 1)
    path, pen = "", "M"
    for index, each in enumerate(values):
        if each is None:
            pen = "M"
            continue
        is_alone = pen == "M" and (values[index + 1 : index + 2] or [None])[0] is None
        path += f"{pen}{index * step:.1f} {_y(each, top):.1f}{'h1' if is_alone else ''}"
        pen = "L"
    return path


def _y(value: float, top: float) -> float:
    return 1 + 26 * (1 - value / top)
