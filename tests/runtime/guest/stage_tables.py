"""Tables of stages that were measured before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs.runtime.guest.layered.stage_times import StageTimes


def times_of(
    table: Sequence[Mapping[int, float]], max_rows: int, *, pads: bool = True
) -> StageTimes:
    """Returns times by stage: seconds by rows."""
    times = StageTimes(len(table), max_rows, pads=pads)
    for stage, measured in enumerate(table):
        for rows, duration_s in measured.items():
            times.put(stage, rows, duration_s)
    return times
