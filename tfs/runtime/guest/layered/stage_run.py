"""Computes a batch stage by stage, and lets others join it between two of them.

("Layered Batch Inference Optimization Method for Convolutional Neural Networks Based on
CPU", LBCI, section 3.4. What differs here: a rule decides whether joining pays, several
requests may join one after the other, one whose stages fail does not affect the others,
those for which nobody waits leave, and the deadlines are those of the callers.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch

from tfs.core.clock import Clock
from tfs.runtime.guest.layered.batched_values import appended, check_rows, cut, rows_of
from tfs.runtime.guest.layered.part_call import StagedCall, joined_arguments
from tfs.runtime.guest.layered.rules import Boundary
from tfs.runtime.guest.layered.stage_times import StageTimes

Stage = Callable[..., Any]
"""The first stage takes a call's arguments, each other one what the one before returned."""

_ROUNDS: Final = 5  # of each size at most
_EXPLORES_EVERY: Final = 64
"""One run in so many is not padded, and takes whoever waits: the time of a size that the
table advises against would never be measured again."""


CallT = TypeVar("CallT", bound=StagedCall)


class Chain:
    """Layers one after the other, as one function."""

    def __init__(self, layers: Sequence[Stage]) -> None:
        self._layers = layers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first, *others = self._layers
        value = first(*args, **kwargs)
        for layer in others:
            value = layer(value)
        return value


class StageRun:
    """The stages of a model. Confined to the caller that computes at the moment.

    Attributes:
        stages: The stages in order; at least one.
        times: How long they take.

    """

    def __init__(self, stages: Sequence[Stage], max_rows: int, clock: Clock) -> None:
        self.stages = tuple(stages)
        self.times = StageTimes(len(self.stages), max_rows)
        self._clock = clock
        self._num_runs = 0
        self._begun_s = 0.0  # of the stage that runs
        self._last: tuple[int, int] | None = (
            None  # a stage that has not ended, and rows
        )

    @property
    def explores(self) -> bool:
        """Whether this run, or the one that comes next, tries what the table does not like."""
        return self._num_runs % _EXPLORES_EVERY == _EXPLORES_EVERY - 1

    def run(
        self,
        batch: list[CallT],
        take: Callable[[int, int, int, float], list[CallT]],
        failed: list[CallT],
        left: list[CallT],
    ) -> Any:
        """Computes a batch; returns its result, which has the rows of ``batch`` in order.

        Args:
            batch: The calls that begin. Those that join are added, and those for which
                nobody waits any more are taken out.
            take: Takes calls that join out of their queue, given the stage that comes
                next, the batch's rows, how often others have joined, and when it began.
            failed: Gets the calls that were taken and whose own first stages failed.
                They are not in the batch.
            left: Gets the calls for which nobody waits any more.

        Raises:
            Exception: What a stage raised for all.

        """
        self.times.begin()
        self._last = None
        begun_s = self._begun_s = self._clock.now()
        num_rows = sum(call.num_rows for call in batch)
        value = self._through(0, 1, *joined_arguments(batch), num_rows)
        num_joins = 0
        for stage in range(1, len(self.stages)):
            now_s = self._clock.now()
            if any(call.gone(now_s) for call in batch):
                value = _without_gone(value, batch, left, now_s)
                num_rows = sum(call.num_rows for call in batch)
                if not batch:
                    return value
            joining = take(stage, num_rows, num_joins, begun_s)
            if joining:
                num_joins += 1
                num_joining = sum(call.num_rows for call in joining)
                try:
                    theirs = self._through(
                        0, stage, *joined_arguments(joining), num_joining
                    )
                    check_rows(theirs, num_joining)
                    both = num_rows + num_joining
                    joined = self._joined(stage, value, theirs, both)
                except Exception:
                    failed += joining
                except BaseException:
                    batch += joining  # the error is that of all calls
                    raise
                else:
                    batch += joining
                    num_rows, value = both, joined
            value = self._through(stage, stage + 1, (value,), {}, num_rows)
        self._num_runs += 1
        return value

    def end(self) -> None:
        """Says that the callers have their results: that belongs to the last stage, too."""
        if self._last is not None:
            stage, rows = self._last
            self._last = None
            self.times.note(stage, rows, self._clock.now() - self._begun_s)

    def measure(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], budget_s: float
    ) -> None:
        """Measures all stages for 1, 2, 3, 4, 6, 8, ... rows of the first row given.

        Sizes take turns, powers of two first, so that whatever else the machine does
        affects all of them; the least time of each counts. The sizes 1 and 2 are run
        whatever ``budget_s`` says.
        """
        end_s = self._clock.now() + budget_s
        most = self.times.max_rows
        powers = [1 << i for i in range(most.bit_length())]
        between = [size + size // 2 for size in powers[1:]]
        sizes = [s for s in dict.fromkeys((*powers, most, *between)) if s <= most]
        found: dict[tuple[int, int], float] = {}
        for round_index, num_rows in itertools.product(range(_ROUNDS), sizes):
            if (round_index or num_rows > 2) and self._clock.now() >= end_s:
                break
            first = [_repeated(each, num_rows) for each in args]
            named = {k: _repeated(each, num_rows) for k, each in kwargs.items()}
            value: Any = None
            for index, stage in enumerate(self.stages):
                if index:
                    self._joined(index, value, value, 2 * num_rows)
                begun_s = self._clock.now()
                value = stage(value) if index else stage(*first, **named)
                took_s = self._clock.now() - begun_s
                place = index, num_rows
                found[place] = min(found.get(place, took_s), took_s)
        for (index, num_rows), least_s in found.items():
            self.times.put(index, num_rows, least_s)
        self.times.begin()

    def _joined(self, stage: int, value: Any, theirs: Any, num_rows: int) -> Any:
        """Makes one batch of two before a stage, and records how long that took."""
        begun_s = self._clock.now()
        both = appended([value, theirs])
        self._begun_s = self._clock.now()
        self.times.note_join(stage, num_rows, self._begun_s - begun_s)
        return both

    def _through(
        self,
        start: int,
        stop: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        num_rows: int,
    ) -> Any:
        """Computes some stages, and records how long each took.

        Each counts from the end of the one before it: what is done between them, such as
        deciding who joins, is time of the run, too.
        """
        pads = not self.explores and self.times.are_known
        value: Any = args[0] if start else None
        for index in range(start, stop):
            stage = self.stages[index]
            rows = self.times.padded(index, num_rows) if pads and index else num_rows
            if rows > num_rows and isinstance(value, torch.Tensor):
                filling = value[:1].expand(rows - num_rows, *value.shape[1:])
                value = rows_of(stage(torch.cat([value, filling])), 0, num_rows)
            else:
                rows = num_rows
                value = stage(value) if index else stage(*args, **kwargs)
            if index == len(self.stages) - 1:
                self._last = index, rows
                break
            now_s = self._clock.now()
            self.times.note(index, rows, now_s - self._begun_s)
            self._begun_s = now_s
        return value


def boundary(
    batch: Sequence[StagedCall],
    waiting: Sequence[StagedCall],
    place: tuple[int, int, int, float],
    now_s: float,
    rate: float = 0.0,
) -> Boundary:
    """Returns what a rule has to know.

    Args:
        batch: The calls that run.
        waiting: Those that wait and could join, in order; at least one.
        place: What ``StageRun.run`` told.
        now_s: The time.
        rate: Rows that came per second lately.

    """
    stage, num_rows, num_joins, begun_s = place
    deadlines = [call.deadline_s for call in batch if call.deadline_s is not None]
    return Boundary(
        stage,
        num_rows,
        [call.num_rows for call in waiting],
        left_s=min(deadlines, default=math.inf) - now_s,
        oldest_s=now_s - min(call.arrived_s for call in batch),
        waited_s=now_s - waiting[0].arrived_s,
        run_s=now_s - begun_s,
        num_joins=num_joins,
        rate=rate,
    )


def _without_gone(
    value: Any, batch: list[CallT], left: list[CallT], now_s: float
) -> Any:
    """Returns the rows of those calls for which somebody waits, and keeps only them."""
    parts, staying, start = [], [], 0
    for call in batch:
        stop = start + call.num_rows
        if call.gone(now_s) is None:
            staying.append(call)
            parts.append(rows_of(value, start, stop))
        else:
            left.append(call)
        start = stop
    batch[:] = staying
    return appended(parts) if parts else None


def _repeated(value: Any, num_rows: int) -> Any:
    """Returns an argument with as many rows, all like its first; others as they are."""
    first = cut(value, 0, 1)
    return value if first is value else appended([first] * num_rows)
