"""Prints docs/metrics.md from tfs.core.stat_names: python -m tests.core.metrics_page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tfs.core.stat_names import StatMeaning, stat_meanings
from tfs.server.metrics_page import OTHER_FAMILIES, exported_name, kind_of

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

_HEAD = """\
# What is counted

`tfs status --stats` prints these counters and histograms, and so does the page for Prometheus
([how to open it](operations.md#metrics)), which also has

| metric | meaning |
|---|---|
"""

_STATS = """
What is counted of a version disappears when it is unloaded. Labels have their values from the
configuration, from versions and from closed sets, never from what a client sends: a model has 100
lines here, and for each signature of a version 150 more, for each method and batching together.

| `tfs status --stats` | Prometheus | kind | meaning |
|---|---|---|---|
"""

_TAIL = """
This page is printed by `python -m tests.core.metrics_page`.
"""


def page() -> str:
    """Returns docs/metrics.md."""
    others = "".join(
        f"| `{each.name}{{{','.join(each.labels)}}}` | {each.meaning} |\n"
        if each.labels
        else f"| `{each.name}` | {each.meaning} |\n"
        for each in OTHER_FAMILIES
    )
    stats = "".join(_row(name, told) for name, told in stat_meanings().items())
    return _HEAD + others + _STATS + stats + _TAIL


def _row(name: str, told: StatMeaning) -> str:
    kind = "histogram" if told.kind == "Histogram" else kind_of(name)
    where = f" ({told.where} only)" if told.where else ""
    exported = exported_name(name, kind)
    return f"| `{name}` | `{exported}` | {kind}{where} | {told.text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
