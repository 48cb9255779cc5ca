"""Decides whether a trial may go on, from its figures; pure."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.server.canary.comparison import Figures
from tfs.server.model_settings import GuardSettings


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a guard, with its figure. Immutable.

    Attributes:
        name: The field of the guard.
        limit: The value of that field.
        value: The measured value; None if nothing was measured.
        is_exceeded: Whether the canary exceeds it, with enough samples.

    """

    name: str
    limit: float
    value: float | None
    is_exceeded: bool


def judge(guard: GuardSettings | None, figures: Figures) -> tuple[Limit, ...]:
    """Returns every limit that applies, each with its figure."""
    if guard is None:
        return ()
    has_samples = figures.num_samples >= guard.min_samples
    # Each has a name, a limit, the figure to report and the figure to judge.
    figures_of_limits = (
        (
            "max_top1_disagreement",
            guard.max_top1_disagreement,
            figures.top1_disagreement,
            figures.top1_disagreement,
        ),
        (
            "max_mean_abs_diff",
            guard.max_mean_abs_diff,
            figures.mean_abs_diff,
            figures.mean_abs_diff,
        ),
        (
            "max_latency_ratio",
            guard.max_latency_ratio,
            figures.latency_ratio,
            figures.sure_latency_ratio,
        ),
        (
            "max_error_rate",
            guard.max_error_rate,
            figures.canary_fault_rate,
            figures.canary_fault_rate,
        ),
    )
    return tuple(
        Limit(
            name,
            limit,
            told,
            has_samples and counts is not None and not counts <= limit,
        )
        for name, limit, told, counts in figures_of_limits
        if limit is not None
    )


def rejection(limits: tuple[Limit, ...], figures: Figures) -> str:
    """Returns why the trial ends, with the numbers; "" if it goes on."""
    over = [
        f"{each.name.removeprefix('max_')} {each.value:.4g} > {each.limit:.4g}"
        for each in limits
        if each.is_exceeded
    ]
    if not over:
        return ""
    return (
        f"guard: {', '.join(over)} (after {figures.num_samples} requests, "
        f"{figures.num_rows} rows compared)"
    )
