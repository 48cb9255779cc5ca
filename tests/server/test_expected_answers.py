"""Transports hear from signatures how long answers are, until a model is gone."""

from __future__ import annotations

from tests.server.puppet import PuppetServable
from tfs.core.dtype import FLOAT32
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.server.loading import ExpectedAnswers

REQUEST = b"\x0a\x07\x0a\x05masks"


def servable(version: int, *widths: int) -> PuppetServable:
    made = PuppetServable(ServableId("masks", version))
    made.signatures = {
        str(width): Signature(
            Method.PREDICT,
            {"x": TensorSpec(FLOAT32, (-1, 4))},
            {"y": TensorSpec(FLOAT32, (-1, width))},
        )
        for width in widths
    }
    return made


def test_the_longest_answer_of_any_version_counts() -> None:
    """The longest answer counts as long as its version is loaded."""
    answers = ExpectedAnswers()
    sizes = answers.sizes
    answers.note(servable(1, 4, 1 << 20))
    answers.note(servable(2, 1 << 18))
    assert sizes.expected_bytes(REQUEST) == 4 << 20
    answers.forget(ServableId("masks", 3))
    answers.forget(ServableId("other", 1))
    assert sizes.expected_bytes(REQUEST) == 4 << 20
    answers.forget(ServableId("masks", 1))
    assert sizes.expected_bytes(REQUEST) == 1 << 20
    answers.forget(ServableId("masks", 2))
    assert not sizes.by_model


def test_short_answers_and_those_of_free_sizes_are_no_news() -> None:
    """Requests of such models are looked at no more than before."""
    answers = ExpectedAnswers()
    answers.note(servable(1, 4, -1))
    assert not answers.sizes.by_model
