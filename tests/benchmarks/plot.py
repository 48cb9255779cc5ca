"""Curves as a PNG, where a curve says more than a table. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Points = Sequence[tuple[float, float]]


def write_curves(
    path: Path,
    curves: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    limit: float | None = None,
    log_x: bool = False,
) -> None:
    """Draws one line with markers per curve, and a dashed one at the goal's limit.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; nothing was written.
    """
    # Imported here: only benchmarks that draw pay for it, and need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker="o", label=name)
    if limit is not None:
        axes.axhline(limit, linestyle="--", color="gray", label=f"goal {limit:g}")
    if log_x:
        axes.set_xscale("log")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
