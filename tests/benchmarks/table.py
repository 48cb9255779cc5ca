"""Outcomes as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.row import Outcome

_HEADINGS = ("row", "value", "spread", "baseline", "ratio", "goal", "met")
_LEFT = {"row", "goal", "met"}


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Returns one line per row, in order, then one that counts the goals."""
    lines = [_HEADINGS, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    text = "\n".join(
        "  ".join(
            cell.ljust(width) if heading in _LEFT else cell.rjust(width)
            for cell, width, heading in zip(line, widths, _HEADINGS, strict=True)
        ).rstrip()
        for line in lines
    )
    goals = [outcome for outcome in outcomes if outcome.row.goal is not None]
    num_met = sum(outcome.met is True for outcome in goals)
    return f"{text}\n\n{num_met} of {len(goals)} goals met"


def _cells(outcome: Outcome) -> tuple[str, ...]:
    row = outcome.row
    value = f"{_number(outcome.value)} {row.unit}".strip()
    if outcome.value is None and row.lacking is not None:
        value = f"not here: {row.lacking}"
    spread = (
        " .. ".join(_number(end) for end in outcome.spread) if outcome.spread else ""
    )
    return (
        row.name,
        value,
        spread,
        "" if outcome.baseline is None else _number(outcome.baseline),
        "" if outcome.ratio is None else f"{outcome.ratio:.3g}",
        "" if row.goal is None else str(row.goal),
        {True: "met", False: "MISSED", None: ""}[outcome.met],
    )


def _number(number: float | None) -> str:
    if number is None:
        return "-"
    if abs(number) >= 1000 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"
