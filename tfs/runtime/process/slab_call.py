"""The host's side of a slab: writes tasks as descriptors, and reads replies as outcomes.

It does not use torch. Replies come from a process that runs somebody's model, so every
number in them is checked before it is used. Tensors that no slot holds travel in a memfd.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument, error_from
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView
from tfs.runtime.guest.memory_files import new_memfd, read_at, write_at
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    DTYPE_OF_CODE,
    MAX_PLANS,
    MAX_WORDS,
    REPLY_WORDS,
    REQUEST_WORDS,
    WORD_BYTES,
    Plans,
    Slab,
    Slot,
    aligned,
    pack_strings,
    unpack_strings,
)

MANY_STRINGS: Final = 8_192
"""Up to so many strings are packed, or unpacked, within a millisecond."""

MANY_BYTES: Final = 16 << 20
"""Up to so many are copied within some ten milliseconds; a slot holds about as many."""

_MAX_RANK: Final = 64
_MAX_TEXT_BYTES: Final = 4096
_HEADER_BYTES: Final = REPLY_WORDS * WORD_BYTES
_read_header = struct.Struct(f"={REPLY_WORDS}q").unpack_from

_PlannedOutput: TypeAlias = "tuple[str, DType, tuple[int, ...], int, int]"
"""Name, dtype, shape, and where its bytes begin and end."""

ReplyPlans: TypeAlias = "Plans[bytes, list[_PlannedOutput]]"
"""What replies of one signature say, by their words."""

_PlannedRequest: TypeAlias = "tuple[slice, bytes, tuple[tuple[str, slice], ...]]"
"""Where the words go, the words, and each input's name and where its bytes go."""

RequestPlans: TypeAlias = "dict[tuple[object, ...], _PlannedRequest]"
"""How requests of one signature are written, by slot, rows, dtypes and shapes."""


class CorruptReply(Exception):
    """A reply makes no sense: the worker's memory is damaged."""


@dataclass(frozen=True, slots=True)
class Spill:
    """The tensors of a task in a memfd. Immutable; whoever has it closes ``fd``.

    Attributes:
        words: The words of a descriptor; offsets count from the memfd's start.
        total_bytes: The size of the memfd.
        fd: The memfd.

    """

    words: Sequence[int]
    total_bytes: int
    fd: int

    @classmethod
    def of(cls, task: InferenceTask) -> Spill:
        """Copies a task's tensors. On any thread.

        Raises:
            InvalidArgument: More tensors than a descriptor holds.
            OSError: No memory for the memfd.

        """
        words, payloads, total_bytes = _describe(task, 0)
        fd = new_memfd("inputs")
        try:
            os.ftruncate(fd, total_bytes)
            for _, offset, data in payloads:
                write_at(fd, data, offset)
        except BaseException:
            os.close(fd)
            raise
        return cls(words, total_bytes, fd)

    def write(self, slab: Slab, slot: Slot, index: int, num_rows: int) -> int:
        """Writes the words of a task into a slot; returns the memfd."""
        head = (index, num_rows, self.total_bytes, len(self.words))
        slab.write_words(slot.request_word, (*head, *self.words))
        return self.fd


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


def write_request(
    slab: Slab, slot: Slot, index: int, task: InferenceTask, plans: RequestPlans
) -> int | None:
    """Writes a task into a slot, copying each tensor once.

    Args:
        slab: The slab that has the slot.
        slot: A free one.
        index: Number of the signature among the version's.
        task: What is to be computed.
        plans: How earlier requests of this signature were written.

    Returns:
        None; or, if the slot is too small, a memfd with the tensors, which the caller
        sends and closes.

    Raises:
        InvalidArgument: There are more tensors than a descriptor holds; nothing was
            sent.
        OSError: There is no memory for the memfd.

    """
    inputs = task.inputs
    # This is all that the words depend on, except the sizes of strings, which have no
    # plans.
    form: list[object] = [slot, task.num_rows]
    for name in task.signature.inputs:
        view = inputs.get(name)
        if view is not None:
            form += (view.dtype, view.shape)
        else:
            form.append(None)
    key = tuple(form)
    known = plans.get(key)
    memory = slab.map
    if known is not None:
        words_at, packed, places = known
        for name, place in places:
            elements = inputs[name].data
            assert not isinstance(elements, tuple)
            memory[place] = elements
        memory[words_at] = packed
        return None
    words, payloads, end = _describe(task, slot.input_offset)
    if end - slot.input_offset > slot.area_bytes:
        return Spill.of(task).write(slab, slot, index, task.num_rows)
    for _, offset, data in payloads:
        memory[offset : offset + len(data)] = data
    slab.write_words(slot.request_word, (index, task.num_rows, 0, len(words), *words))
    if not any(isinstance(each.data, tuple) for each in inputs.values()):
        if len(plans) >= MAX_PLANS:
            plans.clear()
        num_bytes = (REQUEST_WORDS + len(words)) * WORD_BYTES
        words_at = slice(slot.request_byte, slot.request_byte + num_bytes)
        plans[key] = (
            words_at,
            memory[words_at],
            tuple((name, slice(at, at + len(data))) for name, at, data in payloads),
        )
    return None


def _describe(
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
        data = pack_strings(view.strings) if view.dtype is STRING else view.buffer
        shape = view.shape
        code = DTYPE_CODES[view.dtype]
        words += (index, code, offset, len(data), len(shape), *shape)
        payloads.append((name, offset, data))
        offset = aligned(offset + len(data))
    if len(words) + REQUEST_WORDS > MAX_WORDS:
        raise InvalidArgument(
            f"the inputs and their dimensions take {len(words)} words, and a call to a "
            f"process has {MAX_WORDS - REQUEST_WORDS}; send fewer inputs, or with fewer "
            "dimensions"
        )
    return words, payloads, offset


class SlowReply(dict[str, TensorView]):
    """Stands for outputs whose reading would hold up the loop. Only the loop sees it.

    Args:
        read: Returns the outputs; to be called once, on any thread. Raises
            :class:`CorruptReply` if the worker wrote nonsense.

    """

    def __init__(self, read: Callable[[], Tensors]) -> None:
        super().__init__()
        self.read = read


def read_reply(
    slab: Slab,
    slot: Slot,
    overflow_fd: int | None,
    plans: ReplyPlans,
) -> tuple[Outcome, float]:
    """Reads a slot's reply; returns the outcome, its tensors copied, and the seconds.

    The outcome is a :class:`SlowReply` if reading it would hold up the loop. That owns
    a copy of what it has to read.

    Args:
        slab: The slab that has the slot.
        slot: The slot with the reply.
        overflow_fd: The memfd that came with it, if one did; the caller closes it.
        plans: Those of the signature that was called.

    Raises:
        CorruptReply: The worker wrote nonsense; it must not be used any more.

    """
    memory = slab.map
    status, call_ns, overflow_bytes, num = _read_header(memory, slot.reply_byte)
    call_s = call_ns / 1e9 if call_ns > 0 else 0.0
    start = slot.reply_byte + _HEADER_BYTES
    if status:
        if not 0 <= num <= _MAX_TEXT_BYTES:
            raise CorruptReply("text length")
        try:
            return error_from(status, memory[start : start + num]), call_s
        except ValueError as error:
            raise CorruptReply("status") from error
    if not 0 <= num <= MAX_WORDS - REPLY_WORDS:
        raise CorruptReply("descriptor length")
    descriptor = memory[start : start + num * WORD_BYTES]
    plan = plans[descriptor]
    if overflow_bytes:
        if overflow_fd is None:
            raise CorruptReply("no memfd for its outputs")
        if _is_slow(plan):
            with contextlib.suppress(OSError):  # the process has no descriptor left
                own_fd = os.dup(overflow_fd)
                return SlowReply(partial(_outputs_once, plan, own_fd)), call_s
        return _outputs(plan, overflow_fd), call_s
    first = slot.output_offset
    end = first + slot.area_bytes
    outputs: dict[str, TensorView] = {}
    is_slow = False
    for name, dtype, shape, offset, stop in plan:
        if offset < first or stop > end:
            raise CorruptReply("a tensor outside its area")
        data = memory[offset:stop]
        if dtype is not STRING:
            outputs[name] = TensorView(dtype, shape, data)
        elif math.prod(shape) <= MANY_STRINGS:
            outputs[name] = TensorView(STRING, shape, _strings(data, shape))
        else:
            outputs[name] = TensorView(STRING, shape, data)  # it is unpacked below
            is_slow = True
    if is_slow:
        return SlowReply(partial(_unpacked, outputs)), call_s
    return outputs, call_s


def reply_plans(signature: Signature) -> ReplyPlans:
    """Returns what finds out, once for each form, what replies of a signature say."""
    return Plans(lambda descriptor: _plan(descriptor, signature))


def _plan(descriptor: bytes, signature: Signature) -> list[_PlannedOutput]:
    """Returns what a reply's words say. Checks everything except where the tensors lie."""
    words = memoryview(descriptor).cast("q").tolist()
    plan: list[_PlannedOutput] = []
    position = 0
    num_words = len(words)
    for name in signature.outputs:
        if position + 4 > num_words:
            raise CorruptReply("outputs are missing")
        code, offset, size_bytes, rank = words[position : position + 4]
        position += 4
        if not (
            0 <= code < len(DTYPE_OF_CODE)
            and 0 <= rank <= _MAX_RANK
            and position + rank <= num_words
            and size_bytes >= 0
        ):
            raise CorruptReply("a tensor's description")
        shape = tuple(words[position : position + rank])
        position += rank
        if shape and min(shape) < 0:
            raise CorruptReply("a negative size")
        dtype = DTYPE_OF_CODE[code]
        if dtype is not STRING and size_bytes != math.prod(shape) * dtype.item_bytes:
            raise CorruptReply("a tensor's size")
        plan.append((name, dtype, shape, offset, offset + size_bytes))
    return plan


def _is_slow(plan: Sequence[_PlannedOutput]) -> bool:
    return sum(stop - offset for *_, offset, stop in plan) > MANY_BYTES or any(
        dtype is STRING and math.prod(shape) > MANY_STRINGS
        for _, dtype, shape, _, _ in plan
    )


def _outputs(plan: Sequence[_PlannedOutput], fd: int) -> dict[str, TensorView]:
    outputs: dict[str, TensorView] = {}
    for name, dtype, shape, offset, stop in plan:
        data = _read(fd, offset, stop - offset)
        outputs[name] = TensorView(
            dtype, shape, _strings(data, shape) if dtype is STRING else data
        )
    return outputs


def _outputs_once(plan: Sequence[_PlannedOutput], fd: int) -> dict[str, TensorView]:
    try:
        return _outputs(plan, fd)
    finally:
        os.close(fd)


def _read(fd: int, offset: int, size_bytes: int) -> bytes:
    """Reads from a memfd, which is not mapped, because its owner could truncate it."""
    if offset < 0 or offset + size_bytes > os.fstat(fd).st_size:
        raise CorruptReply("a tensor outside its memfd")
    data = read_at(fd, size_bytes, offset)
    if len(data) < size_bytes:
        raise CorruptReply("a tensor cut short")
    return data


def _unpacked(outputs: Mapping[str, TensorView]) -> Tensors:
    return {
        name: TensorView(STRING, view.shape, _strings(view.data, view.shape))
        if view.dtype is STRING and isinstance(view.data, bytes)
        else view
        for name, view in outputs.items()
    }


def _strings(packed: bytes, shape: tuple[int, ...]) -> tuple[bytes, ...]:
    try:
        return unpack_strings(packed, math.prod(shape))
    except ValueError as error:
        raise CorruptReply(str(error)) from error
