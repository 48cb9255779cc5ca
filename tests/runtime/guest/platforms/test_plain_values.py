"""tfs.runtime.guest.platforms.signature_call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tfs.runtime.guest.platforms.signature_call import tensor_of, what_it_is


class OnlyArray:
    """Knows nothing but how to become an array."""

    def __array__(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.array([1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1, 2], "f4"),
        np.array([1, 2], ">f4"),
        np.array([2, 1], "f4")[::-1],
        OnlyArray(),
    ],
    ids=["list", "tuple", "array", "big-endian", "backwards", "convertible"],
)
def test_arrays_and_numbers_become_tensors(value: object) -> None:
    """Whatever order their elements and bytes have in memory."""
    made = tensor_of(value, torch.float32)
    assert made.dtype is torch.float32
    assert made.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("text", "a str"),
        (np.array(["2026-01-01"], "M8[D]"), "a ndarray of datetime64[D]"),
        (np.array([None]), "a ndarray of object"),
        ((n for n in (1, 2)), "a generator (return a list of what it yields)"),
        ([torch.ones(2)], "a list of tensors (torch.stack makes one of them)"),
        ([[1.0], [1.0, 2.0]], "a list whose rows differ in length (1 and 2; pad them)"),
        ([[1.0, "x"]], "a list with a str"),
    ],
    ids=["none", "str", "dates", "objects", "generator", "tensors", "ragged", "mixed"],
)
def test_what_makes_no_tensor_is_named(value: object, text: str) -> None:
    """The author reads what was returned and, where there is a usual cure, that."""
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        tensor_of(value, torch.float32)
    assert what_it_is(value) == text
