"""Parts of an answer lie in their places before the last one has come."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable

import pytest

from tfs.core.dtype import FLOAT32, INT8, STRING
from tfs.core.tensor_view import TensorView
from tfs.servables.joining.part_outputs import PartOutputs

ROW_BYTES = 1 << 19


def rows(*values: int) -> TensorView:
    """Returns large rows, each full of one value."""
    data = b"".join(bytes([value]) * ROW_BYTES for value in values)
    return TensorView(INT8, (len(values), ROW_BYTES), data)


def test_large_parts_are_put_together_in_order_of_their_rows() -> None:
    """Whatever order they come in; nobody can change what comes of it."""
    outputs = PartOutputs(5)
    outputs.add(3, {"y": rows(4, 5)})
    outputs.add(0, {"y": rows(1)})
    outputs.add(1, {"y": rows(2, 3)})
    whole = outputs.whole()["y"]
    assert whole == rows(1, 2, 3, 4, 5)
    assert isinstance(whole.data, memoryview)
    assert whole.data.readonly


class Loop:
    """A loop whose rounds a test runs, on whatever thread it says."""

    def __init__(self, *, is_loop_thread: bool = True) -> None:
        self.is_loop_thread = is_loop_thread
        self.posted: deque[Callable[[], None]] = deque()

    def post(self, fn: Callable[[], None]) -> None:
        self.posted.append(fn)


def test_a_large_part_is_taken_in_several_rounds_of_the_loop() -> None:
    """Each copies two megabytes at most; parts may come meanwhile."""
    loop = Loop()
    taken: list[str] = []
    outputs = PartOutputs(25, loop)
    first = outputs.add(0, {"y": rows(*range(10)), "z": rows(*range(10, 20))})
    assert first is not None
    first(lambda: taken.append("first"))
    second = outputs.add(10, {"y": rows(*range(10, 25)), "z": rows(*range(15))})
    assert second is not None
    second(lambda: taken.append("second"))
    num_rounds = 0
    while loop.posted:
        loop.posted.popleft()()
        num_rounds += 1
    assert num_rounds >= 2 * 25 * ROW_BYTES // (2 << 20) - 2
    assert taken == ["first", "second"]
    assert outputs.whole() == {
        "y": rows(*range(25)),
        "z": rows(*range(10, 20), *range(15)),
    }


def test_other_threads_take_a_part_at_once() -> None:
    """They hold up nobody; neither does a part of a megabyte hold up the loop."""
    loop = Loop(is_loop_thread=False)
    outputs = PartOutputs(25, loop)
    assert outputs.add(0, {"y": rows(*range(20))}) is None
    loop.is_loop_thread = True
    assert outputs.add(20, {"y": rows(20, 21)}) is None
    assert outputs.add(22, {"y": rows(22)}) is None
    assert outputs.add(23, {"y": rows(23, 24)}) is None
    assert not loop.posted
    assert outputs.whole()["y"] == rows(*range(25))


def test_a_large_part_is_free_once_it_was_taken() -> None:
    """What waits for the other parts is one copy."""

    class Part(bytearray):
        pass

    part = Part(ROW_BYTES)
    left = weakref.ref(part)
    outputs = PartOutputs(4)
    outputs.add(0, {"y": TensorView(INT8, (1, ROW_BYTES), memoryview(part))})
    del part
    gc.collect()
    assert left() is None


def test_small_outputs_and_strings_are_joined_at_the_end() -> None:
    """They have no places of their own."""
    outputs = PartOutputs(3)
    outputs.add(
        1,
        {
            "n": TensorView(FLOAT32, (2,), bytes(4) + bytes([1]) * 4),
            "s": TensorView(STRING, (2,), (b"b", b"c")),
        },
    )
    outputs.add(
        0,
        {
            "n": TensorView(FLOAT32, (1,), bytes([2]) * 4),
            "s": TensorView(STRING, (1,), (b"a",)),
        },
    )
    whole = outputs.whole()
    assert whole["n"] == TensorView(
        FLOAT32, (3,), bytes([2]) * 4 + bytes(4) + bytes([1]) * 4
    )
    assert whole["s"].data == (b"a", b"b", b"c")


def test_outputs_that_were_not_asked_for_are_left_out() -> None:
    """Whichever part has them; one that was asked for and is missing is an error."""
    outputs = PartOutputs(3, wanted=("y",))
    name = TensorView(STRING, (1,), (b"a",))
    outputs.add(0, {"y": rows(1), "name": name})
    outputs.add(2, {"name": name, "y": rows(3)})
    outputs.add(1, {"y": rows(2)})
    assert outputs.whole() == {"y": rows(1, 2, 3)}
    with pytest.raises(KeyError):
        PartOutputs(3, wanted=("y",)).add(0, {"name": name})


@pytest.mark.parametrize("num_bytes", [4, ROW_BYTES])
def test_parts_padded_to_different_sizes_are_cut_to_the_smallest(
    num_bytes: int,
) -> None:
    """What a part answers beyond the others is for padding that the request never had."""
    outputs = PartOutputs(3, padded={"y"})
    short = bytes([1]) * num_bytes
    outputs.add(1, {"y": TensorView(INT8, (1, num_bytes + 2), short + b"00")})
    outputs.add(0, {"y": TensorView(INT8, (1, num_bytes), short)})
    outputs.add(2, {"y": TensorView(INT8, (1, num_bytes + 1), short + b"0")})
    assert outputs.whole() == {"y": TensorView(INT8, (3, num_bytes), short * 3)}


def test_beside_padded_outputs_others_are_taken_at_once() -> None:
    """Only of those that depend on the padding the size is known at the end."""
    loop = Loop()
    outputs = PartOutputs(12, loop, padded={"y"})
    rest = outputs.add(0, {"y": rows(*range(10)), "z": rows(*range(10))})
    assert rest is not None, "z is copied in portions already"
    rest(lambda: None)
    while loop.posted:
        loop.posted.popleft()()
    outputs.add(10, {"y": rows(10, 11), "z": rows(10, 11)})
    assert outputs.whole() == {"y": rows(*range(12)), "z": rows(*range(12))}


def test_a_part_that_is_all_there_is_stays_where_it_lies() -> None:
    """An output that comes in one part is not copied."""
    outputs = PartOutputs(4)
    whole = rows(1, 2, 3, 4)
    outputs.add(0, {"y": whole})
    assert outputs.whole()["y"] is whole


@pytest.mark.parametrize(
    "odd",
    [
        TensorView(INT8, (1, ROW_BYTES // 2), bytes(ROW_BYTES // 2)),
        TensorView(FLOAT32, (1, ROW_BYTES), bytes(4 * ROW_BYTES)),
        TensorView(INT8, (3, ROW_BYTES), bytes(3 * ROW_BYTES)),
    ],
    ids=["size", "dtype", "rows"],
)
def test_parts_that_do_not_fit_together_are_refused(odd: TensorView) -> None:
    """Parts of other inner sizes, dtypes or too many rows are refused."""
    outputs = PartOutputs(4)
    outputs.add(0, {"y": rows(1, 2)})
    with pytest.raises(ValueError, match=r"cannot concatenate|structures"):
        outputs.add(2, {"y": odd})


def test_rows_that_never_came_are_missed() -> None:
    """An answer is never filled up with zeros."""
    outputs = PartOutputs(4)
    outputs.add(0, {"y": rows(1, 2)})
    outputs.add(2, {"y": rows(3)})
    with pytest.raises(ValueError, match="1 rows are missing of 4"):
        outputs.whole()
    with pytest.raises(KeyError):
        outputs.add(3, {"z": rows(4)})
