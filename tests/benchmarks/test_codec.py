"""The codec area's own logic: both sides answer right, and a wrong answer is seen."""

from __future__ import annotations

import pytest

from tests.benchmarks import codec


@pytest.mark.parametrize(
    "message",
    [
        codec.make_request((1, 4), as_content=False),
        codec.make_request((1, 4), as_content=True),
        codec.make_token_request(5),
    ],
    ids=["float_val", "tensor_content", "int64_val"],
)
def test_every_way_answers_with_the_request(message: bytes) -> None:
    """What is compared does the same work."""
    for answer in (codec.answer, codec.answer_at_first_sight):
        assert codec.is_right(answer(message), message)
    if b"\x2a\x10" not in message:  # objects take no typed floats here
        assert codec.is_right(codec.answer_with_objects(message), message)


def test_a_wrong_answer_is_noticed() -> None:
    """A reply with another value is not right."""
    message = codec.make_request((1, 4), as_content=True)
    reply = bytearray(codec.answer(message))
    reply[reply.index(b"\x00\x00\x00\x3f")] ^= 1
    assert not codec.is_right(bytes(reply), message)
