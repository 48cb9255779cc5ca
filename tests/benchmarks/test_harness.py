"""The harness with fake measurers: what it prints, writes and returns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import (
    Area,
    Report,
    interleave,
    run_area,
)
from tests.benchmarks.row import Goal, Row

ROWS = (
    Row("fake/first/small", "us", Goal("value", "<=", 10.0)),
    Row("fake/second/small", "us", Goal("ratio", "<=", 0.5)),
    Row("fake/third/small", ""),
)


@contextmanager
def unbounded(limit_s: float) -> Iterator[None]:
    """Keeps the real alarm out of tests, whose own timeout uses it."""
    yield


def run(
    tmp_path: Path,
    *parts: Callable[[Report], None],
) -> tuple[int, dict[str, Any], str]:
    """Returns the exit status, the JSON and the printed text of a fake area."""
    out = io.StringIO()
    path = tmp_path / "results" / "fake.json"
    status = run_area(
        Area("fake", ROWS, parts),
        path,
        commit="abc",
        machine_text="a machine",
        out=out,
        bound=unbounded,
    )
    return status, json.loads(path.read_text()), out.getvalue()


def measure_first(report: Report) -> None:
    report.record("fake/first/small", 9.0)


def fail(report: Report) -> None:
    raise RuntimeError("the server fell over")


def test_measurers_take_turns() -> None:
    """A B A B: drift of the machine hits both sides alike."""
    calls: list[str] = []

    def measurer(name: str) -> Callable[[], dict[str, float]]:
        def measure() -> dict[str, float]:
            calls.append(name)
            return {"us": float(len(calls))}

        return measure

    runs = interleave(
        {"subject": measurer("a"), "baseline": measurer("b")},
        num_rounds=3,
        num_warmup_rounds=1,
    )
    assert "".join(calls) == "abababab"
    assert runs["subject"]["us"].samples == (3.0, 5.0, 7.0)
    assert runs["baseline"]["us"].samples == (4.0, 6.0, 8.0)


def test_a_part_that_fails_loses_its_own_rows_only(tmp_path: Path) -> None:
    """The rest is measured, the loss is null and missed, and the run fails."""
    status, document, text = run(tmp_path, fail, measure_first)
    assert status == 1
    assert [row["value"] for row in document["rows"]] == [9.0, None, None]
    assert [row["met"] for row in document["rows"]] == [True, False, False]
    assert "fail failed: RuntimeError: the server fell over" in text
    assert "not measured: fake/second/small" in text
