"""Answers that are put together from those of a request's parts."""

from __future__ import annotations

import pytest

from tfs.core.dtype import FLOAT32, INT8, STRING, DType
from tfs.core.tensor_view import TensorView
from tfs.servables.joining.signature_queues import PartOutputs


def rows(*values: int, dtype: DType = INT8, size: int = 4) -> TensorView:
    """Returns rows, each full of one value."""
    data = b"".join(bytes([value]) * size * dtype.item_bytes for value in values)
    return TensorView(dtype, (len(values), size), data)


def test_parts_are_put_together_in_order_of_their_rows() -> None:
    """Whatever order they come in, and of whatever type."""
    outputs = PartOutputs()
    name = TensorView(STRING, (2,), (b"b", b"c"))
    outputs.add(3, {"y": rows(4, 5), "s": name})
    outputs.add(0, {"y": rows(1), "s": TensorView(STRING, (1,), (b"a",))})
    outputs.add(1, {"y": rows(2, 3), "s": name})
    whole = outputs.whole()
    assert whole["y"] == rows(1, 2, 3, 4, 5)
    assert whole["s"].data == (b"a", b"b", b"c", b"b", b"c")


def test_outputs_that_were_not_asked_for_are_left_out() -> None:
    """Whichever part has them; one that was asked for and is missing is an error."""
    outputs = PartOutputs(("y",))
    name = TensorView(STRING, (1,), (b"a",))
    outputs.add(0, {"y": rows(1), "name": name})
    outputs.add(2, {"name": name, "y": rows(3)})
    outputs.add(1, {"y": rows(2)})
    assert outputs.whole() == {"y": rows(1, 2, 3)}
    with pytest.raises(KeyError):
        PartOutputs(("y",)).add(0, {"name": name})


def test_parts_padded_to_different_sizes_are_cut_to_the_smallest() -> None:
    """What a part answers beyond the others is for padding that the request never had."""
    outputs = PartOutputs(padded={"y"})
    for start, size in ((1, 6), (0, 4), (2, 5)):
        outputs.add(start, {"y": rows(1, size=size), "z": rows(2)})
    assert outputs.whole() == {"y": rows(1, 1, 1), "z": rows(2, 2, 2)}


def test_a_part_that_is_all_there_is_stays_where_it_lies() -> None:
    """An output that comes in one part is not copied."""
    outputs, whole = PartOutputs(), rows(1, 2, 3, 4)
    outputs.add(0, {"y": whole})
    assert outputs.whole()["y"] is whole


@pytest.mark.parametrize("odd", [rows(1, size=2), rows(1, dtype=FLOAT32)])
def test_parts_that_do_not_fit_together_are_refused(odd: TensorView) -> None:
    """Parts of other inner sizes or types make no answer, nor do other outputs."""
    outputs = PartOutputs()
    outputs.add(0, {"y": rows(1, 2)})
    outputs.add(2, {"y": odd})
    with pytest.raises(ValueError, match=r"cannot concatenate|structures"):
        outputs.whole()
    with pytest.raises(KeyError):
        outputs.add(3, {"z": rows(4)})
