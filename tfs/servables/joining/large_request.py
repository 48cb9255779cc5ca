"""A request with more rows than a queue holds, or than a batch has.

Batches of a small model are small, because beyond some thirty rows joining gains
nothing. The overhead of a batch does not matter then. But it matters to a request of
ten thousand rows, which took a hundred times as long in batches as in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from tfs.core.errors import InvalidItems, ServingError, forget_frames, serving_error
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.tensor_view import TensorView, concatenate
from tfs.servables.joining.tensor_join import cut_inner

CALL_S: Final = 1e-3
"""Seconds that the call of one portion should take, for which others wait for their
turn."""

_MOST_BATCHES: Final = 32  # in a portion, because only small calls were measured


def portion_rows(batch_rows: int, batch_s: float) -> int | None:
    """Returns the rows of a portion where batches take ``batch_s`` seconds.

    Returns None if that is not known, or if portions would be hardly larger than
    batches: then the request is better spread over batches, which others can share.
    """
    if batch_s <= 0 or 2 * batch_s > CALL_S:
        return None
    return int(batch_rows * min(CALL_S / batch_s, _MOST_BATCHES))


class LargeRequest:
    """A request larger than a queue or a batch holds, submitted portion by portion.

    Portions are submitted one at a time, so that others get their turns in between and
    the queue never fills. The request ends with its last portion, or with the first
    that fails. Loop-confined, except that portions end on any thread.

    Args:
        task: The request.
        num_rows: Rows of each portion.
        split: Makes a portion.
        submit: Takes a portion.
        loop: The loop on which the next portion is submitted.
        outputs: Takes the outputs of the portions.
        on_end: Called once, after the request has ended, on any thread.

    """

    def __init__(
        self,
        task: InferenceTask,
        num_rows: int,
        split: Callable[
            [InferenceTask, int, int, Callable[[Outcome], None]], InferenceTask
        ],
        submit: Callable[[InferenceTask], None],
        loop: ServingLoop,
        outputs: PartOutputs,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task
        self._num_rows = num_rows
        self._split = split
        self._submit = submit
        self._loop = loop
        self._on_end = on_end
        self._start = 0
        self._stop = 0
        self._outputs = outputs

    def go_on(self) -> None:
        """Submits the next portion."""
        task = self._task
        error = task.cancel.error
        if error is not None and self._start:
            self._end(error)  # nobody waits for the remaining portions
            return
        try:
            self._stop = min(self._start + self._num_rows, task.num_rows)
            portion = self._split(task, self._start, self._stop, self._done)
        except Exception as failure:
            self._end(serving_error(failure, "splitting a request failed"))
            return
        self._submit(portion)

    def _done(self, outcome: Outcome) -> None:
        if isinstance(outcome, ServingError):
            if isinstance(outcome, InvalidItems):
                outcome = outcome.after(self._start)
            self._end(outcome)
            return
        try:
            self._outputs.add(self._start, outcome)
            self._start = self._stop
            if self._start < self._task.num_rows:
                self._loop.post(self.go_on)
                return
            outcome = self._outputs.whole()
        except Exception as error:
            outcome = serving_error(error, "joining the portions failed")
            forget_frames(outcome)  # they refer to all portions
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        try:
            self._task.on_done(outcome)
        finally:
            self._on_end()


class PartOutputs:
    """Takes the outputs of a request's parts, in any order. Confined to one thread at a time.

    Args:
        wanted: Names of the outputs that the request asked for; empty means all. Parts
            may come with further ones, and not all with the same.
        padded: Names of the outputs whose inner sizes depend on the batch in which a part
            was computed. What some parts answer beyond the others is for padding, and is
            cut off.

    """

    __slots__ = ("_padded", "_parts", "_wanted")

    def __init__(
        self, wanted: Sequence[str] = (), *, padded: Container[str] = ()
    ) -> None:
        self._wanted = tuple(wanted)
        self._padded = padded
        self._parts: dict[int, Tensors] = {}

    def add(self, start: int, outputs: Tensors) -> None:
        """Takes the outputs of the part whose first row is ``start``.

        Raises:
            KeyError: An output is missing that was asked for, or that another part has.

        """
        names = self._wanted = self._wanted or tuple(outputs)
        self._parts[start] = {name: outputs[name] for name in names}

    def whole(self) -> Tensors:
        """Returns the outputs of the request, once all parts were taken.

        Raises:
            ValueError: Outputs do not fit together.

        """
        parts = [self._parts[start] for start in sorted(self._parts)]
        return {name: self._joined(name, parts) for name in self._wanted}

    def _joined(self, name: str, parts: list[Tensors]) -> TensorView:
        views = [part[name] for part in parts]
        inner = [view.shape[1:] for view in views]
        if name in self._padded and len({len(each) for each in inner}) == 1:
            smallest = tuple(map(min, zip(*inner, strict=True)))
            views = [cut_inner(view, smallest) for view in views]
        return concatenate(views)
