"""The commands that the README and CI promise."""

from __future__ import annotations

import os
import re
import subprocess

from tests.architecture.tree import ROOT

PROMISED = {
    "demo",
    "demo-hosted",
    "serve",
    "test",
    "check",
    "format",
    "proto",
    "pages",
    "test-clients",
    "test-engines",
    "simulate-hosted",
    "stress",
    "bench",
    "clean",
}


def make(*arguments: str) -> str:
    """Returns what make prints; a make around the tests must not leak in."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    result = subprocess.run(
        ["make", *arguments],
        cwd=ROOT,
        env={**env, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return result.stdout


def test_help_lists_every_promised_target() -> None:
    """Whoever types `make` sees what there is."""
    listed = set(re.findall(r"^  make (\S+)", make(), re.MULTILINE))
    assert listed >= PROMISED


def test_a_change_of_pins_renews_the_environment() -> None:
    """Everything runs on what pyproject.toml and constraints.txt say now."""
    dry_run = make("--dry-run", "--assume-new=constraints.txt", "test")
    assert dry_run.index("pip") < dry_run.index("pytest")
    assert "-c constraints.txt" in dry_run


def test_every_benchmark_area_is_a_module() -> None:
    """`make bench-AREA` runs tests.benchmarks.AREA, a module or a package."""
    makefile = (ROOT / "Makefile").read_text()
    lines = re.findall(r"^BENCH_(?:AREAS|APART) :=(.*)$", makefile, re.MULTILINE)
    areas = [area.replace("-", "_") for line in lines for area in line.split()]
    folder = ROOT / "tests/benchmarks"
    missing = [
        area
        for area in areas
        if not (folder / f"{area}.py").exists()
        and not (folder / area / "__main__.py").exists()
    ]
    assert missing == []


def test_make_pages_reprints_every_printed_page() -> None:
    """A page says which module prints it; whoever changed much need not know them all."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    told = re.findall(r"`python -m (tests\.[\w.]+)", "\n".join(pages))
    printers = {module for module in told if "benchmarks" not in module}
    assert printers
    dry_run = make("--dry-run", "pages")
    assert [module for module in sorted(printers) if module not in dry_run] == []


def test_ci_runs_the_checks_and_the_tests() -> None:
    """CI is what a developer runs; only what failed beside others is run again, alone."""
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == [
        "make check",
        "make test || make test PYTEST_PROCESSES=0 PYTEST_ARGS=--last-failed",
        'make test-engines ENGINES="postgres or envoy or xds or browser"',
    ]
    assert os.access(ROOT / ".ci/run", os.X_OK)
