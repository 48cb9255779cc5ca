"""A task whose tensors travel in a memfd, because no slot of a slab holds them.

The serving loop makes short copies itself. Longer copies, and the packing of many
strings, are made on other threads before the task joins its lane.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from tfs.core.dtype import STRING
from tfs.core.errors import Internal, InvalidArgument, ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.tensor_view import Buffer, TensorView
from tfs.runtime.guest.sealed_file import new_memfd
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    MAX_WORDS,
    REQUEST_WORDS,
    aligned,
    pack_strings,
)

MANY_STRINGS: Final = 8_192
"""Up to so many strings are packed, or unpacked, within a millisecond."""

MANY_BYTES: Final = 16 << 20
"""Up to so many are copied within some ten milliseconds; a slot holds about as many."""

_WRITE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Spill:
    """The tensors of a task in a memfd. Immutable; whoever has it closes ``fd``.

    Attributes:
        words: The words of a descriptor; offsets count from the memfd's start.
        total_bytes: The size of the memfd.
        fd: The memfd.

    """

    words: tuple[int, ...]
    total_bytes: int
    fd: int

    @classmethod
    def of(cls, task: InferenceTask) -> Self:
        """Copies a task's tensors.

        Raises:
            InvalidArgument: More tensors than a descriptor holds.
            OSError: No memory for the memfd.

        """
        words, payloads, total_bytes = describe(task, 0)
        fd = new_memfd("inputs")
        try:
            os.ftruncate(fd, total_bytes)
            for _, offset, data in payloads:
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(fd, rest[:_WRITE_BYTES], offset)
                    offset += written
                    rest = rest[written:]
        except BaseException:
            os.close(fd)
            raise
        return cls(tuple(words), total_bytes, fd)


class SpilledTask(InferenceTask):
    """Another task with its tensors in a memfd, which is closed when it ends.

    It has no inputs, so that their memory can go; nor has the other, if it can make
    them anew. For lanes alone.

    Args:
        task: The other task.
        hand_over: Takes the other task where rows of it were left out after they had
            been copied. On the loop.

    Raises:
        InvalidArgument: More tensors than a descriptor holds; the other is untouched.
        OSError: No memory for the memfd, likewise.

    """

    __slots__ = ("_hand_over", "_whole", "spill")

    def __init__(
        self, task: InferenceTask, hand_over: Callable[[InferenceTask], None]
    ) -> None:
        self.spill = Spill.of(task)
        self._hand_over = hand_over
        self._whole = task if task.may_shrink else None
        if self._whole is not None:
            self._whole.inputs = {}
        on_done = task.on_done

        def end(outcome: Outcome) -> None:
            os.close(self.spill.fd)
            on_done(outcome)

        super().__init__(
            task.signature_name,
            task.signature,
            {},
            end,
            task.num_rows,
            task.output_filter,
            task.deadline_s,
            task.cancel,
            task.is_low,
        )
        self.trace = task.trace

    def begin(self, now_s: float, who: str) -> ServingError | None:
        if self._whole is None:
            return super().begin(now_s, who)
        return self._whole.begin(now_s, who)

    def handed_over_again(self) -> bool:
        """Hands the task over without the rows that were left out when it began, if any."""
        whole = self._whole
        if whole is None or not whole.inputs:
            return False
        os.close(self.spill.fd)
        self._hand_over(whole)
        return True


def why_not_handed_over(who: str, error: Exception) -> ServingError:
    """Returns the answer to a task for ``who`` that could not be written."""
    if isinstance(error, InvalidArgument):
        return InvalidArgument(f"{who}: {error.message}")
    return Internal(f"{who}: a request cannot be handed over: {error}")


def takes_long_to_write(task: InferenceTask) -> bool:
    """Tells whether the loop may not take the time to write a task into a slab."""
    num_bytes = 0
    for view in task.inputs.values():
        data = view.data
        if isinstance(data, tuple):
            if len(data) > MANY_STRINGS:
                return True
            num_bytes += view.size_bytes
        else:
            num_bytes += len(data)
    return num_bytes > MANY_BYTES


def describe(
    task: InferenceTask, start: int
) -> tuple[list[int], Sequence[tuple[str, int, Buffer]], int]:
    """Says where the tensors of a task lie, if they begin at ``start``.

    Returns:
        The words of a descriptor, of each input the name, where its bytes begin and
        the bytes, and where they end.

    Raises:
        InvalidArgument: More tensors than a descriptor holds.

    """
    words: list[int] = []
    payloads: list[tuple[str, int, Buffer]] = []
    offset = start
    for index, name in enumerate(task.signature.inputs):
        view = task.inputs.get(name)
        if view is None:
            continue
        data = _bytes_of(view)
        shape = view.shape
        words += (
            index,
            DTYPE_CODES[view.dtype],
            offset,
            len(data),
            len(shape),
            *shape,
        )
        payloads.append((name, offset, data))
        offset = aligned(offset + len(data))
    if len(words) + REQUEST_WORDS > MAX_WORDS:
        raise InvalidArgument(
            f"the inputs and their dimensions take {len(words)} words, and a call to a "
            f"process has {MAX_WORDS - REQUEST_WORDS}; send fewer inputs, or with fewer "
            "dimensions"
        )
    return words, payloads, offset


def _bytes_of(view: TensorView) -> Buffer:
    return pack_strings(view.strings) if view.dtype is STRING else view.buffer
