"""Computes batches stage by stage, lets others join between two stages, and ends all calls.

("Layered Batch Inference Optimization Method for Convolutional Neural Networks Based on
CPU", LBCI, section 3.4. What differs here: a rule decides whether joining pays, several
requests may join one after the other, one whose stages fail does not affect the others,
those for which nobody waits leave, and the deadlines are those of the callers.)
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

import torch

from tfs.core.batch.batch_task import Cancellation
from tfs.core.clock import Clock
from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.runtime.guest.layered.batched_values import appended, check_rows, cut, rows_of
from tfs.runtime.guest.layered.rules import GREEDY, Boundary, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes

Stage: TypeAlias = Callable[..., Any]
"""The first stage takes a call's arguments, each other one what the one before returned."""

_ROUNDS: Final = 5  # of each size at most
_EXPLORES_EVERY: Final = 64
"""One run in so many is not padded, and takes whoever waits: the time of a size that the
table advises against would never be measured again."""


@dataclass(eq=False, slots=True)
class StagedCall(ABC):
    """A call that is computed in stages. Confined to whoever computes.

    Attributes:
        args: Its positional arguments.
        kwargs: Its arguments by name.
        num_rows: Rows of its tensors.
        arrived_s: When it came.
        deadline_s: By when it has to be answered; None for never.
        cancel: Whether somebody waits for it.

    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    num_rows: int
    arrived_s: float
    deadline_s: float | None
    cancel: Cancellation

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Ends it without a result."""

    def gone(self, now_s: float) -> ServingError | None:
        """Returns why nobody waits for it any more; None while somebody does."""
        error = self.cancel.error
        if error is None and self.deadline_s is not None and now_s >= self.deadline_s:
            error = DeadlineExceeded("the deadline passed while it was computed")
        return error


CallT = TypeVar("CallT", bound=StagedCall)

Take: TypeAlias = Callable[[Callable[..., int]], list[CallT]]
"""Takes the calls that join a batch out of their queue. It is given a function that tells
how many of the first rows do, of the calls that wait and could, in order and at least one,
and of the rows that came per second lately, if that is known."""


class Stages(Generic[CallT]):
    """The stages of a model. Confined to the caller that computes at the moment.

    Args:
        stages: In order; at least one.
        max_rows: Most rows of a batch.
        clock: Measures stages; arrivals and deadlines go by it.
        share: Ends each call of a batch with its rows of a result.
        allowed: Returns to how many rows the arguments of so many are filled up.

    Attributes:
        times: How long the stages take.
        num_joined: Calls that were taken to join a running batch so far.

    """

    def __init__(
        self,
        stages: Sequence[Stage],
        max_rows: int,
        clock: Clock,
        share: Callable[[Any, Sequence[CallT]], None],
        allowed: Callable[[int], int] = int,
    ) -> None:
        self._stages = tuple(stages)
        self.times = StageTimes(len(self._stages), max_rows)
        self.num_joined = 0
        self._clock = clock
        self._share = share
        self._allowed = allowed
        self._num_runs = 0
        self._begun_s = 0.0  # of the stage that runs
        self._last_rows = 0  # of the last stage

    def most_rows(self, rule: Rule) -> int:
        """Returns with how many rows the next batch may begin."""
        return self.times.max_rows if self._explores else rule.most_rows(self.times)

    def serve(
        self,
        batch: Sequence[CallT],
        rule: Rule = GREEDY,
        take: Take[CallT] = lambda _: [],
    ) -> int:
        """Computes calls and those that join them, and ends each of them once.

        Those for which nobody waits leave at the next boundary. If a batch fails, it is
        computed again in halves that nobody joins, until each call at fault is alone.

        Args:
            batch: The calls that begin.
            rule: Decides how many join.
            take: Takes these out of their queue.

        Returns:
            How many batches were computed.

        """
        running, failed, num_runs = list(batch), list[CallT](), 1
        try:
            value = self._run(running, failed, rule, take)
            if running:
                self._share(value, running)
                # Until callers have their results, it is time of the last stage.
                last_s = self._clock.now() - self._begun_s
                self.times.note(len(self._stages) - 1, self._last_rows, last_s)
        except BaseException as error:  # every call has to be ended
            if not isinstance(error, Exception):
                running, failed = running + failed, []
            if len(running) == 1 or not isinstance(error, Exception):
                for call in running:
                    call.fail(error)
            else:
                half = len(running) // 2
                num_runs += self.serve(running[:half]) + self.serve(running[half:])
        return num_runs + (self.serve(failed) if failed else 0)

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
            for index, stage in enumerate(self._stages):
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

    @property
    def _explores(self) -> bool:
        return self._num_runs % _EXPLORES_EVERY == _EXPLORES_EVERY - 1

    def _run(
        self, batch: list[CallT], failed: list[CallT], rule: Rule, take: Take[CallT]
    ) -> Any:
        """Returns the result of ``batch``, to which those that join are added.

        Calls that were taken, and whose own first stages failed, go to ``failed``.
        """
        if len(self._stages) > 1:
            self.times.begin()
        begun_s = self._begun_s = self._clock.now()
        value = self._begin(batch, 1)
        num_joins = 0
        for stage in range(1, len(self._stages)):
            value = self._without_gone(value, batch)
            if not batch:
                return None
            joining = take(
                partial(self._rows_to_join, rule, batch, stage, num_joins, begun_s)
            )
            if joining:
                num_joins += 1
                self.num_joined += len(joining)
                try:
                    theirs = self._begin(joining, stage)
                    check_rows(theirs, _rows_in(joining))
                    both = _rows_in(batch) + _rows_in(joining)
                    value = self._joined(stage, value, theirs, both)
                except BaseException as error:
                    failed += joining
                    if not isinstance(error, Exception):
                        raise
                else:
                    batch += joining
            value = self._compute(stage, value, _rows_in(batch))
        self._num_runs += 1
        return value

    def _rows_to_join(
        self,
        rule: Rule,
        batch: Sequence[CallT],
        stage: int,
        num_joins: int,
        begun_s: float,
        waiting: Sequence[CallT],
        rate: float = 0.0,
    ) -> int:
        now_s = self._clock.now()
        deadlines = [call.deadline_s for call in batch if call.deadline_s is not None]
        at = Boundary(
            stage,
            _rows_in(batch),
            [call.num_rows for call in waiting],
            left_s=min(deadlines, default=math.inf) - now_s,
            oldest_s=now_s - min(call.arrived_s for call in batch),
            waited_s=now_s - waiting[0].arrived_s,
            run_s=now_s - begun_s,
            num_joins=num_joins,
            rate=rate,
        )
        return rule.rows_to_join(self.times, at)

    def _begin(self, calls: Sequence[CallT], stop: int) -> Any:
        """Computes the stages before ``stop`` for calls that come in together."""
        num_rows = _rows_in(calls)
        num_missing = self._allowed(num_rows) - num_rows
        args, kwargs = joined_arguments(calls, num_missing)
        value = self._stages[0](*args, **kwargs)
        if num_missing:
            check_rows(value, num_rows + num_missing)
            value = rows_of(value, 0, num_rows)
        self._note(0, num_rows)
        for stage in range(1, stop):
            value = self._compute(stage, value, num_rows)
        return value

    def _compute(self, stage: int, value: Any, num_rows: int) -> Any:
        """Computes a stage, for more rows if the table says that this is cheaper."""
        rows = num_rows
        if isinstance(value, torch.Tensor) and self.times.are_known:
            rows = num_rows if self._explores else self.times.padded(stage, num_rows)
        if rows > num_rows:
            filling = value[:1].expand(rows - num_rows, *value.shape[1:])
            value = torch.cat([value, filling])
        value = self._stages[stage](value)
        self._note(stage, rows)
        return value if rows == num_rows else rows_of(value, 0, num_rows)

    def _note(self, stage: int, rows: int) -> None:
        """Records how long a stage took.

        Each counts from the end of the one before it: what is done between them, such as
        deciding who joins, is time of the run, too.
        """
        if stage == len(self._stages) - 1:
            self._last_rows = rows
            return
        now_s = self._clock.now()
        self.times.note(stage, rows, now_s - self._begun_s)
        self._begun_s = now_s

    def _joined(self, stage: int, value: Any, theirs: Any, num_rows: int) -> Any:
        """Makes one batch of two before a stage, and records how long that took."""
        begun_s = self._clock.now()
        both = appended([value, theirs])
        self._begun_s = self._clock.now()
        self.times.note_join(stage, num_rows, self._begun_s - begun_s)
        return both

    def _without_gone(self, value: Any, batch: list[CallT]) -> Any:
        """Ends the calls for which nobody waits; returns the rows of the others."""
        now_s = self._clock.now()
        if not any(call.gone(now_s) for call in batch):
            return value
        staying, parts = [], []
        for call, part in zip(batch, shared_out(value, batch), strict=True):
            error = call.gone(now_s)
            if error is None:
                staying.append(call)
                parts.append(part)
            else:
                call.fail(error)
        batch[:] = staying
        return appended(parts) if parts else None


def joined_arguments(
    batch: Sequence[StagedCall], num_missing: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of several calls as those of one.

    The first call's first row is repeated for ``num_missing`` further rows. Arguments
    that are not tensors are equal in all calls.
    """
    first = batch[0]
    if len(batch) == 1 and not num_missing:
        return list(first.args), dict(first.kwargs)

    def joined(values: list[Any]) -> Any:
        begin = values[0]
        if not isinstance(begin, torch.Tensor):
            return begin
        if num_missing:
            values.append(begin[:1].expand(num_missing, *begin.shape[1:]))
        return torch.cat(values)

    args = [joined(list(each)) for each in zip(*(c.args for c in batch), strict=True)]
    kwargs = {k: joined([call.kwargs[k] for call in batch]) for k in first.kwargs}
    return args, kwargs


def shared_out(result: Any, batch: Sequence[StagedCall]) -> list[Any]:
    """Returns each call's rows of a result."""
    stops = itertools.accumulate(call.num_rows for call in batch)
    return [
        rows_of(result, stop - call.num_rows, stop)
        for call, stop in zip(batch, stops, strict=True)
    ]


def _rows_in(calls: Sequence[StagedCall]) -> int:
    return sum([call.num_rows for call in calls])


def _repeated(value: Any, num_rows: int) -> Any:
    """Returns an argument with as many rows, all like its first; others as they are."""
    first = cut(value, 0, 1)
    return value if first is value else appended([first] * num_rows)
