"""Computes a batch layer by layer, and lets others join it between two of them.

("Layered Batch Inference Optimization Method for Convolutional Neural Networks Based on
CPU", LBCI, section 3.4. What differs here: joining has to pay, several calls may join
one after the other, a call whose layers fail does not affect the others, and the
deadlines are those of the callers.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tfs.core.clock import Clock
from tfs.runtime.batched_values import appended, check_rows, cut
from tfs.runtime.layer_times import LayerTimes
from tfs.runtime.part_call import PartCall, joined_arguments, shared_out

Layer = Callable[..., Any]
"""The first layer takes a call's arguments, each other one what the one before returned."""

TakeJoiners = Callable[[Sequence[PartCall], int, int], list[PartCall]]
"""Takes a batch, the layer that comes next, and the batch's rows; returns the calls that
join."""

MAX_JOINS: Final = 4  # in one run, because the running calls must come to an end


class LayerRun:
    """The layers of a part. Confined to the caller that computes at the moment.

    Attributes:
        layers: The layers in order; at least one.
        times: How long they take.

    """

    def __init__(self, layers: Sequence[Layer], max_rows: int, clock: Clock) -> None:
        self.layers = tuple(layers)
        self.times = LayerTimes(len(self.layers), max_rows)
        self._clock = clock

    def run(
        self, batch: list[PartCall], take: TakeJoiners, failed: list[PartCall]
    ) -> None:
        """Computes a batch and sets outcomes.

        Args:
            batch: The calls that begin; those that join are added.
            take: Takes joining calls out of their queue.
            failed: Gets the calls that were taken and whose own first layers failed.
                They are not in the batch, and have no outcome.

        Raises:
            Exception: What a layer raised for all; no call has an outcome.

        """
        self.times.begin()
        num_rows = sum(call.num_rows for call in batch)
        value = self._through(0, 1, *joined_arguments(batch), num_rows)
        num_joins = 0
        for layer in range(1, len(self.layers)):
            joining = take(batch, layer, num_rows) if num_joins < MAX_JOINS else []
            if joining:
                num_joins += 1
                num_joining = sum(call.num_rows for call in joining)
                try:
                    theirs = self._through(
                        0, layer, *joined_arguments(joining), num_joining
                    )
                    check_rows(theirs, num_joining)
                except Exception:
                    failed += joining
                except BaseException:
                    batch += joining  # the error is that of all calls
                    raise
                else:
                    batch += joining
                    num_rows += num_joining
                    value = self._joined(layer, value, theirs, num_rows)
            value = self._through(layer, layer + 1, (value,), {}, num_rows)
        if len(batch) == 1:
            batch[0].outcome = value
            return
        check_rows(value, num_rows)
        for call, result in zip(batch, shared_out(value, batch), strict=True):
            call.outcome = result

    def measure(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], budget_s: float
    ) -> None:
        """Measures all layers for 1, 2, 4, ... rows of the first row that is given.

        Each size is computed once before it is measured. Two sizes are measured
        whatever ``budget_s`` says.
        """
        end_s = self._clock.now() + budget_s
        num_rows = 1
        while num_rows <= self.times.max_rows:
            first = [_repeated(each, num_rows) for each in args]
            named = {name: _repeated(each, num_rows) for name, each in kwargs.items()}
            value = self.layers[0](*first, **named)
            for index, layer in enumerate(self.layers[1:], 1):
                self._joined(index, value, value, 2 * num_rows)
                value = layer(value)
            self._through(0, len(self.layers), first, named, num_rows)
            if self._clock.now() >= end_s and num_rows > 1:
                break
            num_rows *= 2
        self.times.begin()

    def _joined(self, layer: int, value: Any, theirs: Any, num_rows: int) -> Any:
        """Makes one batch of two before a layer, and records how long that took."""
        begun_s = self._clock.now()
        both = appended([value, theirs])
        self.times.note_join(layer, num_rows, self._clock.now() - begun_s)
        return both

    def _through(
        self,
        start: int,
        stop: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        num_rows: int,
    ) -> Any:
        """Computes some layers, and records how long each took."""
        begun_s = self._clock.now()
        value: Any = None
        for index in range(start, stop):
            layer = self.layers[index]
            value = layer(*args, **kwargs) if index == start else layer(value)
            now_s = self._clock.now()
            self.times.note(index, num_rows, now_s - begun_s)
            begun_s = now_s
        return value


def _repeated(value: Any, num_rows: int) -> Any:
    """Returns an argument with as many rows, all like its first; others as they are."""
    first = cut(value, 0, 1)
    return value if first is value else appended([first] * num_rows)
