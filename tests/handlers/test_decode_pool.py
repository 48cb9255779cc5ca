"""tfs.handlers.decode_pool, and which requests go there."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.handlers.kept_log import KeptLog
from tests.handlers.messages import classify_message, predict_message
from tests.handlers.served import CLASSIFY, EchoServable, OneModel
from tfs.core.dtype import FLOAT32, INT64
from tfs.core.errors import Code, InvalidArgument, ServingError, Unavailable
from tfs.core.executor import ThreadExecutor
from tfs.core.servable import InferenceTask, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Method
from tfs.core.stats import Stats
from tfs.core.tensor_view import TensorView
from tfs.handlers import example_rpc
from tfs.handlers.decode_pool import DecodePool, Reserve
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.predict import PredictHandler
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import classification_pb2, predict_pb2
from tfs.testing.fake_call import FakeCall
from tfs.testing.held_executor import HeldExecutor


class Pool:
    """A decode pool whose threads and loop are the test."""

    def __init__(self, max_queued: int = 2) -> None:
        self.executor = HeldExecutor()
        self.posted: list[Callable[[], None]] = []
        self.stats = Stats()
        self.pool = DecodePool(
            self.executor, self.posted.append, max_queued, self.stats
        )

    def finish(self) -> None:
        """Decodes and goes on until nothing is left."""
        while self.executor.held or self.posted:
            self.executor.run_held()
            while self.posted:
                self.posted.pop(0)()

    def counted(self) -> dict[str, float]:
        return {name: value for name, _, value in self.stats.counters()}


def slow_predict_message() -> bytes:
    """Many strings: far more than the loop may spend on."""
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    tensor = message.inputs["x"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add(size=40_000)
    tensor.string_val.extend([b"word"] * 40_000)
    return message.SerializeToString()


def slow_classify_message() -> bytes:
    request = classification_pb2.ClassificationRequest.FromString(classify_message())
    padding = request.input.example_list.examples[0].features.feature["unused"]
    padding.bytes_list.value.append(b"x" * 10_000)
    return request.SerializeToString()


def test_quick_requests_never_see_the_pool() -> None:
    """Small and raw requests are decoded where they arrive."""
    pool, served = Pool(), OneModel()
    predict = FakeCall(predict_message())
    PredictHandler(served, decode_pool=pool.pool)(predict)
    classify = FakeCall(classify_message())
    ExampleHandler(served, example_rpc.CLASSIFY, decode_pool=pool.pool)(classify)
    assert pool.executor.held == []
    assert predict.reply_bytes()
    assert classify.reply_bytes()


def test_a_slow_predict_is_decoded_off_the_loop() -> None:
    """The handler returns at once; the request goes on from the loop, then ends."""
    pool, served = Pool(), OneModel()
    call = FakeCall(slow_predict_message())
    PredictHandler(served, decode_pool=pool.pool)(call)
    assert len(pool.executor.held) == 1
    pool.executor.run_held()
    assert not call.is_finished  # decoded, but not gone on with on the pool's thread
    pool.finish()
    error = call.error()
    assert isinstance(error, InvalidArgument)  # x is float32 here: it was checked
    assert pool.counted()["slow_decodes"] == 1


def test_large_examples_are_taken_apart_off_the_loop() -> None:
    """Both steps, reading the request and making tensors, leave the loop alone."""
    pool, served = Pool(), OneModel()
    call = FakeCall(slow_classify_message())
    ExampleHandler(served, example_rpc.CLASSIFY, decode_pool=pool.pool)(call)
    assert served.servable.tasks == []
    pool.finish()
    assert len(served.servable.tasks) == 1
    assert call.reply_bytes()
    assert pool.counted()["slow_decodes"] == 2
    assert served.handle.num_pins == 0


def test_a_full_queue_refuses_with_a_hint() -> None:
    """Large requests are bounded; the next one is told to come back."""
    pool, served = Pool(max_queued=1), OneModel()
    gate = RequestGate(10, stats=pool.stats)
    handler = PredictHandler(served, gate, pool.pool)
    handler(FakeCall(slow_predict_message()))
    call = FakeCall(slow_predict_message())
    handler(call)
    error = call.error()
    assert isinstance(error, Unavailable)
    assert error.retry_after_s
    assert pool.counted()["slow_decodes_queued"] == 1
    assert pool.counted()["requests_in_flight"] == 1
    pool.finish()
    assert pool.counted()["slow_decodes_queued"] == 0
    assert pool.counted()["requests_in_flight"] == 0


@pytest.mark.parametrize("at", ["queue", "loop"])
def test_a_cancelled_request_is_not_gone_on_with(at: str) -> None:
    """Cancelled in the queue it is not decoded; after it, nothing is computed."""
    pool, served = Pool(), OneModel()
    gate = RequestGate(10, stats=pool.stats)
    call = FakeCall(slow_classify_message())
    ExampleHandler(served, example_rpc.CLASSIFY, gate, pool.pool)(call)
    if at == "loop":
        pool.executor.run_held()
    call.client_cancels()
    pool.finish()
    assert served.servable.tasks == []
    assert served.handle.num_pins == 0
    assert call.error().code is Code.CANCELLED
    assert pool.counted()["requests_in_flight"] == 0
    assert pool.counted()["slow_decodes_skipped"] == (1 if at == "queue" else 0)


def test_what_is_wrong_with_a_slow_request_is_said() -> None:
    """An error of the decoder ends the call, whatever thread found it."""
    pool, served = Pool(), OneModel()
    call = FakeCall(b"\xff" * 40_000)
    PredictHandler(served, decode_pool=pool.pool)(call)
    pool.finish()
    assert call.error().code is Code.INVALID_ARGUMENT


class LongAnswers(OneModel):
    """A model whose answer to anything takes long to write."""

    def __init__(self) -> None:
        super().__init__()
        self.servable = LongServable()
        self.handle = ServableHandle(self.servable.id, self.servable)


class LongServable(EchoServable):
    """Answers with ten thousand classes a row, or as many numbers."""

    def _outputs(self, task: InferenceTask) -> Tensors:
        num = 10_000 * task.num_rows
        if task.signature.method is Method.CLASSIFY:
            return {
                "scores": TensorView(FLOAT32, (task.num_rows, 10_000), bytes(4 * num))
            }
        return {"n": TensorView(INT64, (num,), bytes(8 * num))}


def ask(
    method: str, served: OneModel, pool: Pool, log: KeptLog | None = None
) -> FakeCall:
    gate = RequestGate(10, 10, stats=pool.stats)
    if log is not None:
        gate.set_logs({"m": (log,)})
    if method == "Predict":
        call = FakeCall(predict_message())
        PredictHandler(served, gate, pool.pool)(call)
    else:
        call = FakeCall(classify_message())
        unnamed = replace(CLASSIFY, labels=())
        served.servable.signatures = dict.fromkeys(  # type: ignore[misc]  # this one's
            ("serving_default", "classify"), unnamed
        )
        ExampleHandler(served, example_rpc.CLASSIFY, gate, pool.pool)(call)
    return call


@pytest.mark.parametrize("method", ["Predict", "Classify"])
def test_a_long_answer_is_written_off_the_loop(method: str) -> None:
    """A request keeps its places and its pin until its long answer is written."""
    pool, served, log = Pool(), LongAnswers(), KeptLog()
    call = ask(method, served, pool, log)
    assert not call.is_finished
    assert served.handle.num_pins == 1
    assert pool.counted()["requests_in_flight"] > 0
    pool.finish()
    assert len(call.reply_bytes()) > 10_000
    assert served.handle.num_pins == 0
    assert pool.counted()["requests_in_flight"] == 0
    assert pool.counted()["slow_answers"] == 1
    assert [entry.response for entry in log.entries] == [call.reply_bytes()]


def test_a_long_answer_that_nobody_waits_for_is_not_written() -> None:
    """It ends as what became of its call, and gives back what it had."""
    pool, served, log = Pool(), LongAnswers(), KeptLog()
    call = ask("Predict", served, pool, log)
    call.client_cancels()
    pool.finish()
    assert call.error().code is Code.CANCELLED
    assert log.entries == []
    assert served.handle.num_pins == 0
    assert pool.counted()["requests_in_flight"] == 0


def test_a_long_answer_is_written_though_the_server_shuts_down() -> None:
    """The pool takes nothing any more: whoever has the answer writes it."""
    pool, served = Pool(), LongAnswers()
    pool.executor.close()
    assert ask("Predict", served, pool).reply_bytes()
    assert served.handle.num_pins == 0


def test_what_goes_to_a_log_is_copied_off_the_loop_if_it_is_large() -> None:
    """A request of megabytes, or a reply in parts; others are logged at once."""
    pool, log = Pool(), KeptLog()
    served = OneModel()
    call = ask("Predict", served, pool, log)
    assert call.is_finished
    served.servable.error = None
    gate = RequestGate(10, 10, stats=pool.stats)
    gate.set_logs({"m": (log,)})
    message = predict_pb2.PredictRequest()
    message.model_spec.name = "m"
    tensor = message.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (1, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend([1, 2])
    message.client_id = b"x" * (1 << 20)
    large = FakeCall(message.SerializeToString())
    PredictHandler(served, gate, pool.pool)(large)
    while not pool.executor.held:
        pool.posted.pop(0)()
    assert not large.is_finished
    pool.finish()
    assert [entry.request for entry in log.entries] == [call.message, large.message]


class Message:
    """What a decoder has in hand; can be watched."""


def test_an_error_keeps_nothing_of_what_was_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its traceback holds the frames, they the message, until the collector comes."""
    freed: list[str] = []

    def decode(kind: type[Exception], _reserve: Reserve) -> None:
        message = Message()
        weakref.finalize(message, freed.append, kind.__name__)
        try:
            raise KeyError("the cause")
        except KeyError as error:
            raise kind("no good") from error

    outcomes: list[object] = []
    pool = Pool()
    gc.disable()
    try:
        for kind in (InvalidArgument, ValueError):
            call = FakeCall()
            pool.pool.run(call, functools.partial(decode, kind), outcomes.append, list)
        pool.finish()
        # A fault of ours is logged, traceback and all; that record is a holder, too.
        (record,) = caplog.records
        assert "event=decode_failed" in record.getMessage()
        assert record.exc_info
        record.exc_info = None
        assert freed == ["InvalidArgument", "ValueError"]
    finally:
        gc.enable()
    codes = [each.code for each in outcomes if isinstance(each, ServingError)]
    assert codes == [Code.INVALID_ARGUMENT, Code.INTERNAL]


def test_a_closed_pool_refuses() -> None:
    """Requests that come while the server ends are told so."""
    executor = ThreadExecutor(1, "decode")
    executor.close()
    pool = DecodePool(executor, max_queued=1)
    outcomes: list[int | ServingError] = []
    for _ in range(2):  # and no place is lost by it
        with pytest.raises(Unavailable, match="shutting down"):
            pool.run(FakeCall(), lambda _: 1, outcomes.append, list)
    assert outcomes == []
