"""No case of TensorFlow Serving's tests of these rooms is left out silently."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "tests/handlers/test_upstream_cases.py",
    "tests/handlers/test_examples.py",
    "tests/handlers/test_predict.py",
    "tests/handlers/test_services.py",
    "tests/handlers/test_warmup.py",
    "tests/codec/test_inference_results.py",
    "tests/handlers/limits/test_request_gate.py",
    "tests/server/request_log/test_request_logs.py",
    "tests/codec/json/test_examples.py",
    "tests/codec/json/test_predict_body.py",
    "tests/codec/json/test_tensor_writer.py",
    "tests/e2e/test_rest.py",
    "tests/handlers/rest/test_paths.py",
)

# Names of the cases, by upstream file, at its version of July 2026.
CASES = {
    "predict_util_test": """
        MissingOrEmptyModelSpec EmptyInputList InputTensorsDontMatchModelSpecInputs
        PredictionInvalidTensor OutputFiltersDontMatchModelSpecOutputs
        InputTensorsHaveWrongType ModelMissingSignatures PredictionSuccess
        PredictionWithNamedRegressionSignature
        PredictionWithNamedClassificationSignature PredictionWithCustomizedSignatures
        ThreadPoolOptions MethodNameCheck
    """,
    "classifier_test": """
        ExampleList ExampleListWithContext ExampleListWithContext_DuplicateFeatures
        ClassesOnly ScoresOnly ZeroScoresArePresent ValidNamedSignature
        InvalidNamedSignature MalformedScores MissingClassificationSignature EmptyInput
        EmptyExampleList EmptyExampleListWithContext RunsFails
        ClassesIncorrectTensorBatchSize ClassesIncorrectTensorType
        ScoresIncorrectTensorBatchSize ScoresIncorrectTensorType
        MismatchedNumberOfTensorClasses MethodNameCheck
    """,
    "regressor_test": """
        BasicExampleList BasicExampleListWithContext ValidNamedSignature
        InvalidNamedSignature MalformedOutputs EmptyInput EmptyExampleList
        EmptyExampleListWithContext RunsFails UnexpectedOutputTensorSize
        UnexpectedOutputTensorType MissingRegressionSignature MethodNameCheck
    """,
    "multi_inference_test": """
        MissingInputTest UndefinedSignatureTest InconsistentModelSpecsInRequestTest
        EvaluateDuplicateSignaturesTest UsupportedSignatureTypeTest
        ValidSingleSignatureTest MultipleValidRegressSignaturesTest
        RegressAndClassifySignaturesTest ThreadPoolOptions
    """,
    "get_model_metadata_impl_test": """
        EmptyOrInvalidMetadataFieldList MissingOrEmptyModelSpec
        ReturnsSignaturesForValidModel ModelSpecOverride
    """,
    "saved_model_warmup_util_test": """
        WarmupStateRegistration NoWarmupDataFile WarmupDataFileEmpty
        UnsupportedFileFormat TooManyWarmupRecords UnparsableRecord RunSuccess RunFailure
    """,
    "saved_model_warmup_test": """
        MixedWarmupData UnsupportedLogType_SessionRun UnsupportedLogType_PredictStreamed
    """,
    "util_test": """
        Empty_KindNotSet Empty_ExampleList Empty_ExampleListWithContext ExampleList
        ExampleListWithContext ExampleListWithOverridingContext
        ExampleListWithContext_NoContext ExampleListWithContext_OnlyContext
        RequestNumExamplesStreamz Simple NoOptional OptionalSignature EmptySignature
        OptionalVersion AllOptionalSet SetGet EstimateResourceFromPathUsingDiskState
        GetKeys GetDiff
    """,
    "request_logger_test": """
        Simple ErroringCreateLogMessage ErroringCollectMessage LoggingStreamSucceeds
        LoggingStreamRequestLoggerDiesBeforeStreamCloses DcEnforcedWhenSet
        TaskIndexEnforcedWhenSet FirstMatchingConfigIsPicked
        FallsBackToTopLevelSamplingRate
    """,
    "server_request_logger_test": """
        Empty AbsentModel MultipleModels CreateAndDeleteLogger CreateAndModifyLogger
        SameConfigForTwoModelsCreatesOneLogger MultipleConfigForOneModel
        PartiallyBadUpdate CreateUpdateRequestErrors CreateUpdateRequestSingleConfigOk
        CreateUpdateRequestMultipleConfigsOk MultipleLoggersForOneModel
        MultipleLoggersOneModelErrors MultipleUpdatesSingleCreation StreamLoggingBasic
        StreamLoggingUpdateLoggingConfig
    """,
    "json_tensor_test": """
        SingleUnnamedTensor MixedInputForFloatTensor MixedInputForDoubleTensor
        SingleUnnamedTensorWithSignature TensorFromNonNullTerminatedBuffer
        SingleUnnamedTensorBase64Scalars SingleUnnamedTensorBase64Lists
        SingleNamedTensorBase64 MultipleNamedTensor SingleUnnamedTensorColumnarFormat
        MultipleNamedTensorColumnarFormat SingleUnnamedTensorErrors
        MultipleNamedTensorErrors FromJsonSingleTensor FromJsonSingleScalarTensor
        FromJsonSingleBytesTensor FromJsonSingleFloatTensorSixDigitPrecision
        FromJsonSingleFloatTensorNonFinite FromJsonSingleTensorErrors
        FromJsonMultipleNamedTensors FromJsonMultipleNamedTensorsErrors
        FromJsonSingleZeroBatchTensor FromJsonMultipleZeroBatchTensors
        FromJsonMultipleZeroBatchTensorsErrors RequestNoContext
        RequestWithContextAndSignature JsonErrors JsonFromClassificationResult
        JsonFromRegressionResult JsonFromRegressionResultWithNonFinite
        JsonFromResultErrors StatusOK StatusError
    """,
    "http_rest_api_handler_test": """
        kPathRegex UnsupportedApiCalls PredictModelNameVersionErrors
        PredictRequestErrors Predict Regress Classify GetStatus GetModelMetadata
    """,
    "http_rest_api_util_test": "TestParseModelInfoForGet TestParseModelInfoForPost",
    "log_collector_test": "NotRegistered Registration DuplicateRegistration Creation",
}


def told() -> set[str]:
    """Returns every word of the tests' docstrings and of the page on divergences."""
    text = (ROOT / "docs" / "divergences.md").read_text(encoding="utf-8")
    for name in FILES:
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                text += " " + (ast.get_docstring(node) or "")
    return set(re.findall(r"\w+", text))


@pytest.mark.parametrize("file", sorted(CASES))
def test_every_upstream_case_is_tested_or_decided_otherwise(file: str) -> None:
    """Each case is named by a test's docstring, or by a line in docs/divergences.md."""
    assert sorted(set(CASES[file].split()) - told()) == []
