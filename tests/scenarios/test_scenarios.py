"""Every scenario, with inline pools and with threads, against its golden output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.operation import operation_files, run_operation
from tests.scenarios.runner import (
    INLINE,
    THREADS,
    by_version,
    parse,
    render,
    run_file,
    scenario_files,
)

FILES = scenario_files()
OPERATIONS = operation_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_happens_as_written(path: Path) -> None:
    """With inline pools the output is the golden one, line by line."""
    written, happened, rest = run_file(path, INLINE)
    assert render(happened, rest) == render(written, rest)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_happens_with_threads_too(path: Path) -> None:
    """With threads each version lives the same life."""
    written, happened, _ = run_file(path, THREADS)
    for expected, actual in zip(written, happened, strict=True):
        assert by_version(actual.output) == by_version(expected.output), (
            f"after {actual.command!r}"
        )


@pytest.mark.parametrize("path", OPERATIONS, ids=lambda path: path.stem)
def test_operation_happens_as_written(path: Path) -> None:
    """What an operator does to a server has the golden outcome, line by line."""
    written, happened, rest = run_operation(path, has_threads=False)
    assert render(happened, rest) == render(written, rest)


@pytest.mark.parametrize("path", OPERATIONS, ids=lambda path: path.stem)
def test_operation_happens_with_threads_too(path: Path) -> None:
    """Pools, configs and comparisons on threads of their own end the same."""
    written, happened, _ = run_operation(path, has_threads=True)
    for expected, actual in zip(written, happened, strict=True):
        assert by_version(actual.output) == by_version(expected.output), (
            f"after {actual.command!r}"
        )


def test_the_promised_scenarios_are_there() -> None:
    """Drop, swap, canary, rollback, corrupt, out of memory and the reload race."""
    names = {path.stem for path in (*FILES, *OPERATIONS)}
    assert names >= {
        "canary",
        "drop",
        "swap",
        "rollback",
        "corrupt",
        "out_of_memory",
        "reload_race",
    }


def test_rendering_undoes_parsing() -> None:
    """Rewriting changes output and nothing else."""
    for path in (*FILES, *OPERATIONS):
        text = path.read_text()
        assert render(*parse(text)) == text
