"""Curves as a PNG, where a curve says more than a table. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several pictures side by side.

    Attributes:
        title: What it shows.
        claim: What somebody claims of it, shown below.
        curves: Points by name.

    """

    title: str
    claim: str
    curves: Mapping[str, Points]


def write_panels(
    path: Path, panels: Sequence[Panel], *, title: str, x_label: str, y_label: str
) -> None:
    """Draws panels side by side, each with its own scale and its claim.

    Raises:
        ModuleNotFoundError: matplotlib is not installed; nothing was written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(panels), 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for index, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), index)
        for name, points in panel.curves.items():
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, marker="o", label=name)
        axes.set(
            title=panel.title,
            xlabel=f"{x_label}\n\n{panel.claim}",
            ylabel=y_label if index == 1 else "",
        )
        axes.set_xticks(
            sorted({x for points in panel.curves.values() for x, _ in points})
        )
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
