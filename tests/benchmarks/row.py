"""One number of a benchmark: declared before anything runs, judged afterwards.

An area lists its rows in the order of the issue that asks for them. A row that nobody
measured still prints, as missed, so a table can not grow shorter by looking better.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Op = Literal["<=", ">="]
_OPS = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit, copied from the issue and never from a result.

    `of` says whether the row's value or its ratio to the baseline is bounded.
    """

    of: Literal["value", "ratio"]
    op: Op
    limit: float

    def holds(self, number: float) -> bool:
        return bool(_OPS[self.op](number, self.limit))

    def __str__(self) -> str:
        return f"{'ratio ' if self.of == 'ratio' else ''}{self.op} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A number an issue asks for, not yet measured.

    Attributes:
        name: "area/what/condition".
        unit: the unit of value, spread and baseline; "" for a bare count.
        goal: None for a number that is only printed.
        ratio: which way the ratio goes. "baseline/value" is for goals of the form
            "N times less than".
        lacking: what this host lacks to measure the row; None for nothing. Such a row
            is missed, but does not fail the run.
    """

    name: str
    unit: str
    goal: Goal | None = None
    ratio: Literal["value/baseline", "baseline/value"] = "value/baseline"
    lacking: str | None = None

    def __post_init__(self) -> None:
        if self.name.count("/") != 2 or "" in self.name.split("/"):
            raise ValueError(f"row name {self.name!r} is not area/what/condition")


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one quantity, one per round, in order; at least one."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a series needs at least one sample")

    @classmethod
    def of(cls, *samples: float) -> Series:
        return cls(samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest sample: with five rounds quartiles say less."""
        return min(self.samples), max(self.samples)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured for a row.

    `results_ok` is whether the subject's results were right; if not, the row is
    missed whatever its number says.
    """

    series: Series
    baseline: Series | None = None
    results_ok: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row with its number, judged. `value` is None for a row nobody measured."""

    row: Row
    value: float | None
    spread: tuple[float, float] | None
    baseline: float | None
    ratio: float | None
    met: bool | None

    def to_json(self) -> dict[str, object]:
        """Returns the row as `bench-results/` holds it."""
        goal = self.row.goal
        return {
            "name": self.row.name,
            "value": self.value,
            "unit": self.row.unit,
            "spread": list(self.spread or (None, None)),
            "baseline": self.baseline,
            "ratio": self.ratio,
            "goal": goal and {"of": goal.of, "op": goal.op, "limit": goal.limit},
            "met": self.met,
        }


def judge(row: Row, measurement: Measurement | None) -> Outcome:
    """Sets a measurement, or its absence, against the row's goal.

    `met` is False for an absent measurement and for wrong results, None for a number
    without a goal. A ratio goal without a usable baseline is not met.
    """
    if measurement is None:
        return Outcome(row, None, None, None, None, met=False)
    value = measurement.series.median
    baseline = measurement.baseline.median if measurement.baseline else None
    ratio = _ratio(row, value, baseline)
    met: bool | None = None
    if not measurement.results_ok:
        met = False
    elif row.goal is not None:
        number = value if row.goal.of == "value" else ratio
        met = number is not None and row.goal.holds(number)
    return Outcome(row, value, measurement.series.spread, baseline, ratio, met)


def _ratio(row: Row, value: float, baseline: float | None) -> float | None:
    if baseline is None:
        return None
    over, under = value, baseline
    if row.ratio == "baseline/value":
        over, under = under, over
    return over / under if under else None


def missing_from(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns the rows that should have been measured and are not among `names`."""
    return [row.name for row in rows if row.lacking is None and row.name not in names]
