from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator

import pytest

from tests.runtime.packaged import SCALE_SIGNATURES, SHOUT_SIGNATURES, floats
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.servable import InferenceTask
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.slab import (
    DTYPE_CODES,
    MAX_PLANS,
    MAX_WORDS,
    REPLY_WORDS,
    REQUEST_WORDS,
    Plans,
    Slab,
    Slot,
    pack_strings,
    unpack_strings,
)
from tfs.runtime.process.slab_call import (
    MANY_BYTES,
    MANY_STRINGS,
    CorruptReply,
    RequestPlans,
    SlowReply,
    Spill,
    read_reply,
    reply_plans,
    takes_long_to_write,
    write_request,
)

F32 = DTYPE_CODES[FLOAT32]
SIGNATURE = SCALE_SIGNATURES["serving_default"]


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab.create(1 << 20, 1)
    yield slab
    slab.close()


def task(signature: Signature, **inputs: TensorView) -> InferenceTask:
    return InferenceTask(
        "serving_default", signature, inputs, lambda _: None, num_rows=1
    )


def read_words(slab: Slab, start: int, num: int) -> list[int]:
    return slab.words[start : start + num].tolist()


def reply(slab: Slab, words: tuple[int, ...]) -> Slot:
    slot = slab.slots[0]
    slab.write_words(slot.reply_word, words)
    return slot


def test_a_request_is_written_as_described(slab: Slab) -> None:
    """The words are signature, rows, overflow, count, then the input."""
    slot = slab.slots[1]
    view = floats((1, 2))
    assert write_request(slab, slot, 3, task(SIGNATURE, x=view), {}) is None
    words = read_words(slab, slot.request_word, REQUEST_WORDS + 7)
    assert words == [3, 1, 0, 7, 0, F32, slot.input_offset, 8, 2, 1, 2]
    assert slab.map[slot.input_offset : slot.input_offset + 8] == view.data


def test_requests_of_one_form_are_written_alike(slab: Slab) -> None:
    """Each slot has words of its own, each request elements of its own."""
    plans: RequestPlans = {}
    for slot in (*slab.slots, *slab.slots):
        for value in (1.0, 2.0):
            view = floats((1.0, value))
            written = task(SIGNATURE, x=view)
            assert write_request(slab, slot, 3, written, plans) is None
            words = read_words(slab, slot.request_word, REQUEST_WORDS + 7)
            assert words == [3, 1, 0, 7, 0, F32, slot.input_offset, 8, 2, 1, 2]
            assert slab.map[slot.input_offset : slot.input_offset + 8] == view.data
    assert len(plans) == len(slab.slots)


def test_requests_of_other_forms_have_other_words(slab: Slab) -> None:
    """Rows, dtypes and shapes tell them apart, strings are always measured anew."""
    plans: RequestPlans = {}
    slot = slab.slots[0]
    for shape in ((1, 2), (2, 1), (1, 3), (1, 2)):
        view = TensorView(FLOAT32, shape, bytes(4 * math.prod(shape)))
        write_request(slab, slot, 0, task(SIGNATURE, x=view), plans)
        words = read_words(slab, slot.request_word, REQUEST_WORDS + 7)
        assert words[7:] == [len(view.data), 2, *shape]
    for text in (b"a", b"abc"):
        view = TensorView(STRING, (1, 1), (text,))
        write_request(slab, slot, 0, task(SIGNATURE, x=view), plans)
        words = read_words(slab, slot.request_word, REQUEST_WORDS + 7)
        assert words[7] == 8 + len(text)
    assert len(plans) == 3


def test_inputs_larger_than_a_slot_are_measured_each_time(slab: Slab) -> None:
    """Their memfd is a new one for each request."""
    plans: RequestPlans = {}
    view = TensorView(FLOAT32, (1, 1 << 18), bytes(1 << 20))
    for _ in range(2):
        fd = write_request(slab, slab.slots[0], 0, task(SIGNATURE, x=view), plans)
        assert fd is not None
        os.close(fd)
    assert not plans


def test_slots_and_their_areas_do_not_overlap(slab: Slab) -> None:
    """Every part of a slot begins where the one before has ended."""
    first, second = slab.slots
    assert first.input_offset + first.area_bytes == first.output_offset
    assert first.output_offset + first.area_bytes <= second.request_word * 8
    assert second.output_offset + second.area_bytes <= len(slab.map)
    assert all(slot.input_offset % 64 == 0 for slot in slab.slots)


def test_too_many_inputs_are_refused(slab: Slab) -> None:
    """A descriptor has its size; nothing is written past it."""
    names = [f"x{index}" for index in range(MAX_WORDS // 6)]
    spec = TensorSpec(FLOAT32, (-1,))
    signature = Signature(Method.PREDICT, dict.fromkeys(names, spec), {"y": spec})
    view = TensorView(FLOAT32, (0,), b"")
    with pytest.raises(InvalidArgument, match=r"take \d+ words, .* send fewer inputs"):
        write_request(
            slab, slab.slots[0], 0, task(signature, **dict.fromkeys(names, view)), {}
        )


@pytest.mark.parametrize(
    ("packed", "num"),
    [
        (b"", 1),
        (pack_strings((b"ab",)), 2),
        (pack_strings((b"ab",))[:-1], 1),
        (pack_strings((b"ab",)) + b"x", 1),
        ((-8).to_bytes(8, "little", signed=True), 1),
    ],
)
def test_strings_that_do_not_fill_their_place_are_refused(
    packed: bytes, num: int
) -> None:
    """Lengths from a worker are not believed."""
    with pytest.raises(ValueError, match="string"):
        unpack_strings(packed, num)


def good_words(slab: Slab) -> tuple[int, ...]:
    return (0, 1000, 0, 6, F32, slab.slots[0].output_offset, 8, 2, 1, 2)


def test_a_good_reply_is_read(slab: Slab) -> None:
    """Outputs by name, copied, with the seconds the call took."""
    slot = reply(slab, good_words(slab))
    outcome, call_s = read_reply(slab, slot, None, reply_plans(SIGNATURE))
    assert outcome == {"y": TensorView(FLOAT32, (1, 2), bytes(8))}
    assert call_s == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, 99),  # status
        (2, 8),  # overflow without a memfd
        (3, -1),  # words
        (3, 1 << 40),
        (3, 3),  # cut short
        (3, 5),
        (4, -1),  # dtype
        (4, 99),
        (5, 0),  # offset before the area
        (5, 1 << 60),
        (6, -8),  # size
        (6, 1 << 60),
        (6, 4),
        (7, -1),  # rank
        (7, 65),
        (7, 1 << 40),
        (8, -1),  # dimension
        (8, 1 << 62),
        (4, DTYPE_CODES[STRING]),
    ],
)
def test_a_reply_that_makes_no_sense_is_refused(
    slab: Slab, position: int, value: int
) -> None:
    """No number a worker writes can make the host read elsewhere or run out of memory."""
    words = list(good_words(slab))
    words[position] = value
    slot = reply(slab, tuple(words))
    with pytest.raises(CorruptReply):
        read_reply(slab, slot, None, reply_plans(SIGNATURE))


def test_an_error_reply_keeps_its_code_and_text(slab: Slab) -> None:
    """The guest's error is the caller's, text that is no text included."""
    slot = reply(slab, (3, 0, 0, 5))
    slab.write_text(slot.reply_word + REPLY_WORDS, b"no \xff!")
    error, _ = read_reply(slab, slot, None, reply_plans(SIGNATURE))
    assert isinstance(error, InvalidArgument)
    assert error.message == "no \ufffd!"
    slot = reply(slab, (3, 0, 0, 1 << 40))
    with pytest.raises(CorruptReply):
        read_reply(slab, slot, None, reply_plans(SIGNATURE))


def test_outputs_in_a_memfd_are_read_within_it(slab: Slab) -> None:
    """Offsets are checked against the memfd's real size."""
    fd = os.memfd_create("outputs")
    os.write(fd, bytes(12))
    slot = reply(slab, (0, 0, 12, 6, F32, 4, 8, 2, 1, 2))
    outcome, _ = read_reply(slab, slot, fd, reply_plans(SIGNATURE))
    assert outcome == {"y": TensorView(FLOAT32, (1, 2), bytes(8))}
    slot = reply(slab, (0, 0, 12, 6, F32, 8, 8, 2, 1, 2))
    with pytest.raises(CorruptReply):
        read_reply(slab, slot, fd, reply_plans(SIGNATURE))
    os.close(fd)


def test_of_many_shapes_few_plans_are_kept() -> None:
    """Clients choose the shapes: a plan of each would take all memory."""
    plans = Plans[int, str](str)
    for each in range(3 * MAX_PLANS):
        assert plans[each] == str(each)
        assert len(plans) <= MAX_PLANS


def test_string_inputs_take_their_place(slab: Slab) -> None:
    """Strings lie packed where a tensor's bytes would."""
    view = TensorView(STRING, (2,), (b"ab", b"c"))
    slot = slab.slots[0]
    signature = SHOUT_SIGNATURES["serving_default"]
    assert write_request(slab, slot, 0, task(signature, text=view), {}) is None
    size_bytes = read_words(slab, slot.request_word + REQUEST_WORDS, 4)[3]
    packed = slab.map[slot.input_offset : slot.input_offset + size_bytes]
    assert unpack_strings(packed, 2) == (b"ab", b"c")


@pytest.mark.parametrize("is_in_memfd", [False, True])
def test_many_strings_are_unpacked_after_they_were_read(
    slab: Slab, is_in_memfd: bool
) -> None:
    """Few are at once; what is wrong with many is found when they are unpacked."""
    signature = Signature(Method.PREDICT, {}, {"y": TensorSpec(STRING, (-1,))})
    num = MANY_STRINGS + 1
    packed = pack_strings((b"x",) * num)
    for data in (packed, packed[:-1]):
        first, fd = slab.slots[0].output_offset, None
        if is_in_memfd:
            first, fd = 0, os.memfd_create("outputs")
            os.write(fd, data)
        else:
            slab.map[first : first + len(data)] = data
        code = DTYPE_CODES[STRING]
        words = (0, 0, len(data) * is_in_memfd, 5, code, first, len(data), 1, num)
        outcome, _ = read_reply(slab, reply(slab, words), fd, reply_plans(signature))
        if fd is not None:
            os.close(fd)
        assert isinstance(outcome, SlowReply)
        if data is packed:
            strings = TensorView(STRING, (num,), (b"x",) * num)
            assert outcome.read() == {"y": strings}
        else:
            with pytest.raises(CorruptReply):
                outcome.read()


def test_many_bytes_are_read_later(slab: Slab) -> None:
    """By then the memfd that they came in is closed, and they are read once."""
    before = len(os.listdir("/proc/self/fd"))
    fd = os.memfd_create("outputs")
    os.ftruncate(fd, MANY_BYTES + 4)
    num = MANY_BYTES // 4 + 1
    words = (0, 0, MANY_BYTES + 4, 5, F32, 0, MANY_BYTES + 4, 1, num)
    outcome, _ = read_reply(slab, reply(slab, words), fd, reply_plans(SIGNATURE))
    os.close(fd)
    assert isinstance(outcome, SlowReply)
    assert outcome.read()["y"].size_bytes == MANY_BYTES + 4
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_bytes_are_read_at_once_where_no_descriptor_is_left(
    slab: Slab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was computed is answered."""

    def dup(_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "dup", dup)
    fd = os.memfd_create("outputs")
    os.ftruncate(fd, MANY_BYTES + 4)
    num = MANY_BYTES // 4 + 1
    words = (0, 0, MANY_BYTES + 4, 5, F32, 0, MANY_BYTES + 4, 1, num)
    outcome, _ = read_reply(slab, reply(slab, words), fd, reply_plans(SIGNATURE))
    os.close(fd)
    assert isinstance(outcome, dict)
    assert outcome["y"].size_bytes == MANY_BYTES + 4


@pytest.mark.parametrize(
    ("view", "takes_long"),
    [
        (TensorView(STRING, (MANY_STRINGS,), (b"",) * MANY_STRINGS), False),
        (TensorView(STRING, (MANY_STRINGS + 1,), (b"",) * (MANY_STRINGS + 1)), True),
        (TensorView(STRING, (2,), (bytes(MANY_BYTES), b"x")), True),
        (TensorView(FLOAT32, (1, MANY_BYTES // 4), bytes(MANY_BYTES)), False),
        (TensorView(FLOAT32, (1, MANY_BYTES // 4 + 1), bytes(MANY_BYTES + 4)), True),
    ],
)
def test_large_tasks_are_copied_elsewhere(view: TensorView, takes_long: bool) -> None:
    """What is copied on the loop is done within a round; the rest another thread does."""
    assert takes_long_to_write(task(SIGNATURE, x=view)) is takes_long


def test_what_was_copied_elsewhere_is_described_like_any_other(slab: Slab) -> None:
    """Its memfd is the caller's to send and to close."""
    view = floats((1, 2))
    spill = Spill.of(task(SIGNATURE, x=view))
    slot = slab.slots[0]
    assert spill.write(slab, slot, 3, 1) == spill.fd
    words = read_words(slab, slot.request_word, REQUEST_WORDS + 7)
    assert words == [3, 1, 64, 7, 0, F32, 0, 8, 2, 1, 2]
    assert os.pread(spill.fd, 8, 0) == view.data
    os.close(spill.fd)
