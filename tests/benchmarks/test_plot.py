"""The picture beside a table."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.plot import Panel, write_curves, write_panels


def test_curves_become_a_png(tmp_path: Path) -> None:
    """A plot is a PNG in a folder that need not exist yet."""
    path = tmp_path / "results" / "fake.png"
    write_curves(
        path,
        {"tfs": [(1, 10.0), (2, 19.0)], "ceiling": [(1, 11.0), (2, 22.0)]},
        title="Throughput",
        x_label="requesters",
        y_label="requests/s",
        limit=20.0,
        log_x=True,
    )
    assert path.read_bytes().startswith(b"\x89PNG")


def test_panels_share_one_png(tmp_path: Path) -> None:
    """Each model's curves stand beside what is claimed of them."""
    path = tmp_path / "results" / "panels.png"
    curves = {"tfs": [(1.0, 10.0), (2.0, 19.0)], "global": [(1.0, 11.0), (2.0, 8.0)]}
    write_panels(
        path,
        [Panel("dlrm", "scales", curves), Panel("encoder", "does not", curves)],
        title="Throughput",
        x_label="requesters",
        y_label="calls/s",
    )
    assert path.read_bytes().startswith(b"\x89PNG")
