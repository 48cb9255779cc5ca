"""tfs.handlers.limits.request_gate, and how the handlers keep to it."""

from __future__ import annotations

import pytest

from tests.handlers.kept_log import KeptLog
from tests.handlers.messages import classify_message, multi_message, predict_message
from tests.handlers.served import OneModel
from tfs.core import stat_names
from tfs.core.call import Handler
from tfs.core.dtype import FLOAT32
from tfs.core.errors import Code, Internal, Unavailable
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.stats import Stats
from tfs.handlers import example_rpc
from tfs.handlers.examples import ExampleHandler
from tfs.handlers.limits.answered_request import AnsweredRequest
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.predict import PredictHandler
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    predict_pb2,
)
from tfs.testing.fake_call import FakeCall
from tfs.testing.fake_clock import FakeClock


class Desk:
    """Every inference handler behind one gate."""

    def __init__(
        self,
        max_in_flight: int = 0,
        per_model: int = 0,
    ) -> None:
        self.stats = Stats()
        self.clock = FakeClock()
        self.served = OneModel()
        self.gate = RequestGate(max_in_flight, per_model, self.stats, self.clock)
        self.handlers: dict[str, tuple[Handler, bytes]] = {
            "Predict": (PredictHandler(self.served, self.gate), predict_message()),
            "Classify": (
                ExampleHandler(self.served, example_rpc.CLASSIFY, self.gate),
                classify_message(),
            ),
            "MultiInference": (
                ExampleHandler(self.served, example_rpc.MULTI_INFERENCE, self.gate),
                multi_message(),
            ),
        }

    def send(self, method: str = "Predict", message: bytes | None = None) -> FakeCall:
        handler, usual = self.handlers[method]
        call = FakeCall(usual if message is None else message)
        handler(call)
        return call

    def finish_all(self) -> None:
        while self.served.servable.tasks:
            self.served.servable.answer(self.served.servable.tasks.pop())

    def count(self, name: str, **labels: str) -> float:
        """Sums a counter or gauge over the labels that are not named."""
        wanted = set(labels.items())
        return sum(
            value
            for found, their, value in self.stats.counters()
            if found == name and wanted <= set(their)
        )


@pytest.mark.parametrize("method", ["Predict", "Classify", "MultiInference"])
@pytest.mark.parametrize("limits", [(2, 0), (0, 2)], ids=["server", "model"])
def test_a_request_beyond_the_limit_is_told_to_come_back(
    method: str, limits: tuple[int, int]
) -> None:
    """A request beyond the limit gets UNAVAILABLE with a hint when to retry."""
    desk = Desk(*limits)
    desk.served.servable.is_paused = True
    taken = [desk.send(method) for _ in range(2)]
    refused = desk.send(method).error()
    assert isinstance(refused, Unavailable)
    assert refused.retry_after_s
    assert "--max_in_flight" in refused.message
    assert desk.count(stat_names.REQUESTS_REFUSED) == 1
    assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 2
    assert desk.served.handle.num_pins == 2
    desk.finish_all()
    assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 0
    assert all(call.is_finished for call in taken)
    desk.served.servable.is_paused = False
    assert desk.send(method).reply_bytes()


@pytest.mark.parametrize("method", ["Predict", "Classify", "MultiInference"])
@pytest.mark.parametrize(
    "message",
    [b"\xff\xff", predict_message("other"), b""],
    ids=["garbage", "unknown model", "empty"],
)
def test_a_refused_request_gives_its_place_back(method: str, message: bytes) -> None:
    """Whatever is wrong with a request, it leaves no place taken and no pin held."""
    desk = Desk(1, 1)
    for _ in range(3):
        assert desk.send(method, message).error().code is not Code.UNAVAILABLE
    assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 0
    assert desk.served.handle.num_pins == 0
    assert desk.count(stat_names.REQUESTS, method=method, model="") == 3


def test_a_cancelled_call_keeps_its_place_while_its_batch_runs() -> None:
    """Work that still computes counts, also when nobody waits for it any more."""
    desk = Desk(1)
    desk.served.servable.is_paused = True
    call = desk.send()
    call.client_cancels()
    assert isinstance(desk.send().error(), Unavailable)
    desk.finish_all()
    assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 0
    assert desk.count(stat_names.REQUESTS, status="CANCELLED") == 1


def test_the_gate_tells_whether_anything_is_worked_on() -> None:
    """Loads wait for answers: one that is out, or was refused, holds them up no more."""
    desk = Desk(2)
    assert not desk.gate.in_flight.num_taken
    desk.served.servable.is_paused = True
    desk.send()
    assert desk.gate.in_flight.num_taken
    desk.finish_all()
    desk.send(message=b"\xff\xff")
    assert not desk.gate.in_flight.num_taken
    assert not Desk(0).gate.in_flight.num_taken


def test_a_handler_that_breaks_gives_its_place_back() -> None:
    """A fault of ours is INTERNAL, and takes nothing with it."""
    desk = Desk(1)
    desk.served.acquire = None  # type: ignore[method-assign,assignment]
    assert desk.send().error().code is Code.INTERNAL
    assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 0


def test_requests_are_counted_by_how_they_ended() -> None:
    """Model, signature, method and status; latency is the server's."""
    desk = Desk()
    desk.served.servable.is_paused = True
    desk.send()
    desk.clock.advance(0.25)
    desk.finish_all()
    desk.served.servable.is_paused = False
    desk.served.servable.error = Internal("m/3: broken")
    desk.send()
    labels = {"model": "m", "signature": "serving_default", "method": "Predict"}
    assert desk.count(stat_names.REQUESTS, status="OK", **labels) == 1
    assert desk.count(stat_names.REQUESTS, status="INTERNAL", **labels) == 1
    (latency,) = [
        snapshot
        for name, their, snapshot in desk.stats.histograms()
        if name == stat_names.REQUEST_LATENCY_S and ("model", "m") in their
    ]
    assert latency.num == 2
    assert latency.total == 0.25


def test_a_versions_requests_are_told_until_it_is_gone() -> None:
    """Each signature's outcomes, requests in flight and latencies are told."""
    desk = Desk()
    desk.served.servable.is_paused = True
    desk.send()
    (figures,) = desk.gate.figures("m", 3)["serving_default"]
    assert (figures.num_by_code, figures.num_in_flight) == ({}, 1)
    desk.clock.advance(0.25)
    desk.finish_all()
    desk.served.servable.is_paused = False
    desk.send("Classify")
    desk.send("Predict", predict_message("other"))
    found = desk.gate.figures("m", 3)
    assert set(found) == {"serving_default", "classify"}
    (figures,) = found["serving_default"]
    assert (figures.num_by_code, figures.num_in_flight) == ({Code.OK: 1}, 0)
    assert figures.latency_s.total == 0.25
    assert desk.gate.figures("m", 4) == desk.gate.figures("n", 3) == {}
    desk.gate.forget_version("n", 3)
    desk.gate.forget_version("m", 3)
    assert desk.gate.figures("m", 3) == {}
    assert desk.count(stat_names.REQUESTS, version="3") == 0
    assert desk.stats.sums()[stat_names.REQUESTS] == 3


def test_a_request_refused_after_its_signature_was_found_is_not_in_flight() -> None:
    """What begins ends, whatever is wrong with it."""
    desk = Desk(0, 1)
    desk.served.servable.is_paused = True
    desk.send()
    assert desk.send().error().code is Code.UNAVAILABLE
    (figures,) = desk.gate.figures("m", 3)["serving_default"]
    assert figures.num_in_flight == 1
    assert figures.num_by_code == {Code.UNAVAILABLE: 1}
    desk.finish_all()


def test_examples_are_counted() -> None:
    """One request of three examples counts three."""
    desk = Desk()
    desk.send("Classify")
    assert desk.count(stat_names.REQUEST_EXAMPLES, model="m") == 3


def test_a_model_that_left_is_forgotten() -> None:
    """Counters of models that are not configured any more do not pile up."""
    desk = Desk()
    desk.send()
    desk.gate.retain(["m"])
    assert desk.count(stat_names.REQUESTS, model="m") == 1
    desk.gate.retain([])
    assert desk.count(stat_names.REQUESTS, model="m") == 0
    desk.send()
    assert desk.count(stat_names.REQUESTS, model="m") == 1


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        ("Predict", "serving_default"),
        ("Classify", "classify"),
        ("MultiInference", ""),
    ],
)
@pytest.mark.parametrize("known_before", [False, True])
def test_answered_requests_reach_the_models_logs(
    method: str, signature: str, known_before: bool
) -> None:
    """Every log of the model gets request and reply as they travelled."""
    desk = Desk()
    if known_before:
        desk.send(method)
    logs = KeptLog(), KeptLog()
    desk.gate.set_logs({"m": logs})
    reply = desk.send(method).reply_bytes()
    for each in logs:
        assert each.entries == [
            (method, "m", 3, signature, desk.handlers[method][1], reply)
        ]


def test_what_a_log_raises_is_not_the_problem_of_who_asked() -> None:
    """The request is answered, and the other logs of its model get it."""

    def fail(request: AnsweredRequest) -> None:
        raise MemoryError

    desk, log = Desk(), KeptLog()
    desk.gate.set_logs({"m": (fail, log)})
    reply = desk.send("Predict").reply_bytes()
    assert [each.response for each in log.entries] == [reply]


def test_logs_of_one_model_are_set_without_those_of_others() -> None:
    """Also before it is asked; a model that is forgotten has none."""
    gate, log = RequestGate(), KeptLog()
    known = gate.model("known")
    gate.set_logs({"known": (log,), "new": (log,)})
    gate.set_logs({"known": ()})
    assert (known.logs, gate.model("new").logs) == ((), (log,))
    gate.retain(["known"])
    assert gate.model("new").logs == ()


def test_a_logged_message_is_not_given_to_the_model() -> None:
    """Only who needs the request no more lets a model write to its memory."""
    desk, log = Desk(), KeptLog()
    request = predict_pb2.PredictRequest.FromString(desk.handlers["Predict"][1])
    request.inputs["x"].tensor_shape.dim[0].size = 200
    request.inputs["x"].tensor_content = bytes(200 * 2 * 4)
    message = memoryview(bytearray(request.SerializeToString()))
    desk.handlers["Predict"][0](FakeCall(message))  # the next is read where it lies
    data = []
    for logs in ((), (log,)):
        desk.gate.set_logs({"m": logs})
        desk.handlers["Predict"][0](FakeCall(message))
        (view,) = [
            view
            for view in desk.served.servable.tasks[-1].inputs.values()
            if isinstance(view.data, memoryview)
        ]
        assert isinstance(view.data, memoryview)
        data.append(view.data)
    assert [each.readonly for each in data] == [False, True]
    assert log.entries[0].request == bytes(message)


def test_failed_requests_are_not_logged() -> None:
    """A log holds what was answered: it is replayed to compare answers."""
    desk, log = Desk(), KeptLog()
    desk.gate.set_logs({"m": (log,)})
    desk.served.servable.error = Internal("m/3: broken")
    desk.send()
    desk.send("Classify")
    assert log.entries == []


def filled_messages() -> dict[str, bytes]:
    """Returns requests whose tensors take 100 KB more than was sent of them."""
    predict = predict_pb2.PredictRequest()
    predict.model_spec.name = "m"
    tensor = predict.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in (12_500, 2):
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.append(1.0)
    classify = classification_pb2.ClassificationRequest()
    classify.model_spec.name = "m"
    classify.model_spec.signature_name = "classify"
    rows = classify.input.example_list_with_context
    rows.context.features.feature["x"].float_list.value.extend((0.5, 0.5))
    for _ in range(17_000):
        rows.examples.add()
    return {
        "Predict": predict.SerializeToString(),
        "Classify": classify.SerializeToString(),
    }


@pytest.mark.parametrize("method", ["Predict", "Classify"])
def test_a_request_that_there_is_no_room_for_leaves_nothing_behind(method: str) -> None:
    """Its transport hands it over again; until then it has no place and is not counted."""
    desk = Desk(1, 1)
    handler, _ = desk.handlers[method]
    call = FakeCall(filled_messages()[method])
    call.room_bytes = 0
    for _ in range(3):
        handler(call)
        assert not call.is_finished
        assert desk.count(stat_names.REQUESTS_IN_FLIGHT) == 0
        assert desk.served.handle.num_pins == 0
    for figures in desk.gate.figures("m", 3).values():
        assert [each.num_in_flight for each in figures] == [0]
    call.room_bytes = 1 << 30
    handler(call)
    assert isinstance(call.outcome, bytes)
    assert call.asked_room_bytes[-1] >= 100_000 - 40


def test_a_request_that_stands_for_much_waits_for_its_transport() -> None:
    """While there is no room for it and its answer, it takes neither memory nor a place.

    It is handed over again then, and asks for no more than it takes.
    """
    desk = Desk()
    handler, _ = desk.handlers["Predict"]
    for num_rows, num_asked in ((17_000, 1), (600_000, 1), (600_000, 2)):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "m"
        for name in ("x", "y")[:num_asked]:
            tensor = request.inputs[name]
            tensor.dtype = types_pb2.DT_FLOAT
            tensor.tensor_shape.dim.add(size=num_rows)
            tensor.tensor_shape.dim.add(size=2)
            tensor.float_val.append(0.5)
        call = FakeCall(request.SerializeToString())
        call.room_bytes = 0
        for _ in range(2):
            handler(call)
            assert not call.is_finished
            assert desk.gate.in_flight.num_taken == 0
            assert desk.served.handle.num_pins == 0
        call.room_bytes = 1 << 40
        handler(call)
        assert call.is_finished
        own_bytes = (num_rows * 2 - 1) * 4
        assert max(call.asked_room_bytes) <= 2 * num_asked * own_bytes
        assert call.asked_room_bytes[0] == own_bytes
        assert len(call.asked_room_bytes) == 2 + num_asked


@pytest.mark.parametrize(
    ("method", "many"),
    [
        ("Predict", predict_message(num_rows=10_000)),
        ("Classify", classify_message(num_rows=10_000)),
        ("MultiInference", multi_message(num_rows=10_000)),
    ],
)
def test_an_answer_that_will_be_long_waits_for_its_transport(
    method: str, many: bytes
) -> None:
    """It is expected to be as long as the last one, and takes no place until it has room."""
    desk = Desk()
    first = desk.send(method, many)
    assert not first.asked_answer_bytes
    assert isinstance(first.outcome, bytes)
    handler, usual = desk.handlers[method]
    call = FakeCall(usual)
    call.room_bytes = 0
    for _ in range(2):
        handler(call)
        assert not call.is_finished
        assert desk.gate.in_flight.num_taken == 0
        assert desk.served.handle.num_pins == 0
    call.room_bytes = 1 << 40
    handler(call)
    assert isinstance(call.outcome, bytes)
    assert call.asked_answer_bytes == 3 * [len(first.outcome)]
    assert not desk.send(method).asked_answer_bytes  # the last answer was short


def test_what_a_signature_fixes_is_known_before_the_first_answer() -> None:
    """Short answers change nothing of it, and longer ones count while they come."""
    gate = RequestGate().model("masks")
    wide = Signature(Method.PREDICT, {}, {"y": TensorSpec(FLOAT32, (-1, 1 << 20))})
    stats = gate.stats_of("Predict", 1, "wide", wide)
    assert stats.answer_bytes == 4 << 20
    stats.note_answer(10 << 20)
    assert stats.answer_bytes == 10 << 20
    stats.note_answer(10)
    assert stats.answer_bytes == 4 << 20
    free = Signature(Method.PREDICT, {}, {"y": TensorSpec(FLOAT32, (-1, -1))})
    assert gate.stats_of("Predict", 1, "free", free).answer_bytes == 0
