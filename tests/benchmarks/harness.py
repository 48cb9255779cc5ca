"""Runs a benchmark area and reports it, for people and as JSON.

An area is its rows, declared first, and the functions that measure them. A measuring
function checks results before it times anything, runs what it compares interleaved
(`interleave`), and records series by row name. One that fails loses its own rows only:
the rest is measured, printed and written, and the run exits with 1. A goal that is
missed is not a failure.

Medians of interleaved rounds, rather than one long run of each: machines drift by more
(clock speed, neighbours, caches) than many a goal leaves room for, and drift that hits
both sides of a ratio alike cancels.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from tests.benchmarks import machine
from tests.benchmarks.row import Measurement, Outcome, Row, Series, judge, missing_from
from tests.benchmarks.table import format_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench-results"

Sample = Mapping[str, float]
Bound = Callable[[float], AbstractContextManager[None]]


class OutOfTimeError(BaseException):
    """The area's time is up. Not an Exception: no measurement may swallow it."""


class Report:
    """Collects what an area's functions measure. Confined to the main thread."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row.name: row for row in rows}
        if len(self._rows) != len(rows):
            raise ValueError("two rows of the area have the same name")
        self._measurements: dict[str, Measurement] = {}

    def record(
        self,
        name: str,
        series: Series | float,
        baseline: Series | float | None = None,
        *,
        results_ok: bool = True,
    ) -> None:
        """Stores the measurement of row `name`; a bare number is one sample.

        Raises:
            ValueError: the area declares no such row, says that it cannot be measured
                here, or it was recorded before; nothing changed.
        """
        row = self._rows.get(name)
        if row is None:
            raise ValueError(f"the area declares no row {name!r}")
        if row.lacking is not None:
            raise ValueError(f"{name} was measured, and was to be lacking")
        if name in self._measurements:
            raise ValueError(f"{name} was recorded twice")
        if isinstance(baseline, int | float):
            baseline = Series.of(baseline)
        if isinstance(series, int | float):
            series = Series.of(series)
        self._measurements[name] = Measurement(series, baseline, results_ok)

    def outcomes(self) -> list[Outcome]:
        """Returns every declared row, judged, in order."""
        return [
            judge(row, self._measurements.get(name)) for name, row in self._rows.items()
        ]

    def recorded(self) -> list[Outcome]:
        """Returns the rows that were measured, judged, in order."""
        return [each for each in self.outcomes() if each.row.name in self._measurements]

    def missing(self) -> list[str]:
        """Returns the rows that should have been measured and were not."""
        return missing_from(list(self._rows.values()), list(self._measurements))


@dataclass(frozen=True, slots=True)
class Area:
    """A benchmark: what `make bench-<name>` runs.

    Attributes:
        name: names the JSON file and starts every row's name.
        rows: in the issue's order.
        parts: each measures some of the rows; run in order.
        time_limit_s: after this the rest of the area counts as missed.
    """

    name: str
    rows: tuple[Row, ...]
    parts: tuple[Callable[[Report], None], ...]
    time_limit_s: float = 900.0

    def __post_init__(self) -> None:
        strays = [r.name for r in self.rows if not r.name.startswith(f"{self.name}/")]
        if strays:
            raise ValueError(f"rows outside area {self.name}: {strays}")


def interleave(
    measurers: Mapping[str, Callable[[], Sample]],
    *,
    num_rounds: int = 5,
    num_warmup_rounds: int = 1,
) -> dict[str, dict[str, Series]]:
    """Runs the measurers in turn, A B A B …, and returns the series of each quantity.

    Warm-up rounds run alike and are thrown away. Each measurer returns the same
    quantities every time, such as {"cpu_us": 12.5, "requests_per_s": 41000.0}.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in measurers}
    for round_index in range(num_warmup_rounds + num_rounds):
        for name, measure in measurers.items():
            sample = measure()
            if round_index >= num_warmup_rounds:
                samples[name].append(sample)
    return {
        name: {
            quantity: Series(tuple(sample[quantity] for sample in taken))
            for quantity in (taken[0] if taken else ())
        }
        for name, taken in samples.items()
    }


@contextmanager
def bound_by_alarm(limit_s: float) -> Iterator[None]:
    """Raises OutOfTimeError in the main thread when `limit_s` have passed."""

    def ring(signum: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def run_area(
    area: Area,
    results_path: Path | None,
    *,
    commit: str,
    machine_text: str,
    out: TextIO,
    bound: Bound = bound_by_alarm,
    only: Collection[str] = (),
) -> int:
    """Measures the area, prints its table, writes its JSON; returns the exit status.

    The status is 0 if every row that can be measured was, whatever was met, else 1.
    The JSON appears whole or not at all.

    Args:
        area: what to measure.
        results_path: of the JSON; None: there is none.
        commit: what is measured.
        machine_text: what it is measured on.
        out: gets what people read.
        bound: ends the area when its time is up.
        only: names of parts, whose rows are then the only ones; all by default.
    """
    report = Report(area.rows)
    faults: list[str] = []
    try:
        with bound(area.time_limit_s):
            for part in area.parts:
                if not only or part.__name__ in only:
                    faults += _run_part(part, report, out)
    except OutOfTimeError:
        faults.append(f"stopped after {area.time_limit_s:g} s")
    if only:
        outcomes = report.recorded()
    else:
        faults += [f"not measured: {name}" for name in report.missing()]
        outcomes = report.outcomes()
    out.write(f"\n{area.name} · {commit} · {machine_text}\n\n")
    out.write(format_table(outcomes) + "\n")
    if results_path is not None:
        write_json(results_path, outcomes, commit=commit, machine_text=machine_text)
    for fault in faults:
        out.write(f"bench-{area.name}: {fault}\n")
    return 1 if faults else 0


def _run_part(part: Callable[[Report], None], report: Report, out: TextIO) -> list[str]:
    """Runs one part; its failure is returned, so that the other parts still run."""
    started_s = time.monotonic()
    try:
        part(report)
    except Exception as error:
        out.write(traceback.format_exc())
        first_line = str(error).partition("\n")[0]
        return [f"{part.__name__} failed: {type(error).__name__}: {first_line}"]
    out.write(f"  {part.__name__}: {time.monotonic() - started_s:.0f} s\n")
    out.flush()
    return []


def write_json(
    path: Path, outcomes: Sequence[Outcome], *, commit: str, machine_text: str
) -> None:
    """Writes the area's results by a rename, so that a reader never sees half."""
    document = {
        "commit": commit,
        "machine": machine_text,
        "rows": [outcome.to_json() for outcome in outcomes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    draft.replace(path)


def read_commit(root: Path = ROOT) -> str:
    """Returns the commit that is measured; "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    result = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=30
    )
    return result.stdout.strip() or "unknown"


def main(area: Area, argv: Sequence[str] | None = None) -> int:
    """Runs an area from the command line, as its module's last line does.

    The results go to `bench-results/<area>.json`, or where `--output` says; those of
    single parts only there, for they are not the area's.
    """
    parser = argparse.ArgumentParser(description=f"benchmark area {area.name}")
    parser.add_argument("--output", type=Path, help="the JSON of the results")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        choices=[part.__name__ for part in area.parts],
        help="measure this alone, as often as given; by default everything",
    )
    arguments = parser.parse_args(argv)
    results_path: Path | None = arguments.output
    if results_path is None and not arguments.part:
        results_path = RESULTS / f"{area.name}.json"
    out = sys.stdout
    out.write(f"==> bench-{area.name}, at most {area.time_limit_s / 60:.0f} minutes\n")
    busy = machine.find_other_load()
    if busy is not None:
        out.write(f"  the machine is busy ({busy}): take no figure from this run\n")
    out.flush()
    return run_area(
        area,
        results_path,
        commit=read_commit(),
        machine_text=machine.describe(),
        out=out,
        only=arguments.part,
    )
