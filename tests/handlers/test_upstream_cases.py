"""TensorFlow Serving's own cases for the inference handlers, each by its name.

They go through the handlers, as a client's requests do. What is decided otherwise here is
in docs/divergences.md; tests/architecture/test_upstream_cases.py checks that no case is
left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.handlers.served import CLASSIFY, PREDICT, REGRESS, EchoServable, OneModel
from tests.tensors import floats, strings
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
)
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.handlers import example_rpc
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.model_metadata import ModelMetadataHandler
from tfs.handlers.predict import PredictHandler
from tfs.handlers.request_format import PredictFormat
from tfs.proto.tensorflow.core.example import example_pb2
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    input_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)
from tfs.testing.fake_call import FakeCall

NAMED = {"classify": CLASSIFY, "regress": REGRESS, "serving_default": PREDICT}


class Scripted(EchoServable):
    """Gives the outputs a test says, for the signatures a test says."""

    def __init__(
        self, signatures: Mapping[str, Signature], outputs: Tensors | None
    ) -> None:
        super().__init__()
        self.signatures = dict(signatures)  # type: ignore[misc]  # shadows the class's
        self.outputs = outputs

    def answer(self, task: InferenceTask) -> None:
        if self.outputs is None:
            super().answer(task)
        else:
            task.on_done(self.error or self.outputs)


def model(
    signatures: Mapping[str, Signature] = NAMED, outputs: Tensors | None = None
) -> OneModel:
    served = OneModel()
    served.servable = Scripted(signatures, outputs)
    served.handle.servable = served.servable
    return served


# -- predict_util_test ----------------------------------------------------------------


def predict_request(
    signature: str = "", **inputs: Sequence[float]
) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = types_pb2.DT_FLOAT
        for size in (1, len(values)):
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend(values)
    return request


def predict(
    request: predict_pb2.PredictRequest,
    served: OneModel | None = None,
    *,
    content: bool = False,
) -> FakeCall:
    call = FakeCall(request.SerializeToString())
    PredictHandler(served or model(), form=PredictFormat(content))(call)
    return call


def predicted(call: FakeCall) -> predict_pb2.PredictResponse:
    return predict_pb2.PredictResponse.FromString(call.reply_bytes())


def test_predict_with_other_inputs() -> None:
    """predict_util InputTensorsDontMatchModelSpecInputs: extra and missing are named."""
    error = predict(predict_request(unknown=(1, 2))).error()
    assert isinstance(error, InvalidArgument)
    assert "input size does not match signature: 1!=2" in error.message
    assert "Sent extra: {unknown}. Missing but required: {x}." in error.message
    error = predict(predict_request(unknown=(1, 2), scale=(1,))).error()
    assert "Signature input alias: x(feed name: x) not found" in error.message
    assert "Inputs expected to be in the request {scale,unknown}" in error.message


def test_predict_of_outputs_that_are_not_there() -> None:
    """predict_util OutputFiltersDontMatchModelSpecOutputs: unknown, then twice."""
    request = predict_request(x=(1, 2))
    request.output_filter.append("unknown")
    unknown = predict(request).error()
    assert "output tensor alias not found in signature: unknown" in unknown.message
    del request.output_filter[:]
    request.output_filter.extend(["y", "y"])
    assert "duplicate output tensor alias: y" in predict(request).error().message


def test_predict_of_a_model_without_signatures() -> None:
    """predict_util ModelMissingSignatures: FAILED_PRECONDITION names the default key."""
    error = predict(predict_request(x=(1, 2)), model({})).error()
    assert isinstance(error, FailedPrecondition)
    assert 'Serving signature key "serving_default" not found.' in error.message


@pytest.mark.parametrize("content", [False, True])
def test_predict_succeeds(content: bool) -> None:
    """predict_util PredictionSuccess: typed fields, or tensor_content if asked for."""
    response = predicted(predict(predict_request(x=(1, 2)), content=content))
    tensor = response.outputs["y"]
    raw = struct.pack("<2f", 1, 2)
    assert tensor.tensor_content == (raw if content else b"")
    assert list(tensor.float_val) == ([] if content else [1, 2])
    spec = response.model_spec
    assert (spec.name, spec.version.value) == ("m", 3)
    assert spec.signature_name == "serving_default"


@pytest.mark.parametrize(
    ("signature", "output"), [("regress", "outputs"), ("classify", "scores")]
)
def test_predict_with_signatures_of_other_methods(signature: str, output: str) -> None:
    """predict_util PredictionWithNamedRegressionSignature, and
    PredictionWithNamedClassificationSignature: any signature can be predicted.
    """
    response = predicted(predict(predict_request(signature, x=(1, 2))))
    assert list(response.outputs) == [output]
    assert response.model_spec.signature_name == signature


def test_predict_with_a_signature_of_ones_own() -> None:
    """predict_util PredictionWithCustomizedSignatures, util Simple, NoOptional,
    OptionalSignature, EmptySignature, OptionalVersion, AllOptionalSet: by its key, which
    the reply repeats beside name and version; unknown ones fail.
    """
    served = model({"mine": PREDICT})
    response = predicted(predict(predict_request("mine", x=(1, 2)), served))
    assert response.model_spec.signature_name == "mine"
    error = predict(predict_request("other", x=(1, 2)), served).error()
    assert isinstance(error, FailedPrecondition)


# -- classifier_test, regressor_test ----------------------------------------------------


def example(**features: Sequence[float]) -> example_pb2.Example:
    message = example_pb2.Example()
    for name, values in features.items():
        message.features.feature[name].float_list.value.extend(values)
    return message


ROWS = (example(x=(0.25, 0.75)), example(x=(0.5, 0.0)))
Fill = Callable[[input_pb2.Input], None]


def listed(*rows: example_pb2.Example) -> Fill:
    return lambda message: message.example_list.examples.extend(rows)


def in_context(context: example_pb2.Example, *rows: example_pb2.Example) -> Fill:
    def fill(message: input_pb2.Input) -> None:
        message.example_list_with_context.context.CopyFrom(context)
        message.example_list_with_context.examples.extend(rows)

    return fill


def nothing(message: input_pb2.Input) -> None:
    """Leaves the input unset."""


def no_list(message: input_pb2.Input) -> None:
    message.example_list.SetInParent()


def no_list_in_context(message: input_pb2.Input) -> None:
    message.example_list_with_context.context.CopyFrom(ROWS[0])


def classify(
    fill: Fill,
    served: OneModel | None = None,
    signature: str = "classify",
    *,
    check_method: bool = False,
) -> FakeCall:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    fill(request.input)
    call = FakeCall(request.SerializeToString())
    handler = ExampleHandler(
        served or model(), example_rpc.CLASSIFY, check_method=check_method
    )
    handler(call)
    return call


def classes(call: FakeCall) -> list[list[tuple[str, float]]]:
    response = classification_pb2.ClassificationResponse.FromString(call.reply_bytes())
    return [
        [(each.label, each.score) for each in row.classes]
        for row in response.result.classifications
    ]


def regress(
    fill: Fill,
    served: OneModel | None = None,
    signature: str = "regress",
    *,
    check_method: bool = False,
) -> FakeCall:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    fill(request.input)
    call = FakeCall(request.SerializeToString())
    handler = ExampleHandler(
        served or model(), example_rpc.REGRESS, check_method=check_method
    )
    handler(call)
    return call


def values(call: FakeCall) -> list[float]:
    response = regression_pb2.RegressionResponse.FromString(call.reply_bytes())
    return [each.value for each in response.result.regressions]


def test_classify_a_list() -> None:
    """classifier ExampleList, ZeroScoresArePresent: one row an Example, zeros kept."""
    assert classes(classify(listed(*ROWS))) == [
        [("no", 0.25), ("yes", 0.75)],
        [("no", 0.5), ("yes", 0.0)],
    ]


def test_classify_a_list_with_context() -> None:
    """classifier ExampleListWithContext: common features count for every Example."""
    answer = classes(classify(in_context(ROWS[0], example(), example())))
    assert answer == [[("no", 0.25), ("yes", 0.75)]] * 2


def test_classify_a_list_with_context_that_is_overridden() -> None:
    """classifier ExampleListWithContext_DuplicateFeatures: the Example's own wins."""
    answer = classes(classify(in_context(ROWS[0], ROWS[1], example())))
    assert [row[0][1] for row in answer] == [0.5, 0.25]


UNLABELLED = Signature(
    Method.CLASSIFY, CLASSIFY.inputs, CLASSIFY.outputs, features=CLASSIFY.features
)


def test_classify_gives_classes_alone() -> None:
    """classifier ClassesOnly: labels without scores."""
    served = model(
        {"classify": UNLABELLED},
        {"classes": strings((2, 2), b"a", b"b", b"c", b"d")},
    )
    assert classes(classify(listed(*ROWS), served)) == [
        [("a", 0.0), ("b", 0.0)],
        [("c", 0.0), ("d", 0.0)],
    ]


def test_classify_gives_scores_alone() -> None:
    """classifier ScoresOnly: scores without labels."""
    served = model({"classify": UNLABELLED})
    assert classes(classify(listed(ROWS[0]), served)) == [[("", 0.25), ("", 0.75)]]


def test_classify_with_a_signature_of_ones_own() -> None:
    """classifier ValidNamedSignature: by its key, which the reply repeats."""
    call = classify(listed(*ROWS), model({"mine": CLASSIFY}), "mine")
    response = classification_pb2.ClassificationResponse.FromString(call.reply_bytes())
    assert response.model_spec.signature_name == "mine"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            classify,
            "Expected classification signature outputs to contain at least one of "
            '"classes" or "scores". Signature was: ',
        ),
        (regress, "No regression outputs found in SignatureDef: "),
    ],
    ids=["classify", "regress"],
)
def test_examples_with_a_signature_of_another_method(
    ask: Callable[..., FakeCall], words: str
) -> None:
    """classifier and regressor InvalidNamedSignature, MethodNameCheck: with the check
    the method must fit, and the message says which it is; without, the outputs must.
    """
    other = "regress" if ask is classify else "classify"
    error = ask(listed(*ROWS), None, other, check_method=True).error()
    assert isinstance(error, InvalidArgument)
    assert f"Was: tensorflow/serving/{other}" in error.message
    error = ask(listed(*ROWS), None, other).error()
    assert isinstance(error, InvalidArgument)
    assert error.message.startswith(words)


def test_a_predict_signature_with_features_classifies_unless_checked() -> None:
    """classifier MethodNameCheck, unchecked half: features and outputs are enough."""
    scores = floats((len(ROWS), 2), *range(2 * len(ROWS)))
    signature = replace(CLASSIFY, method=Method.PREDICT)
    served = model({"mine": signature}, {"scores": scores})
    assert len(classes(classify(listed(*ROWS), served, "mine"))) == len(ROWS)
    error = classify(listed(*ROWS), served, "mine", check_method=True).error()
    assert "Was: tensorflow/serving/predict" in error.message
    served = model({"mine": replace(signature, features={})})
    error = classify(listed(*ROWS), served, "mine").error()
    assert "Was: tensorflow/serving/predict" in error.message


def test_a_predict_signature_of_one_string_gets_examples_unless_checked() -> None:
    """regressor MethodNameCheck, unchecked half: what takes a string parses it itself."""
    signature = Signature(
        Method.PREDICT,
        {"inputs": TensorSpec(STRING, (-1,))},
        {"outputs": TensorSpec(FLOAT32, (-1,))},
    )
    served = model({"mine": signature}, {"outputs": floats((2,), 0.25, 0.5)})
    assert values(regress(listed(*ROWS), served, "mine")) == [0.25, 0.5]
    (task,) = served.servable.tasks
    assert task.inputs["inputs"].strings == tuple(
        row.SerializeToString() for row in ROWS
    )
    error = regress(listed(*ROWS), served, "mine", check_method=True).error()
    assert "Was: tensorflow/serving/predict" in error.message
    error = classify(listed(*ROWS), served, "mine").error()
    assert "Expected classification signature outputs" in error.message


@pytest.mark.parametrize("ask", [classify, regress])
def test_examples_for_a_signature_that_is_not_there(
    ask: Callable[..., FakeCall],
) -> None:
    """classifier MissingClassificationSignature, regressor MissingRegressionSignature:
    the default one is asked for where none is named.
    """
    error = ask(listed(*ROWS), model({}), "").error()
    assert isinstance(error, InvalidArgument)
    assert error.message == "No signature was found with the name: serving_default"


@pytest.mark.parametrize("ask", [classify, regress])
@pytest.mark.parametrize("fill", [nothing, no_list, no_list_in_context])
def test_examples_are_missing(ask: Callable[..., FakeCall], fill: Fill) -> None:
    """classifier and regressor EmptyInput, EmptyExampleList, EmptyExampleListWithContext,
    util Empty_KindNotSet, Empty_ExampleList, Empty_ExampleListWithContext,
    ExampleListWithContext_OnlyContext: there is nothing to answer.
    """
    error = ask(fill).error()
    assert isinstance(error, InvalidArgument)
    assert error.message == "Input is empty."


@pytest.mark.parametrize("ask", [classify, regress])
def test_a_run_fails(ask: Callable[..., FakeCall]) -> None:
    """classifier and regressor RunsFails: the model's error is the caller's."""
    served = model()
    served.servable.error = Internal("m/3: run totally failed")
    assert ask(listed(*ROWS), served).error() is served.servable.error


def test_regress_a_list() -> None:
    """regressor BasicExampleList: one value an Example."""
    assert values(regress(listed(*ROWS))) == [0.25, 0.5]


def test_regress_a_list_with_context() -> None:
    """regressor BasicExampleListWithContext: common features count for all."""
    assert values(regress(in_context(ROWS[0], example(), ROWS[1]))) == [0.25, 0.5]


def test_regress_with_a_signature_of_ones_own() -> None:
    """regressor ValidNamedSignature: by its key, which the reply repeats."""
    call = regress(listed(*ROWS), model({"mine": REGRESS}), "mine")
    response = regression_pb2.RegressionResponse.FromString(call.reply_bytes())
    assert response.model_spec.signature_name == "mine"


# -- get_model_metadata_impl_test ------------------------------------------------------------


def metadata(spec: model_pb2.ModelSpec | None, *fields: str) -> FakeCall:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    if spec is not None:
        request.model_spec.CopyFrom(spec)
    call = FakeCall(request.SerializeToString())
    ModelMetadataHandler(model())(call)
    return call


SPEC = model_pb2.ModelSpec(name="m")


def test_metadata_of_no_or_unknown_fields() -> None:
    """Asking for no field, or for one that is unknown, is refused in upstream's words
    (get_model_metadata EmptyOrInvalidMetadataFieldList: both messages), as is asking
    of no model.
    """
    assert metadata(SPEC).error().message == (
        "GetModelMetadataRequest must specify at least one metadata_field"
    )
    assert metadata(SPEC, "some_stuff").error().message == (
        "Metadata field some_stuff is not supported"
    )
    assert metadata(None, "signature_def").error().message == "Missing ModelSpec"


# -- util_test ------------------------------------------------------------------------------


def test_inputs_become_rows() -> None:
    """util ExampleList, ExampleListWithContext, ExampleListWithOverridingContext,
    ExampleListWithContext_NoContext: a string input takes the Examples serialized, the
    context's bytes first.
    """
    whole = Signature(
        Method.REGRESS,
        {"examples": TensorSpec(STRING, (-1,))},
        {"outputs": TensorSpec(FLOAT32, (-1,))},
    )
    for fill, rows in (
        (listed(*ROWS), [row.SerializeToString() for row in ROWS]),
        (
            in_context(example(c=(1,)), *ROWS),
            [example(c=(1,)).SerializeToString() + r.SerializeToString() for r in ROWS],
        ),
        (
            in_context(example_pb2.Example(), *ROWS),
            [row.SerializeToString() for row in ROWS],
        ),
    ):
        outputs = {"outputs": floats((2,), 1, 2)}
        served = model({"regress": whole}, outputs)
        assert values(regress(fill, served)) == [1, 2]
        (task,) = served.servable.tasks
        assert list(task.inputs["examples"].data) == rows
