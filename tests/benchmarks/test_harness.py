"""The harness with fake measurers: what it prints, writes and returns."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.harness import (
    ROOT,
    Area,
    OutOfTimeError,
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
    rows: tuple[Row, ...] = ROWS,
    only: tuple[str, ...] = (),
) -> tuple[int, dict[str, Any], str]:
    """Returns the exit status, the JSON and the printed text of a fake area."""
    out = io.StringIO()
    path = tmp_path / "results" / "fake.json"
    status = run_area(
        Area("fake", rows, parts),
        path,
        commit="abc",
        machine_text="a machine",
        out=out,
        bound=unbounded,
        only=only,
    )
    return status, json.loads(path.read_text()), out.getvalue()


def measure_everything(report: Report) -> None:
    # In another order than declared, on purpose.
    report.record("fake/third/small", 3.0)
    report.record("fake/second/small", 6.0, 10.0)
    report.record("fake/first/small", 9.0)


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


def test_a_missed_goal_is_no_failure(tmp_path: Path) -> None:
    """The exit status is 0 when everything was measured, whatever was met."""
    status, document, text = run(tmp_path, measure_everything)
    assert status == 0
    assert [row["met"] for row in document["rows"]] == [True, False, None]
    assert "MISSED" in text
    assert "1 of 2 goals met" in text


def test_rows_keep_the_declared_order(tmp_path: Path) -> None:
    """Rows come in the issue's order, not in that of measuring."""
    _, document, _ = run(tmp_path, measure_everything)
    assert document["commit"] == "abc"
    assert document["machine"] == "a machine"
    assert [row["name"] for row in document["rows"]] == [row.name for row in ROWS]


def test_a_part_that_fails_loses_its_own_rows_only(tmp_path: Path) -> None:
    """The rest is measured, the loss is null and missed, and the run fails."""
    status, document, text = run(tmp_path, fail, measure_first)
    assert status == 1
    assert [row["value"] for row in document["rows"]] == [9.0, None, None]
    assert [row["met"] for row in document["rows"]] == [True, False, False]
    assert "fail failed: RuntimeError: the server fell over" in text
    assert "not measured: fake/second/small" in text


def test_a_row_that_a_host_cannot_measure_is_missed_without_failing(
    tmp_path: Path,
) -> None:
    """What the host lacks is printed in the number's place; the area is still whole."""
    rows = (
        ROWS[0],
        Row("fake/later/small", "us", ROWS[0].goal, lacking="no libpython"),
    )
    status, document, text = run(tmp_path, measure_first, rows=rows)
    assert status == 0
    assert document["rows"][1]["value"] is None
    assert document["rows"][1]["met"] is False
    assert "not here: no libpython" in text


def test_a_part_alone_brings_its_rows_and_misses_no_others(tmp_path: Path) -> None:
    """Who looks into one measurement need not wait for the rest of the area."""
    parts = (fail, measure_first)
    status, document, text = run(tmp_path, *parts, only=("measure_first",))
    assert status == 0
    assert [row["name"] for row in document["rows"]] == ["fake/first/small"]
    assert "fell over" not in text
    assert "not measured" not in text


def test_the_end_of_time_keeps_what_was_measured(tmp_path: Path) -> None:
    """Past its bound an area writes what it has and exits with 1."""

    def run_out(report: Report) -> None:
        raise OutOfTimeError

    status, document, text = run(tmp_path, measure_first, run_out)
    assert status == 1
    assert document["rows"][0]["value"] == 9.0
    assert "stopped after 900 s" in text


def test_results_are_replaced_whole(tmp_path: Path) -> None:
    """No draft stays beside the results, and the earlier ones are gone."""
    run(tmp_path, measure_first)
    _, document, _ = run(tmp_path, measure_everything)
    assert document["rows"][2]["value"] == 3.0
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["fake.json"]


def test_a_report_takes_only_declared_rows_once() -> None:
    """A misspelt or repeated name is an error where it happens, not a lost number."""
    missing = Row("fake/later/small", "us", lacking="no libpython")
    report = Report((*ROWS, missing))
    report.record("fake/first/small", 1.0)
    with pytest.raises(ValueError, match="recorded twice"):
        report.record("fake/first/small", 2.0)
    with pytest.raises(ValueError, match="declares no row"):
        report.record("fake/frist/small", 2.0)
    with pytest.raises(ValueError, match="was to be lacking"):
        report.record("fake/later/small", 2.0)
    assert report.outcomes()[0].value == 1.0


def test_rows_of_an_area_are_its_own_and_differ() -> None:
    """A row of another area, or a name twice, would overwrite somebody's number."""
    with pytest.raises(ValueError, match="outside area"):
        Area("other", ROWS, ())
    with pytest.raises(ValueError, match="same name"):
        Report((ROWS[0], ROWS[0]))


SLOW_AREA = """
import signal
from tests.benchmarks.harness import Area, main
from tests.benchmarks.row import Row

def hang(report):
    try:
        signal.pause()
    except Exception:
        print("swallowed")

raise SystemExit(main(Area("fake", (Row("fake/a/b", "us"),), (hang,), time_limit_s=0.1)))
"""


def test_the_alarm_ends_an_area_that_hangs(tmp_path: Path) -> None:
    """The bound holds whatever a measurement waits for, and no except hides it."""
    path = tmp_path / "fake.json"
    result = subprocess.run(
        [sys.executable, "-c", SLOW_AREA, "--output", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 1, result.stderr
    assert "swallowed" not in result.stdout
    assert json.loads(path.read_text())["rows"][0]["met"] is False
