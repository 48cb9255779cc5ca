"""Prints docs/metrics.md from tfs.core.stat_names: python -m tests.core.metrics_page."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tfs.core import stat_names
from tfs.server.metrics.metrics_page import exported_name, kind_of

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

_HEAD = """\
# What is counted

`tfs status --stats` prints these counters and histograms, and so does the page for Prometheus
([how to open it](operations.md#metrics)), which also has

| metric | meaning |
|---|---|
| `tfs_ready` | 1 when requests should be sent here, as health tells |
| `tfs_model_available{model}` | 1 when a version answers requests that name none |
| `tfs_model_primary_version{model}` | that version |
| `tfs_model_version_state{model,version,state}` | 1 for the state of each version: START, LOADING, AVAILABLE, UNLOADING, END, or FAILED if it is asked for and could not be loaded, or is quarantined |
| `process_resident_memory_bytes` | memory of the server and its processes |
| `process_start_time_seconds` | when the server started |
| `:tensorflow:serving:request_count{model_name,status}` | requests, under TensorFlow Serving's name: a sum over versions, which never falls |
| `:tensorflow:serving:request_latency{model_name,API,entrypoint}` | their latencies in microseconds, likewise |

Those of a version go with it.

| `tfs status --stats` | Prometheus | kind | meaning |
|---|---|---|---|
"""

# The first words of a text: what the stat is, and which transport has it.
_MEANING: Final = re.compile(
    r"(?P<kind>Counter|Gauge|Histogram)(?:, (?P<where>\w+))?: (?P<meaning>.+)"
)

_TAIL = """
This page is printed by `python -m tests.core.metrics_page`.
"""


def page() -> str:
    """Returns docs/metrics.md."""
    return _HEAD + "".join(_row(*each) for each in _meanings()) + _TAIL


def _row(name: str, text: str) -> str:
    told = _MEANING.fullmatch(text)
    assert told is not None, f"{name}: {text} does not begin with its kind"
    kind = "histogram" if told["kind"] == "Histogram" else kind_of(name)
    where = f" ({told['where']} only)" if told["where"] else ""
    meaning = told["meaning"].replace("``", "`")
    exported = exported_name(name, kind)
    return f"| `{name}` | `{exported}` | {kind}{where} | {meaning} |\n"


def _meanings() -> Iterator[tuple[str, str]]:
    """Yields each name with the string that stands below it."""
    body = ast.parse(Path(stat_names.__file__).read_text(encoding="utf-8")).body
    for definition, text in itertools.pairwise(body):
        match definition, text:
            case (
                ast.AnnAssign(value=ast.Constant(value=str(name))),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                yield name, " ".join(meaning.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
