"""No case of TensorFlow Serving's and TensorFlow's batching tests is left out silently."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "tests/core/batch/test_batch_queue.py",
    "tests/servables/joining/test_batched.py",
    "tests/servables/joining/test_large_batched_requests.py",
    "tests/servables/joining/test_padded_batches.py",
    "tests/servables/joining/test_tensor_join.py",
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / "batching").glob("test_*.py"))
    ),
)

# Names of the cases, by upstream file or suite, at their versions of July 2026.
CASES = {
    "batching_session_test": """
        TensorSignatureFromSignatureDef Basic BatchingWithPadding
        BatchingWithLargeBatch BatchHandlesSplitError BatchingLazySplit
        BatchingWithPaddingAndCost BatchingWithCost
        UnequalTensorShapesWithPaddingTurnedOff SingletonBatch
        RequestThatDoesntMatchSignatureGetsRunAnyway
        RequestWithIncompatibleInputTensorSizes AllowedBatchSizesNoPaddingNeeded
        AllowedBatchSizesRequirePadding UnsortedAllowedBatchSizesRejected
        FinalAllowedBatchSizeLargerThanMaxBatchSizeRejected
        DifferentOrderForInputAndOutputTensors MultipleSignatures
        EnqueuedLongerThanTimeout ThreadPoolOptions SubsetOutputTensors
    """,
    "batching_util_test": """
        CalculateMaxDimSizes AddPadding AddPaddingTensorWithUnsupportedRank
    """,
    "incremental_barrier_test": """
        RunInstantlyWhenZeroClosure RunAfterNumClosuresOneNowTwoLater
    """,
    "threadsafe_status_test": """
        DefaultOk Update Move
    """,
    "batch_scheduler_retrier_test": """
        ConstMethodsForwardToWrappedScheduler PermanentFailure MaxTime RetryDelay
    """,
    "streaming_batch_scheduler_test": """
        Basic ObeyBatchSizeConstraint Timeout RealClockTimeout
        FinalUnderfullBatchProcessedUponDeletion
        BatchHandedToCallbackWhenFirstCreated ConstMethods
    """,
    "tfrt_saved_model_with_batching_test": """
        NullWrappedSavedModel MultipleBatchSchedulersForOneFunction
        FailedCreatingBatchScheduler FunctionNameNotFound BatchingWithoutPadding
        BatchingWithPadding UnequalShapesWhenPaddingIsTurnedOff
        AllTasksExceededDeadline MultipleFunctions SplitInputBasic PartialTaskFails
    """,
    "shared_batch_scheduler_test": """
        Basic ObeyBatchSizeConstraint ObeysTimeout ObeysTimeoutWithRealClock
        WithZeroTimeoutBatchesScheduledAsSoonAsThreadIsAvailable Fairness
        ConstMethods OneFullQueueDoesntBlockOtherQueues
        QueueDestructorBlocksUntilAllTasksProcessed ZeroQueueRewrittenToOneQueue
        BatchPaddingPolicyBatchDown InvalidLazySplitOptions
        ReuseGlobalSchedulerAcrossCreations
    """,
    "SharedBatchSchedulerPriorityTest": """
        InvalidLowPriorityTaskWithPriorityQueueEnabled
        InvalidLowPriorityTaskWithQueueFull
        CallbackWithTaskVectorOkWithPriorityQueueDisabledWithPrioritySet
        LowPriorityTaskOnlyAtMaxBatchSize LowPriorityTaskOnlyAtTimeout
    """,
    "SharedBatchSchedulerPriorityPolicyTest": """
        HighPriorityBatchPaddedUptoMaxBatchSize UptoMaxAvailableBatchSize
        UptoNextAllowedBatchSize
        HighPriorityBatchNotPaddedWhenAllowedBatchSizeMissing
        NotPaddedWithLowPriorityTasks LowPriorityTimeout HighPriorityTimeout
        LowPriorityCompleteBatch HighPriorityCompleteBatch
        MixedPriorityBatchAfterHighPriorityTimeout
        MixedPriorityBatchAfterLowPriorityTimeout MixedPriorityCompleteBatch
        MixedPriorityBatchSplitting RankingMultipleQueues RankingFullBatch
    """,
    "SharedBatchSchedulerPriorityAwareTest": """
        BasicScheduling InvalidTaskSize SchedulingAtMaxBatchSize SchedulingAtTimeout
        MixedPriorityBatching MixedPriorityBatchingHighLoad
        MixedPriorityBatchingTimeout PriorityOrdering QueueSizeLimit
        LargeBatchSplitting BatchSplittingAcrossTwoTasks InvalidOptions ValidOptions
        NumEnqueuedTasksAndSchedulingCapacity RankQueuesPriority
        TaskLargerThanQueueDepth EvictionOfLowestPriorityTasks
        EvictionOfMultipleTasksSameCriticality
        EvictionOfMultipleTasksDifferentCriticalities
        EvictionGreedyInsufficientMultipleTasks EvictionTasksSumToMoreThanRequired
    """,
    "adaptive_shared_batch_scheduler_test": """
        BadOptions InFlightBatchesLimit InFlightBatchesLimitTuning
        FullBatchSchedulingBoostMicros FIFO DeleteQueue QueueCapacityInfo
        FullBatches TruncateBatches MaxTasksPerBatch
    """,
    "serial_device_batch_scheduler_test": """
        BadOptions InFlightBatchesLimit PendingOnSerialDevice
        FullBatchSchedulingBoostMicros DeleteQueue DeleteScheduler QueueCapacityInfo
    """,
}


def told() -> str:
    """Returns the tests' docstrings and the page on divergences, without any blank.

    Long names are broken over two lines of a docstring.
    """
    text = (ROOT / "docs" / "divergences.md").read_text(encoding="utf-8")
    for name in FILES:
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                text += " " + (ast.get_docstring(node) or "")
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("file", sorted(CASES))
def test_every_upstream_case_is_tested_or_decided_otherwise(file: str) -> None:
    """Each case is named by a test's docstring, or by a line in docs/divergences.md."""
    text = told()
    assert [case for case in CASES[file].split() if case not in text] == []
