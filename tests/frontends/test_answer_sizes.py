"""Models with long answers to short requests are remembered, for a while."""

from __future__ import annotations

import pytest

from tfs.frontends.rpc.answer_sizes import AnswerSizes
from tfs.proto.tensorflow_serving.apis import predict_pb2

MIB = 1 << 20


def request(model: str, signature: str = "") -> bytes:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    message.inputs["x"].tensor_content = b"1234"
    return message.SerializeToString()


def test_a_short_request_is_expected_to_take_what_its_model_answered() -> None:
    """A model's short requests count as its last long answer; others as themselves."""
    sizes = AnswerSizes()
    sizes.note(request("masks"), 10 * MIB, 0.0)
    assert sizes.expected_bytes(request("masks", "other")) == 10 * MIB
    assert sizes.expected_bytes(request("digits")) == len(request("digits"))
    assert sizes.expected_bytes(memoryview(request("masks"))) == 10 * MIB


def test_ordinary_answers_are_not_remembered() -> None:
    """Short answers are not remembered, nor long ones to long requests."""
    sizes = AnswerSizes()
    sizes.note(request("digits"), 1000, 0.0)
    sizes.note(bytes(MIB), MIB, 0.0)
    assert not sizes.by_model


@pytest.mark.parametrize("odd", [b"", b"\x0a", b"\x12\x00\x0a\x00", b"\xff" * 50])
def test_requests_that_begin_otherwise_are_one_model(odd: bytes) -> None:
    """Whoever hides which model it asks is taken for the worst of those who do."""
    sizes = AnswerSizes()
    sizes.note(b"\x12\x04abcd", 10 * MIB, 0.0)
    assert sizes.expected_bytes(odd) == 10 * MIB


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    """Models beyond the bound share one entry, and after a minute none is kept."""
    sizes = AnswerSizes()
    for number in range(1000):
        sizes.note(request(f"model{number}"), MIB, 0.0)
    assert len(sizes.by_model) <= 257
    sizes.note(request("model1"), MIB, 30.0)
    sizes.sweep(61.0)
    assert len(sizes.by_model) == 1
    sizes.sweep(100.0)
    assert not sizes.by_model


def test_what_a_signature_fixes_is_known_until_the_model_goes() -> None:
    """A signature's length holds until the unload; that of an answer ends then too."""
    sizes = AnswerSizes()
    sizes.expect("masks", MIB)
    sizes.expect("digits", 4)
    assert sizes.expected_bytes(request("masks")) == MIB
    assert sizes.expected_bytes(request("digits")) == len(request("digits"))
    sizes.note(request("masks"), 10 * MIB, 5.0)
    assert sizes.expected_bytes(request("masks")) == 10 * MIB
    sizes.sweep(1000.0)
    assert sizes.expected_bytes(request("masks")) == MIB
    sizes.expect("masks", 0)
    assert not sizes.by_model


def test_a_client_with_short_answers_is_expected_to_get_short_ones() -> None:
    """Of the same model, until it gets a long one or is gone; whatever others get."""
    sizes = AnswerSizes()
    short = len(request("masks"))
    sizes.note(request("masks"), 10, 0.0, "good")
    sizes.note(request("masks"), MIB, 0.0, "other")
    assert sizes.expected_bytes(request("masks"), "good") == short
    assert sizes.expected_bytes(request("masks"), "other") == MIB
    assert sizes.is_trusted(request("masks"), "good")
    assert not sizes.is_trusted(request("digits"), "good")
    sizes.note(request("masks"), MIB, 0.0, "good")
    assert sizes.expected_bytes(request("masks"), "good") == MIB
    sizes.note(request("masks"), 10, 0.0, "good")
    sizes.forget("good")
    assert sizes.expected_bytes(request("masks"), "good") == MIB


def test_short_answers_change_nothing_of_what_a_signature_fixes() -> None:
    """A question for a model's status has a short answer, whatever the model gives."""
    sizes = AnswerSizes()
    sizes.expect("masks", MIB)
    sizes.note(request("masks"), 10, 0.0, "client")
    assert sizes.expected_bytes(request("masks"), "client") == MIB


def test_clients_with_short_answers_are_remembered_up_to_a_bound() -> None:
    """The longest known client goes for a new one, and so do a client's other models."""
    sizes = AnswerSizes()
    for number in range(5000):
        sizes.note(request("masks"), 10, 0.0, number)
    for number in range(20):
        sizes.note(request(f"model{number}"), 10, 0.0, 4999)
    assert len(sizes._short) == 4096
    assert len(sizes._short[4999]) == 8
