"""What keeps the requests of two queues apart, in words."""

from __future__ import annotations

import struct

import pytest

from tests.servables.joining.batched_sums import (
    UNPROVEN,
    BatchedSums,
    Sums,
    options_of,
    signature_of,
)
from tests.tensors import floats
from tfs.core.dtype import BFLOAT16, FLOAT32, INT64, STRING
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import SignatureProfile
from tfs.servables.joining.tensor_join import JoinKeys

SIGNATURE = Signature(
    Method.PREDICT,
    {
        "x": TensorSpec(FLOAT32, (-1, 3)),
        "tokens": TensorSpec(INT64, (-1, -1), pad=0),
        "t": TensorSpec(FLOAT32, (1,)),
        "words": TensorSpec(STRING, (2,)),
        "b": TensorSpec(BFLOAT16, (1,)),
        "n": TensorSpec(INT64, (8,)),
    },
    {"y": TensorSpec(FLOAT32, (-1,))},
    defaults={"t": TensorView(FLOAT32, (1,), bytes(4))},
)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, ""),
        (frozenset({("x", (3,))}), ""),
        (frozenset({("x", (3,)), ("tokens", (-1,))}), "tokens [any]"),
        (
            frozenset({("tokens", (512,)), ("t", None)}),
            "t left out, tokens [512]",
        ),
        (frozenset({("tokens", (7,))}), "tokens [7]"),
        (frozenset({("t", (1,), struct.pack("<f", 0.7))}), "t = 0.7"),
        (frozenset({("words", (2,), (b"ann", b"b\xff"))}), "words = ann b\ufffd"),
        (frozenset({("b", (1,), b"\x80\x3f")}), "b = 803f"),
        (frozenset({("n", (8,), struct.pack("<8q", *range(8)))}), "n = 0 1 2 3 ..."),
        (frozenset({("words", (2,), (b"w" * 90,))}), f"words = {'w' * 24}..."),
    ],
)
def test_a_queue_says_what_its_requests_have_in_common(key: object, words: str) -> None:
    """What all requests of a signature have in common is left out."""
    keys = JoinKeys(SIGNATURE, SignatureProfile(), options_of())
    assert keys.traits(key) == words


def test_queues_of_one_signature_tell_themselves_apart() -> None:
    """Two lines of `tfs status --batching` are never alike."""
    free = {"x": TensorSpec(FLOAT32, (-1, -1))}
    at = BatchedSums(Sums(signature_of(free)), UNPROVEN)
    at.submit({"x": floats((1, 2), 1, 2)})
    at.submit({"x": floats((1, 3), 1, 2, 3)})
    assert sorted(each.in_common for each in at.batched.report(DEFAULT_SIGNATURE)) == [
        "x [2]",
        "x [3]",
    ]
    at.step()
    at.close()
