"""The host's side of a slab: tasks become descriptors, replies become outcomes.

Knows no torch. Replies come from a process that runs somebody's model, so every number
in them is checked before it is used.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tfs.core.dtype import STRING, DType
from tfs.core.errors import BY_CODE, Code, InvalidArgument, InvalidItems, ServingError
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.signature import Signature
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.sealed_file import new_memfd
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    DTYPE_OF_CODE,
    MAX_WORDS,
    REPLY_WORDS,
    REQUEST_WORDS,
    WORD_BYTES,
    Slab,
    Slot,
    aligned,
    pack_strings,
    unpack_strings,
)

MANY_STRINGS: Final = 8_192
"""Up to so many strings are packed, or unpacked, within a millisecond."""

_MAX_RANK: Final = 64
_MAX_TEXT_BYTES: Final = 4096
_WRITE_BYTES: Final = 1 << 30
_MAX_PLANS: Final = 256  # requests, and replies, of one shape have one
_HEADER_BYTES: Final = REPLY_WORDS * WORD_BYTES
_read_header = struct.Struct(f"={REPLY_WORDS}q").unpack_from

_PlannedOutput: TypeAlias = "tuple[str, DType, tuple[int, ...], int, int]"
"""Name, dtype, shape, and where its bytes begin and end."""

ReplyPlans: TypeAlias = "dict[bytes, list[_PlannedOutput]]"
"""What the words of replies say, by these words; of one signature."""

_PlannedRequest: TypeAlias = "tuple[slice, bytes, tuple[tuple[str, slice], ...]]"
"""Where its words go, the words, and of each input the name and where its bytes go."""

RequestPlans: TypeAlias = "dict[tuple[object, ...], _PlannedRequest]"
"""How requests are written, by slot, rows, dtypes and shapes; of one signature."""


class CorruptReply(Exception):
    """A reply makes no sense: the worker's memory is not what it should be."""


def write_request(
    slab: Slab,
    slot: Slot,
    model_id: int,
    signature_index: int,
    task: InferenceTask,
    plans: RequestPlans | None = None,
) -> int | None:
    """Writes a task into a slot, copying each tensor once.

    Args:
        slab: The slab that has the slot.
        slot: A free one.
        model_id: Number of the model that the task is for.
        signature_index: Number of the signature among the model's.
        task: What is to be computed.
        plans: How earlier requests of this model and signature were written.

    Returns:
        None, or a memfd with the tensors where the slot is too small for them; the
        caller sends it and closes it.

    Raises:
        InvalidArgument: More tensors than a descriptor holds; nothing was sent.
        OSError: No memory for the memfd.

    """
    inputs = task.inputs
    # What the words depend on, but for the sizes of strings, which are never planned.
    form: list[object] = [slot, task.num_rows]
    for name in task.signature.inputs:
        view = inputs.get(name)
        if view is not None:
            form += (view.dtype, view.shape)
        else:
            form.append(None)
    key = tuple(form)
    known = plans.get(key) if plans is not None else None
    if known is not None:
        words_at, packed, places = known
        memory = slab.map
        for name, place in places:
            elements = inputs[name].data
            assert not isinstance(elements, tuple)
            memory[place] = elements
        memory[words_at] = packed
        return None
    words: list[int] = []
    payloads: list[tuple[str, int, bytes | bytearray | memoryview]] = []
    has_strings = False
    offset = slot.input_offset
    for index, name in enumerate(task.signature.inputs):
        view = inputs.get(name)
        if view is None:
            continue
        data = view.data
        has_strings = has_strings or view.dtype is STRING
        if isinstance(data, tuple):
            data = pack_strings(data)
        size_bytes = len(data)
        shape = view.shape
        words += (
            index,
            DTYPE_CODES[view.dtype],
            offset,
            size_bytes,
            len(shape),
            *shape,
        )
        payloads.append((name, offset, data))
        offset = aligned(offset + size_bytes)
    if len(words) + REQUEST_WORDS > MAX_WORDS:
        raise InvalidArgument("too many inputs, or of too many dimensions")
    total_bytes = offset - slot.input_offset
    overflow_fd: int | None = None
    if total_bytes <= slot.area_bytes:
        memory = slab.map
        for _, offset, data in payloads:
            memory[offset : offset + len(data)] = data
        total_bytes = 0
    else:
        overflow_fd = _spill(payloads, slot.input_offset, total_bytes)
        _shift_inputs(words, -slot.input_offset)
    slab.write_words(
        slot.request_word,
        (model_id, signature_index, task.num_rows, total_bytes, len(words), *words),
    )
    if plans is not None and overflow_fd is None and not has_strings:
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        num_bytes = (REQUEST_WORDS + len(words)) * WORD_BYTES
        words_at = slice(slot.request_byte, slot.request_byte + num_bytes)
        plans[key] = (
            words_at,
            slab.map[words_at],
            tuple((name, slice(at, at + len(data))) for name, at, data in payloads),
        )
    return overflow_fd


def has_many_strings(task: InferenceTask) -> bool:
    """Tells whether a task's strings take longer to pack than the loop may take."""
    return any(
        isinstance(view.data, tuple) and len(view.data) > MANY_STRINGS
        for view in task.inputs.values()
    )


def with_packed_strings(task: InferenceTask) -> InferenceTask:
    """Returns the same task, for :func:`write_request` alone: its strings are packed."""
    inputs = {
        name: TensorView(STRING, view.shape, pack_strings(view.data))
        if isinstance(view.data, tuple)
        else view
        for name, view in task.inputs.items()
    }
    return InferenceTask(
        task.signature_name,
        task.signature,
        inputs,
        task.on_done,
        task.num_rows,
        task.output_filter,
        task.deadline_s,
        task.cancel,
        task.is_low,
    )


class PackedReply(dict[str, TensorView]):
    """Outputs of which some have many strings, still packed. Not for others to see."""

    def unpacked(self) -> Tensors:
        """Returns the outputs as others know them.

        Raises:
            CorruptReply: The worker wrote nonsense.

        """
        return {
            name: view
            if view.dtype is not STRING or _is_unpacked(view)
            else TensorView(
                STRING, view.shape, _strings(bytes(view.buffer), view.shape)
            )
            for name, view in self.items()
        }


def read_reply(
    slab: Slab,
    slot: Slot,
    who: str,
    signature: Signature,
    overflow_fd: int | None,
    plans: ReplyPlans | None = None,
) -> tuple[Outcome, float]:
    """Reads a slot's reply; returns the outcome, its tensors copied, and the seconds.

    Args:
        slab: The slab that has the slot.
        slot: Likewise.
        who: The version, for an error without a text.
        signature: What was called.
        overflow_fd: The memfd that came with it, if one did.
        plans: What earlier replies of this signature were found to say.

    Raises:
        CorruptReply: The worker wrote nonsense; it must not be used any more.

    """
    memory = slab.map
    status, call_ns, overflow_bytes, num = _read_header(memory, slot.reply_byte)
    call_s = call_ns / 1e9 if call_ns > 0 else 0.0
    start = slot.reply_byte + _HEADER_BYTES
    if status:
        text = memory[start : start + _bounded(num)]
        return _error(status, text, who), call_s
    if not 0 <= num <= MAX_WORDS - REPLY_WORDS:
        raise CorruptReply("descriptor length")
    descriptor = memory[start : start + num * WORD_BYTES]
    plan = plans.get(descriptor) if plans is not None else None
    if plan is None:
        plan = _plan(descriptor, signature)
        if plans is not None:
            if len(plans) >= _MAX_PLANS:
                plans.clear()
            plans[descriptor] = plan
    if overflow_bytes:
        if overflow_fd is None:
            raise CorruptReply("no memfd for its outputs")
        return _told_apart(_outputs(plan, _FileMemory(overflow_fd).read)), call_s
    first = slot.output_offset
    end = first + slot.area_bytes
    outputs: dict[str, TensorView] = {}
    has_strings = False
    for name, dtype, shape, offset, stop in plan:
        if offset < first or stop > end:
            raise CorruptReply("a tensor outside its area")
        data = memory[offset:stop]
        if dtype is STRING:
            outputs[name] = _string_output(shape, data)
            has_strings = True
        else:
            outputs[name] = TensorView(dtype, shape, data)
    return _told_apart(outputs) if has_strings else outputs, call_s


class _FileMemory:
    """A memfd; read, not mapped: its owner could truncate it under a mapping."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._size_bytes = os.fstat(fd).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        if offset < 0 or offset + size_bytes > self._size_bytes:
            raise CorruptReply("a tensor outside its memfd")
        parts = []
        while size_bytes:
            part = os.pread(self._fd, size_bytes, offset)
            if not part:
                raise CorruptReply("a tensor cut short")
            parts.append(part)
            offset += len(part)
            size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _plan(descriptor: bytes, signature: Signature) -> list[_PlannedOutput]:
    """Returns what a reply's words say, after checking all but where tensors lie."""
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


def _outputs(
    plan: Sequence[_PlannedOutput], read: Callable[[int, int], bytes]
) -> dict[str, TensorView]:
    outputs: dict[str, TensorView] = {}
    for name, dtype, shape, offset, stop in plan:
        data = read(offset, stop - offset)
        if dtype is STRING:
            outputs[name] = _string_output(shape, data)
        else:
            outputs[name] = TensorView(dtype, shape, data)
    return outputs


def _string_output(shape: tuple[int, ...], packed: bytes) -> TensorView:
    """Returns an output of strings; many stay packed."""
    if math.prod(shape) > MANY_STRINGS:
        return TensorView(STRING, shape, packed)
    return TensorView(STRING, shape, _strings(packed, shape))


def _told_apart(outputs: dict[str, TensorView]) -> dict[str, TensorView]:
    """Returns the outputs, as a :class:`PackedReply` if some are packed."""
    if any(
        view.dtype is STRING and not _is_unpacked(view) for view in outputs.values()
    ):
        return PackedReply(outputs)
    return outputs


def _is_unpacked(view: TensorView) -> bool:
    return isinstance(view.data, tuple)


def _strings(packed: bytes, shape: tuple[int, ...]) -> tuple[bytes, ...]:
    try:
        return unpack_strings(packed, math.prod(shape))
    except ValueError as error:
        raise CorruptReply(str(error)) from error


def _error(status: int, text: bytes, who: str) -> ServingError:
    try:
        kind = BY_CODE[Code(status)]
    except (KeyError, ValueError) as error:
        raise CorruptReply("status") from error
    items = InvalidItems.from_bytes(text)
    if items is not None:
        return items
    return kind(text.decode(errors="replace") or f"{who} failed")


def _bounded(size_bytes: int) -> int:
    if not 0 <= size_bytes <= _MAX_TEXT_BYTES:
        raise CorruptReply("text length")
    return size_bytes


def _spill(
    payloads: Sequence[tuple[str, int, bytes | bytearray | memoryview]],
    start: int,
    total_bytes: int,
) -> int:
    """Returns a memfd with the payloads at their offsets from ``start``."""
    fd = new_memfd("inputs")
    try:
        os.ftruncate(fd, total_bytes)
        for _, offset, data in payloads:
            rest = memoryview(data)
            position = offset - start
            while rest:
                written = os.pwrite(fd, rest[:_WRITE_BYTES], position)
                position += written
                rest = rest[written:]
    except BaseException:
        os.close(fd)
        raise
    return fd


def _shift_inputs(words: list[int], by: int) -> None:
    """Adds ``by`` to every offset."""
    position = 0
    while position < len(words):
        words[position + 2] += by
        position += 5 + words[position + 4]
