"""Models with long answers to short requests are known by their last answer."""

from __future__ import annotations

import pytest

from tfs.frontends.budget import AnswerSizes
from tfs.proto.tensorflow_serving.apis import predict_pb2

MIB = 1 << 20


def request(model: str, signature: str = "") -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    message.inputs["x"].tensor_content = b"1234"
    return message.SerializeToString()


def test_a_request_is_expected_to_take_what_its_model_answered_last() -> None:
    """Whatever the signature; other models' requests are not."""
    sizes = AnswerSizes()
    sizes.note(request("masks"), 10 * MIB)
    assert sizes.expected_bytes(request("masks", "other")) == 10 * MIB
    assert sizes.expected_bytes(request("digits")) == 0
    assert sizes.expected_bytes(memoryview(request("masks"))) == 10 * MIB
    sizes.note(request("masks"), 1000)
    assert not sizes.by_model


@pytest.mark.parametrize("odd", [b"", b"\x0a", b"\x12\x00\x0a\x00", b"\xff" * 50])
def test_requests_that_begin_otherwise_are_one_model(odd: bytes) -> None:
    """Whoever hides which model it asks is taken for the worst of those who do."""
    sizes = AnswerSizes()
    sizes.note(b"\x12\x04abcd", 10 * MIB)
    assert sizes.expected_bytes(odd) == 10 * MIB


def test_what_is_remembered_is_bounded() -> None:
    """A server of thousands of models remembers 256 of them."""
    sizes = AnswerSizes()
    for number in range(1000):
        sizes.note(request(f"model{number}"), MIB)
    assert len(sizes.by_model) == 256


def test_what_a_signature_fixes_is_known_until_the_model_goes() -> None:
    """Short answers change nothing of it, and longer ones count while they come."""
    sizes = AnswerSizes()
    sizes.expect("masks", 5 * MIB)
    assert sizes.expected_bytes(request("masks")) == 5 * MIB
    sizes.note(request("masks"), 10 * MIB)
    assert sizes.expected_bytes(request("masks")) == 10 * MIB
    sizes.note(request("masks"), 10)
    assert sizes.expected_bytes(request("masks")) == 5 * MIB
    sizes.expect("masks", 0)
    assert not sizes.by_model
