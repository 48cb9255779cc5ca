from __future__ import annotations

import os
from typing import cast

import pytest

from tests.runtime.packaged import SCALE_SIGNATURES, SHOUT_SIGNATURES, floats
from tfs.core.dtype import STRING, UINT8
from tfs.core.errors import InvalidArgument, ServingError, Unavailable
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.trace import Trace
from tfs.runtime.guest.slab import MAX_WORDS, REQUEST_WORDS, Slab, unpack_strings
from tfs.runtime.process.slab_call import write_request
from tfs.runtime.process.spilled_task import (
    MANY_BYTES,
    MANY_STRINGS,
    SpilledTask,
    takes_long_to_write,
)

TEXTS = SHOUT_SIGNATURES["serving_default"]


def task(signature: Signature, **inputs: TensorView) -> InferenceTask:
    return InferenceTask("serving_default", signature, inputs, lambda _: None)


def never(_: InferenceTask) -> None:
    raise AssertionError("no row was left out")


class Shrinking(InferenceTask):
    """A joined task whose rows but the last nobody waits for from the fifth second on."""

    may_shrink = True

    def begin(self, now_s: float, who: str) -> ServingError | None:
        if now_s >= 5.0:
            self.inputs, self.num_rows = {"x": floats((7, 8))}, 1
        return None


def strings(*items: bytes) -> TensorView:
    return TensorView(STRING, (len(items),), items)


def test_many_strings_and_many_bytes_take_long() -> None:
    """Bytes count together, those of strings as well."""
    half = TensorView(UINT8, (MANY_BYTES // 2,), memoryview(bytearray(MANY_BYTES // 2)))
    assert not takes_long_to_write(task(TEXTS, a=half, b=half))
    assert takes_long_to_write(task(TEXTS, a=half, b=half, c=strings(b"x")))
    assert not takes_long_to_write(task(TEXTS, text=strings(*[b""] * MANY_STRINGS)))
    assert takes_long_to_write(task(TEXTS, text=strings(*[b""] * (MANY_STRINGS + 1))))
    assert takes_long_to_write(task(TEXTS, text=strings(bytes(MANY_BYTES), b"x")))


def test_a_spilled_task_is_written_as_often_as_its_worker_dies() -> None:
    """Each time a descriptor of the same memfd goes out, which ends with the task."""
    before = len(os.listdir("/proc/self/fd"))
    spec = TensorSpec(STRING, (-1,))
    signature = Signature(
        Method.PREDICT,
        {"x": SCALE_SIGNATURES["serving_default"].inputs["x"], "text": spec},
        {"y": spec},
    )
    outcomes: list[Outcome] = []
    plain = task(signature, x=floats((1, 2)), text=strings(b"ab", b"c"))
    plain.on_done = outcomes.append
    plain.trace = cast("Trace", object())
    spilled = SpilledTask(plain, never)
    assert (spilled.cancel, spilled.inputs) == (plain.cancel, {})
    assert spilled.trace is plain.trace
    slab = Slab.create(1 << 20, 1)
    slot = slab.slots[0]
    for _ in range(2):
        fd = write_request(slab, slot, 7, 3, spilled, {})
        assert fd is not None
        words = slab.words[slot.request_word :][: REQUEST_WORDS + 13].tolist()
        assert words[:2] == [7, 3]
        assert words[3] == 128  # each tensor at a multiple of 64
        assert words[4] == 13
        assert os.pread(fd, 8, words[7]) == plain.inputs["x"].data
        at, size_bytes = words[REQUEST_WORDS + 9], words[REQUEST_WORDS + 10]
        assert unpack_strings(os.pread(fd, size_bytes, at), 2) == (b"ab", b"c")
        os.close(fd)
    slab.close()
    spilled.on_done(Unavailable("it ends"))
    assert [type(each) for each in outcomes] == [Unavailable]
    assert len(os.listdir("/proc/self/fd")) == before


def test_rows_left_out_when_it_begins_are_not_computed() -> None:
    """The task is handed over again without them, and their copy goes."""
    before = len(os.listdir("/proc/self/fd"))
    signature = SCALE_SIGNATURES["serving_default"]
    x = floats((1, 2), (3, 4), (7, 8))
    joined = Shrinking("serving_default", signature, {"x": x}, print, 3)
    again: list[InferenceTask] = []
    spilled = SpilledTask(joined, again.append)
    assert (spilled.num_rows, joined.inputs) == (3, {})
    assert spilled.begin(4.0, "m/1") is None
    assert not spilled.handed_over_again()
    assert spilled.begin(5.0, "m/1") is None
    assert spilled.handed_over_again()
    assert again == [joined]
    assert (joined.num_rows, joined.inputs["x"].shape) == (1, (1, 2))
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_no_descriptor_holds_is_not_spilled() -> None:
    """It ends with the same error as a smaller one."""
    names = [f"x{index}" for index in range(MAX_WORDS // 6)]
    spec = TensorSpec(UINT8, (-1,))
    signature = Signature(Method.PREDICT, dict.fromkeys(names, spec), {"y": spec})
    view = TensorView(UINT8, (0,), b"")
    with pytest.raises(InvalidArgument, match=r"take \d+ words, .* send fewer inputs"):
        SpilledTask(task(signature, **dict.fromkeys(names, view)), never)
