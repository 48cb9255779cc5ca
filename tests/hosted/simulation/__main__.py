"""Simulates a big day, and prints docs/simulation.md and its plots: ``make simulate-hosted``."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.hosted.simulation.simulated_day import Day, DayOptions, SimulatedDay, p95

DOCS: Final = Path("docs")
LIMIT_S: Final = 480.0  # beside setting it up

PAGE: Final = """\
# A fleet in simulation

`make simulate-hosted` prints this page. The controller, the packer, the synchronizer and what
lets replicas follow load are those of [`tfs hosted`](hosted.md); time, servers and their loads
are simulated (`tests/hosted/simulation/`). Models have three copies each, in three zones, of 300 MiB
in the median, and popularity by Zipf's law; nodes have 64 GiB. Every ten minutes 5 % of the models
get a new version, of which one in fifty fails to load and is rolled back. Each hour a node is
lost, a model is added and one removed, and controller and synchronizer are killed and replaced. Once
a zone is lost for half an hour; once a zone, and for six minutes the store, cannot be reached. Near the end
the load of one model grows tenfold; another is launched two minutes after its hints.

| what | goal | result |
|---|---|---|
| models, nodes, simulated hours | | {num_models:,}, {num_nodes:,}, {num_hours:.1f} |
| took, of one core | 600 s | {took_s:.0f} s |
| invariants broken | 0 | {num_broken} |
| model-minutes available | 99.99 % | {available:.4f} % |
| changes that users asked for | | {num_changes:,} |
| a change in force everywhere, 95 of 100, with a look every {look_s:g} s | | {p95_s:.0f} s |
| tenfold load: 1/1.3 to 1.3 of the servers it needs serve, starts (5 s) and loads (7 s) included | 42 s, with looks every 10 s | {step_s:.0f} s |
| servers that a model has at its launch, of twenty that its hints asked for two minutes before | 20 | {at_launch} |
| most turns of a number of replicas in ten minutes, under noise of a fifth | 2 | {most_turns} |

![unavailable models, nodes, loads of versions, and servers that follow load](simulation.svg)

What is watched at every moment: a model that answered is never without an answer but by the loss of servers
(I1); a repeated request acts once (I2); memory of a server, and what is reserved, stay within its limit (I3);
a router knows only servers that said they have the model (I4); who was replaced is refused everywhere (I5);
no message unloads anything while the store is away (I6, I7); what was seen can be lost (I8);
a partition's models stay in it (I9); a rollback works with the newest version broken (I10).
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--look_s", type=float, default=10)
    parser.add_argument("--no_page", action="store_true")
    asked = parser.parse_args()
    options = DayOptions(
        asked.models, asked.nodes, asked.hours, asked.look_s, limit_s=LIMIT_S
    )
    begin_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        day = SimulatedDay(options, Path(folder)).run()
    took_s = time.process_time() - begin_s
    if not asked.no_page:
        write(options, day, took_s)
    for each in day.broken[:20]:
        print(each)
    print(
        f"simulate-hosted: models={asked.models} nodes={asked.nodes} "
        f"hours={day.num_hours:.1f} took_s={took_s:.0f} broken={len(day.broken)} "
        f"available={day.availability:.6f} step_s={day.step_s:.0f} "
        f"turns={day.most_turns}"
    )
    if day.broken:
        raise SystemExit(1)


def write(options: DayOptions, day: Day, took_s: float) -> None:
    """Writes the page and its plots."""
    page = PAGE.format(
        num_models=options.num_models,
        num_nodes=options.num_nodes,
        num_hours=day.num_hours,
        look_s=options.look_s,
        took_s=took_s,
        num_broken=len(day.broken),
        available=100 * day.availability,
        num_changes=day.num_changes,
        p95_s=p95(day.in_force_s),
        step_s=day.step_s,
        most_turns=day.most_turns,
        at_launch=day.at_launch,
    )
    (DOCS / "simulation.md").write_text(page, encoding="utf-8")
    _plot(day)


def _plot(day: Day) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "tfs"
    import matplotlib.pyplot as plt

    hours = [(each + 1) / 6 for each in range(len(day.nodes))]
    panels: Sequence[tuple[str, Sequence[Sequence[float]]]] = (
        ("unavailable, % of models", [[100 * each for each in day.unavailable]]),
        ("servers that run", [day.nodes]),
        ("versions loaded in ten minutes", [day.loads]),
        ("hot model: servers needed, serving", [day.hot_needed, day.hot_replicas]),
    )
    figure, axes = plt.subplots(2, 2, figsize=(9, 5), layout="constrained")
    for axis, (title, lines) in zip(axes.flat, panels, strict=True):
        for line in lines:
            axis.step(hours, line, where="pre")
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("hours", fontsize=8)
    figure.savefig(DOCS / "simulation.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
