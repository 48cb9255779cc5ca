"""tfs.handlers.examples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.handlers.served import REGRESS, OneModel
from tfs.codec.example_input import ExampleInput
from tfs.codec.inference_results import InferenceTaskView
from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
    Unimplemented,
)
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method
from tfs.handlers import example_rpc
from tfs.handlers.example_rpc import ExampleQuestion, FoundTask
from tfs.handlers.examples import ExampleHandler
from tfs.proto.tensorflow_serving.apis import (
    inference_pb2,
    input_pb2,
)
from tfs.testing.fake_call import FakeCall

ROWS = [(0.25, 0.75), (0.5, 0.5)]


def fill(message: input_pb2.Input) -> None:
    for row in ROWS:
        example = message.example_list.examples.add()
        example.features.feature["x"].float_list.value.extend(row)


def test_no_examples_are_refused() -> None:
    """An empty input is the caller's mistake (multi_inference MissingInputTest)."""
    served = OneModel()
    asked = multi(served, ("m", "regress", "regress"), empty=True)
    assert "Input is empty." in asked.error().message
    assert served.handle.num_pins == 0


def multi(
    served: OneModel,
    *tasks: tuple[str, str, str],
    paused: bool = False,
    empty: bool = False,
) -> FakeCall:
    request = inference_pb2.MultiInferenceRequest()
    for model, signature, method in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    if not empty:
        fill(request.input)
    served.servable.is_paused = paused
    call = FakeCall(request.SerializeToString())
    ExampleHandler(served, example_rpc.MULTI_INFERENCE)(call)
    return call


@pytest.mark.parametrize(
    "asked", [("regress",), ("regress", "again"), ("regress", "classify")]
)
def test_several_signatures_answer_in_order(asked: tuple[str, ...]) -> None:
    """Every task gets its result, from one version, in the order asked.

    multi_inference ValidSingleSignatureTest, MultipleValidRegressSignaturesTest,
    RegressAndClassifySignaturesTest.
    """
    served = OneModel()
    served.servable.signatures = {**served.servable.signatures, "again": REGRESS}  # type: ignore[misc]
    methods = ["classify" if name == "classify" else "regress" for name in asked]
    tasks = [("m", *each) for each in zip(asked, methods, strict=True)]
    call = multi(served, *tasks, paused=True)
    assert not call.is_finished
    for task in reversed(served.servable.tasks):
        served.servable.answer(task)
    response = inference_pb2.MultiInferenceResponse.FromString(call.reply_bytes())
    for result, name in zip(response.results, asked, strict=True):
        assert result.model_spec.signature_name == name
        if name == "classify":
            assert len(result.classification_result.classifications) == 2
        else:
            found = [each.value for each in result.regression_result.regressions]
            assert found == [0.25, 0.5]
    assert {each.model_spec.version.value for each in response.results} == {3}
    assert served.handle.num_pins == 0
    assert call.num_finishes == 1


@pytest.mark.parametrize(
    ("tasks", "kind", "words"),
    [
        ([("", "regress", "regress")], InvalidArgument, "ModelSpec has no name"),
        (
            [("m", "regress", "regress"), ("", "classify", "classify")],
            InvalidArgument,
            "Found ModelSpec with an empty model name.",
        ),
        (
            [("n", "regress", "regress"), ("n", "regress", "regress")],
            NotFound,
            "Latest(n)",
        ),
        (
            [("m", "other", "regress"), ("m", "other", "regress")],
            InvalidArgument,
            "not found in model graph: other",
        ),
        (
            [("m", "other", "predict"), ("m", "regress", "regress")],
            InvalidArgument,
            "not found in model graph: other",
        ),
        (
            [("m", "regress", "predict"), ("m", "regress", "regress")],
            Unimplemented,
            "Unsupported signature method_name: tensorflow/serving/predict",
        ),
        (
            [("m", "regress", "regress"), ("n", "classify", "classify")],
            InvalidArgument,
            "same model name",
        ),
        (
            [("m", "regress", "regress"), ("m", "regress", "regress")],
            InvalidArgument,
            "Duplicate evaluation of signature: regress",
        ),
        ([("m", "serving_default", "predict")], Unimplemented, "Unsupported"),
        (
            [("m", "other", "classify")],
            InvalidArgument,
            "not found in model graph: other",
        ),
        ([], InvalidArgument, "ModelSpec has no name"),
    ],
)
def test_a_bad_task_fails_the_whole_request(
    tasks: list[tuple[str, str, str]], kind: type[ServingError], words: str
) -> None:
    """Nothing runs unless every task is right; upstream's order says which error.

    multi_inference UndefinedSignatureTest, InconsistentModelSpecsInRequestTest,
    EvaluateDuplicateSignaturesTest, UsupportedSignatureTypeTest.
    """
    served = OneModel()
    error = multi(served, *tasks).error()
    assert isinstance(error, kind)
    assert words in error.message
    assert served.servable.tasks == []
    assert served.handle.num_pins == 0


def test_one_failed_task_fails_the_request_once() -> None:
    """The first error is the answer; the others still end."""
    served = OneModel()
    served.servable.error = Internal("m/3: broken")
    call = multi(served, ("m", "regress", "regress"), ("m", "classify", "classify"))
    assert call.error() is served.servable.error
    assert call.num_finishes == 1
    assert served.handle.num_pins == 0


def test_a_question_decoded_elsewhere_is_answered_in_its_own_words() -> None:
    """It takes the way of all others; only the reply is written by who decoded it."""
    served, call = OneModel(), FakeCall(b"{}")
    request = inference_pb2.MultiInferenceRequest()
    fill(request.input)
    rows = tuple(e.SerializeToString() for e in request.input.example_list.examples)
    spec = ModelSpec("m", None, None, "classify")
    task = InferenceTaskView(spec, Method.CLASSIFY.method_name)

    def write(
        servable_id: ServableId,
        question: ExampleQuestion,
        tasks: Sequence[FoundTask],
        outputs: Sequence[Tensors],
    ) -> bytes:
        (scores,) = [each["scores"].shape for each in outputs]
        return (
            f"{servable_id.slashed} {question.num_rows} {len(tasks)} {scores}".encode()
        )

    ExampleHandler(served, example_rpc.CLASSIFY).start(
        call, ExampleQuestion(spec, (task,), ExampleInput(rows)), write
    )
    assert call.reply_bytes() == b"m/3 2 1 (2, 2)"
    assert served.handle.num_pins == 0
