"""Requests that come together: as one by one, whatever changes between them."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable

import pytest

from managers.serving_map import retire
from tests.codec.mutation import mutated
from tests.handlers.kept_log import KeptLog
from tests.handlers.plan_desk import (
    OPTIONS,
    TRIPLE,
    Desk,
    Lookup,
    Model,
    PromptModel,
    SharedLookup,
    known,
    message,
    outcomes,
    reply_of,
)
from tests.handlers.served import EchoServable
from tfs.codec.predict_request import KNOWN, READER
from tfs.core import stat_names
from tfs.core.dtype import FLOAT32
from tfs.core.errors import (
    Cancelled,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.core.servable import (
    InferenceTask,
    Outcome,
)
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.testing.fake_call import FakeCall

LOW_PRIORITY = (("tfs-priority", "low"),)


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test depends on what another left remembered."""
    KNOWN.forget()


def _random_message(rng: random.Random) -> bytes:
    value = rng.choice((1.0, 2.0, 3.0, -1.0))
    rest = [float(rng.randrange(100)) for _ in range(5)]
    choices: list[Callable[[], bytes]] = [
        *[lambda: message(abs(value), rest[0])] * 6,
        lambda: message(value, *rest[:3]),
        lambda: message(value, rest[0], signature="both"),
        lambda: message(abs(value), rest[0], signature="typed"),
        lambda: message(abs(value), rest[0], signature="alone"),
        lambda: message(1, 2, 3, width=3),
        lambda: message(1, 2, signature="none"),
        lambda: message(1, 2, model="unknown"),
        lambda: message(1, 2, label="unknown"),
        lambda: message(1, 2, label="stable"),
        lambda: message(1, 2, version=1),
        lambda: message(1, 2, version=9),
        lambda: message(1, 2, wanted=("y",)),
        lambda: message(1, 2, wanted=("z",)),
        lambda: message(1, 2, client_id=b"somebody"),
        lambda: b"\xff garbage",
    ]
    return rng.choice(choices)()


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("as_content", [True, False])
@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("kind", [Model, PromptModel])
@pytest.mark.parametrize("seed", range(5))
def test_together_is_as_one_by_one(
    is_batched: bool, as_content: bool, limit: int, kind: type[Model], seed: int
) -> None:
    """Same messages, same replies, errors and counters, with plans and without."""
    rng = random.Random(seed)
    bursts = [
        [
            (_random_message(rng), rng.choice(((), LOW_PRIORITY)))
            for _ in range(rng.choice((1, rng.randrange(1, 20))))
        ]
        for _ in range(30)
    ]
    seen = []
    for lookup in (SharedLookup(), Lookup()):
        KNOWN.forget()
        desk = Desk(
            lookup,
            is_batched,
            max_in_flight=limit * 3,
            per_model=limit,
            as_tensor_content=as_content,
        )
        handle = desk.publish(kind())
        lookup.labels["stable"] = 1
        calls = []
        for burst in bursts:
            now = [FakeCall(data, metadata=metadata) for data, metadata in burst]
            desk.send(now)
            desk.finish()
            calls += now
        assert handle.num_pins == 0
        seen.append((outcomes(calls), desk.counted(), desk.observed()))
    assert seen[0] == seen[1]


def _like(rng: random.Random, original: bytes) -> bytes:
    """Returns a message that mostly differs in a few bytes, wherever they are."""
    if not rng.randrange(6):
        return mutated(original, rng.randrange(1 << 32))
    data = bytearray(original)
    for _ in range(rng.randrange(4)):
        # At the end, where the elements are mostly, or anywhere.
        start = len(data) - 8 if rng.randrange(8) else 0
        where = rng.randrange(max(0, start), len(data))
        data[where] = rng.choice((0, 1, data[where] ^ 1, rng.randrange(256)))
    return bytes(data)


def _differences(
    seed: int, num_bursts: int, kind: type[Model] = Model, max_burst: int = 20
) -> None:
    """Sends mutated requests with plans and without; asserts that nothing differs."""
    rng = random.Random(seed)
    kinds = [
        message(1, 2),
        message(1, 2, 3, 4),
        message(*range(1, 13)),
        message(1, 2, 3, 4, signature="both"),
        message(1, 2, signature="both"),
        message(1, 2, signature="typed"),
        message(1, 2, signature="alone"),
        message(1, 2, signature="free"),
        message(1, 2, 3, width=3, signature="free"),
        message(1, 2, 3, 4, 5, 6, width=3, signature="free"),
        message(1, 2, signature="scaled"),
        message(1, 2, version=1),
        message(1, 2, label="stable"),
        message(1, 2, wanted=("y",)),
        message(1, 2, client_id=b"somebody"),
        message(width=2),
    ]
    options = rng.choice(OPTIONS)
    deadlines = [None, None, None, 0.0005, 9.0]
    if options is None or not options.queue.timeout_s:
        # Where batches wait to be full, what has expired may count as a row, or not.
        deadlines.append(-1.0)
    bursts = []
    for _ in range(num_bursts):
        few = rng.sample(kinds, rng.randrange(1, 4))
        bursts.append(
            [
                (
                    _like(rng, rng.choice(few)),
                    LOW_PRIORITY if not rng.randrange(8) else (),
                    kind is Model and not rng.randrange(10),  # cancelled
                    rng.choice(deadlines),  # seconds from now
                    not rng.randrange(3),  # came in parts
                )
                for _ in range(rng.randrange(1, max_burst))
            ]
        )
    limit = rng.choice((0, 0, 3, 10))
    as_content = bool(rng.randrange(2))
    changes = [rng.randrange(30) for _ in bursts]
    seen = []
    for lookup in (SharedLookup(), Lookup()):
        KNOWN.forget()
        desk = Desk(
            lookup,
            True,
            limit * 2,
            limit,
            as_tensor_content=as_content,
            options=options,
        )
        handles = [desk.publish(kind(1))]
        lookup.labels["stable"] = 1
        log = KeptLog()
        calls = []
        known(desk, *kinds)
        for burst, change in zip(bursts, changes, strict=True):
            if change == 0:
                handles.append(desk.publish(kind(len(handles) + 1)))
            elif change == 1:
                lookup.labels["stable"] = len(handles)
            elif change == 2:
                desk.gate.set_logs({"m": (log,)})
            elif change == 3:
                desk.gate.set_logs({"m": ()})
            elif change == 4:
                desk.gate.forget_version("m", 1)
            now_s = desk.clock.now()
            now = [
                FakeCall(
                    memoryview(bytearray(data)) if in_parts else data,
                    metadata=metadata,
                    deadline_s=None if after_s is None else now_s + after_s,
                )
                for data, metadata, _, after_s, in_parts in burst
            ]
            desk.send(now)
            for call, (_, _, is_cancelled, *_) in zip(now, burst, strict=True):
                if is_cancelled and not call.is_finished:
                    call.client_cancels()
            for _ in range(10):
                desk.finish()
                desk.clock.advance(0.0007)
            calls += now
        assert not any(handle.num_pins for handle in handles)
        assert all(call.num_finishes for call in calls)
        seen.append(
            (
                [_outcome(call) for call in calls],
                desk.counted(),
                desk.observed(),
                log.entries,
            )
        )
    for planned, ordinary in zip(*seen, strict=True):
        assert planned == ordinary


def _outcome(call: FakeCall) -> object:
    outcome = call.outcome
    if isinstance(outcome, ServingError):
        return outcome.code, outcome.message
    return outcome


def test_mutated_requests_are_answered_as_one_by_one() -> None:
    """Whatever bytes come together with whatever others, and changes between them."""
    for seed in range(12):
        _differences(seed, 20)


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_mutated_requests_are_answered_as_one_by_one_for_long() -> None:
    """The same, for as long as a stress run may take."""
    for seed in range(1000, 3000):
        _differences(seed, 20)


def test_mutated_requests_are_answered_at_once_as_one_by_one() -> None:
    """Mutated requests have the same outcome computed at once as one by one."""
    for seed in range(12):
        _differences(seed, 40, PromptModel, max_burst=3)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("num_calls", [1, 3])
def test_what_is_all_alike_is_answered_before_anything_else(
    num_calls: int, in_parts: bool
) -> None:
    """Where its model can be called at once, a round's burst waits for no scheduler."""
    desk = Desk(SharedLookup())
    model = PromptModel()
    handle = desk.publish(model)
    known(desk, message(0, 0))
    model.num_prompt_calls = 0
    requests = [message(float(n), 2.0) for n in range(num_calls)]
    calls = [
        FakeCall(memoryview(bytearray(each)) if in_parts else each) for each in requests
    ]
    desk.send(calls)
    for n, call in enumerate(calls):
        assert list(reply_of(call).outputs["y"].float_val) == [float(n), 2.0]
    assert (model.num_prompt_calls, handle.num_pins) == (1, 0)


def test_what_comes_with_others_is_queued() -> None:
    """Others of the burst may be for the same batch: all wait for the scheduler."""
    desk = Desk(SharedLookup())
    model = PromptModel()
    desk.publish(model)
    known(desk, message(0, 0), message(0, 0, 0, 0))
    model.num_prompt_calls = 0
    calls = [FakeCall(message(*range(1, 1 + 2 * n))) for n in (1, 2, 1, 2)]
    desk.send(calls)
    assert not any(call.is_finished for call in calls)
    desk.finish()
    assert model.num_prompt_calls == 1  # one batch
    assert all(isinstance(call.outcome, bytes) for call in calls)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_one_that_comes_too_late_is_not_computed_at_once(is_cancelled: bool) -> None:
    """Who gave up before the handler saw its request costs no compute."""
    desk = Desk(SharedLookup())
    model = PromptModel()
    handle = desk.publish(model)
    known(desk, message(0, 0))
    model.num_prompt_calls = 0
    call = FakeCall(message(1.0, 2.0), deadline_s=desk.clock.now() - 0.001)
    if is_cancelled:
        call = FakeCall(message(1.0, 2.0))
        call.client_cancels()
    desk.send([call])
    desk.finish()
    assert (model.num_prompt_calls, model.num_calls, handle.num_pins) == (0, 0, 0)
    assert call.is_finished


def test_many_elements_are_joined_into_memory_that_is_given_away() -> None:
    """A model may have a large batch as it lies, as one of requests that came apart."""
    desk = Desk(SharedLookup())
    seen: list[InferenceTask] = []

    class Keeper(Model):
        def submit(self, task: InferenceTask) -> None:
            seen.append(task)
            super().submit(task)

    wide = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, 2048))},
        {"y": TensorSpec(FLOAT32, (-1, 2048))},
    )
    desk.publish(Keeper(1, {DEFAULT_SIGNATURE: wide}))
    known(desk, message(*[0.0] * 2048, width=2048))
    calls = [FakeCall(message(*[float(n)] * 2048, width=2048)) for n in range(9)]
    desk.send(calls)
    desk.finish()
    assert seen[-1].num_rows == 9
    data = seen[-1].inputs["x"].data
    assert isinstance(data, memoryview)
    assert not data.readonly
    for n, call in enumerate(calls):
        assert list(reply_of(call).outputs["y"].float_val) == [float(n)] * 2048


def test_together_is_one_batch() -> None:
    """Requests of one template are computed by one call, and each gets its own rows."""
    desk = Desk(SharedLookup())
    model = Model()
    handle = desk.publish(model)
    known(desk, message(0, 0))
    calls = [FakeCall(message(float(n), 7.0)) for n in range(12)]
    before = model.num_calls
    desk.send(calls)
    assert handle.num_pins == 12
    desk.finish()
    assert model.num_calls == before + 1
    assert handle.num_pins == 0
    for n, call in enumerate(calls):
        assert list(reply_of(call).outputs["y"].float_val) == [float(n), 7.0]


def test_each_long_answer_has_room_of_its_own() -> None:
    """What is alike is taken one by one while its answers are long, and asks for each."""
    desk = Desk(SharedLookup())
    desk.publish(Model())
    long = [float(n) for n in range(20_000)]
    known(desk, message(0, 0), message(*long))
    desk.send([FakeCall(message(*long))])
    desk.finish()
    calls = [FakeCall(message(float(n), 7.0)) for n in range(3)]
    desk.send(calls)
    desk.finish()
    assert [len(call.asked_answer_bytes) for call in calls] == [1, 1, 1]
    for n, call in enumerate(calls):
        assert list(reply_of(call).outputs["y"].float_val) == [float(n), 7.0]


def test_a_swap_brings_a_new_plan() -> None:
    """What follows a new version is answered by it; a rollback, by the old one."""
    desk = Desk(SharedLookup())
    first = desk.publish(Model(1))
    known(desk, message(0, 0))
    second = desk.publish(Model(2))
    assert retire(desk.lookup.map, first, lambda: None)
    calls = [FakeCall(message(1, 2)) for _ in range(3)]
    desk.send(calls)
    desk.finish()
    assert {reply_of(call).model_spec.version.value for call in calls} == {2}
    desk.publish(Model(1))
    assert retire(desk.lookup.map, second, lambda: None)
    calls = [FakeCall(message(1, 2)) for _ in range(3)]
    desk.send(calls)
    desk.finish()
    assert {reply_of(call).model_spec.version.value for call in calls} == {1}


def test_what_was_pinned_before_a_swap_is_answered_by_what_it_pinned() -> None:
    """A swap between arrival and batch changes nothing for requests already taken."""
    desk = Desk(SharedLookup())
    first = desk.publish(Model(1))
    known(desk, message(0, 0))
    calls = [FakeCall(message(1, 2)) for _ in range(3)]
    desk.send(calls)
    desk.publish(Model(2))
    assert not retire(desk.lookup.map, first, lambda: None)
    desk.finish()
    assert {reply_of(call).model_spec.version.value for call in calls} == {1}
    assert first.num_pins == 0


def test_a_new_version_with_another_signature_is_asked_anew() -> None:
    """Requests that fitted the version before are refused by one they do not fit."""
    desk = Desk(SharedLookup())
    desk.publish(Model(1))
    known(desk, message(0, 0))
    handle = desk.publish(Model(2, {DEFAULT_SIGNATURE: TRIPLE}))
    calls = [FakeCall(message(1, 2)) for _ in range(3)]
    desk.send(calls)
    desk.finish()
    assert handle.num_pins == 0
    for call in calls:
        assert isinstance(call.outcome, InvalidArgument)
        assert "must have shape [-1, 3]" in call.outcome.message


def test_a_label_that_moves_takes_its_requests_along() -> None:
    """A plan is no memory of what a label meant."""
    lookup = SharedLookup()
    desk = Desk(lookup)
    desk.publish(Model(1))
    desk.publish(Model(2))
    for version in (1, 2, 1):
        lookup.labels["stable"] = version
        calls = [FakeCall(message(1, 2, label="stable")) for _ in range(3)]
        desk.send(calls)
        desk.finish()
        assert {reply_of(call).model_spec.version.value for call in calls} == {version}
    del lookup.labels["stable"]
    call = FakeCall(message(1, 2, label="stable"))
    desk.send([call])
    assert isinstance(call.outcome, InvalidArgument)


def test_an_unloaded_model_is_not_found() -> None:
    """Without a version there is no answer, plan or not, and nothing stays pinned."""
    desk = Desk(SharedLookup())
    handle = desk.publish(Model(1))
    known(desk, message(0, 0))
    assert retire(desk.lookup.map, handle, lambda: None)
    calls = [FakeCall(message(1, 2)) for _ in range(2)]
    desk.send(calls)
    assert all(isinstance(call.outcome, NotFound) for call in calls)


def test_limits_hold_for_requests_that_come_together() -> None:
    """The first requests of a burst get the model's places, which come back."""
    desk = Desk(SharedLookup(), max_in_flight=100, per_model=4)
    desk.publish(Model())
    known(desk, message(0, 0))
    for _ in range(3):
        calls = [FakeCall(message(1, 2)) for _ in range(7)]
        desk.send(calls)
        desk.finish()
        refused = [isinstance(call.outcome, ServingError) for call in calls]
        assert refused == [False] * 4 + [True] * 3


def test_logs_get_what_comes_together() -> None:
    """A model that begins to be logged is logged from the next request on, each once."""
    desk = Desk(SharedLookup())
    desk.publish(Model())
    known(desk, message(0, 0))
    log = KeptLog()
    desk.gate.set_logs({"m": (log,)})
    calls = [FakeCall(message(float(n), 2)) for n in range(3)]
    desk.send(calls)
    desk.finish()
    assert [(entry.request, entry.response) for entry in log.entries] == [
        (call.message, call.outcome) for call in calls
    ]


def test_counters_that_were_dropped_are_made_anew() -> None:
    """A plan counts where the next request that has none would count."""
    desk = Desk(SharedLookup())
    desk.publish(Model())
    known(desk, message(0, 0))
    desk.gate.forget_version("m", 1)
    desk.send([FakeCall(message(1, 2)) for _ in range(3)])
    desk.finish()
    assert sum(desk.counted().values()) == 3


def test_who_gave_up_costs_no_compute_and_disturbs_nobody() -> None:
    """Cancelled requests leave the queue; those that waited with them are answered."""
    desk = Desk(SharedLookup())
    model = Model()
    handle = desk.publish(model)
    known(desk, message(0, 0))
    calls = [FakeCall(message(float(n), 2)) for n in range(4)]
    desk.send(calls)
    calls[1].client_cancels()
    desk.finish()
    assert isinstance(calls[1].outcome, Cancelled)
    assert handle.num_pins == 0
    for n in (0, 2, 3):
        assert list(reply_of(calls[n]).outputs["y"].float_val) == [float(n), 2.0]
    by_status = {
        dict(labels)["status"]: value
        for name, labels, value in desk.stats.counters()
        if name == stat_names.REQUESTS
    }
    assert by_status == {"OK": 4, "CANCELLED": 1}


def test_a_bad_row_fails_its_own_request() -> None:
    """An invalid item in a batch of one template is its sender's alone."""
    desk = Desk(SharedLookup())
    handle = desk.publish(Model())
    known(desk, message(0, 0))
    calls = [FakeCall(message(n, 2.0)) for n in (1.0, -1.0, 3.0)]
    desk.send(calls)
    desk.finish()
    assert isinstance(calls[1].outcome, ServingError)
    assert list(reply_of(calls[0]).outputs["y"].float_val) == [1.0, 2.0]
    assert list(reply_of(calls[2]).outputs["y"].float_val) == [3.0, 2.0]
    assert handle.num_pins == 0


def test_requests_of_several_bursts_share_a_batch() -> None:
    """What came at different times is computed together and counted by its own time."""
    desk = Desk(SharedLookup())
    model = Model()
    desk.publish(model)
    known(desk, message(0, 0))
    first = [FakeCall(message(1, 2)) for _ in range(2)]
    desk.send(first)
    desk.clock.advance(0.5)
    second = [FakeCall(message(3, 4)) for _ in range(2)]
    desk.send(second)
    desk.finish()
    assert model.num_calls == 2
    assert all(isinstance(call.outcome, bytes) for call in first + second)
    (latency,) = [
        snapshot
        for name, _, snapshot in desk.stats.histograms()
        if snapshot.num and name == stat_names.REQUEST_LATENCY_S
    ]
    assert latency.total == pytest.approx(1.0)


def test_a_planned_task_without_its_form_says_the_same() -> None:
    """Whoever takes the task of a plan alone finds its tensors and its end."""
    servable = EchoServable()
    lookup = SharedLookup()
    desk = Desk(lookup, is_batched=False)

    class Keeper(Model):
        def submit(self, task: InferenceTask) -> None:
            servable.tasks.append(task)

    desk.publish(Keeper())
    call = FakeCall(message(1, 2))
    desk.send([FakeCall(message(0, 0)), call])
    task = servable.tasks[-1]
    assert task.form is not None
    assert list(task.inputs) == ["x"]
    end = task.on_done
    ends: list[Outcome] = []

    def noted(outcome: Outcome) -> None:
        ends.append(outcome)
        end(outcome)

    task.on_done = noted
    assert task.form is None
    task.on_done({"y": task.inputs["x"]})
    assert len(ends) == 1
    assert list(reply_of(call).outputs["y"].float_val) == [1.0, 2.0]


@pytest.mark.parametrize("num_rows", [32, 33, 4096, 4097, 20_000])
def test_requests_of_many_rows_are_divided_as_ever(num_rows: int) -> None:
    """A request beyond what a queue takes is computed in portions, plan or not."""
    desk = Desk(SharedLookup())
    handle = desk.publish(Model())
    values = [float(n) for n in range(2 * num_rows)]
    known(desk, message(0, 0))  # there is a queue
    known(desk, message(*values))
    for _ in range(2):
        call = FakeCall(message(*values))
        desk.send([call])
        while not call.is_finished:
            desk.loop.step()
        assert list(reply_of(call).outputs["y"].float_val) == values
    assert handle.num_pins == 0


def test_what_no_plan_takes_is_read_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where requests go one by one after all, they are not matched all over again."""
    desk = Desk(SharedLookup(), per_model=1)
    desk.publish(Model())
    known(desk, message(0, 0))
    num_matched = 0
    read_alike = READER.read_alike

    def counting(*args: object) -> object:
        nonlocal num_matched
        found = read_alike(*args)  # type: ignore[arg-type]
        num_matched += 0 if found is None else len(found[1])
        return found

    monkeypatch.setattr(READER, "read_alike", counting)
    calls = [FakeCall(message(1, 2)) for _ in range(50)]
    desk.send(calls)
    desk.finish()
    assert num_matched == 50
    assert [isinstance(call.outcome, bytes) for call in calls] == [True] + [False] * 49


def test_latencies_are_each_requests_own_whatever_the_order() -> None:
    """Requests that a batch has in another order than theirs count their own times."""
    desk = Desk(SharedLookup(), is_batched=False)
    tasks: list[InferenceTask] = []

    class Keeper(Model):
        def submit(self, task: InferenceTask) -> None:
            tasks.append(task)

    desk.publish(Keeper())
    desk.send([FakeCall(message(0, 0))])
    tasks.pop().on_done({"y": TensorView(FLOAT32, (1, 2), bytes(8))})
    for _ in range(2):
        desk.send([FakeCall(message(1, 2)), FakeCall(message(3, 4))])
        desk.clock.advance(0.5)
    shuffled = [tasks[0], tasks[2], tasks[3], tasks[1]]
    form = shuffled[0].form
    assert form is not None
    form.end_all(shuffled, {"y": TensorView(FLOAT32, (4, 2), bytes(32))})
    (latency,) = [
        snapshot
        for name, _, snapshot in desk.stats.histograms()
        if snapshot.num and name == stat_names.REQUEST_LATENCY_S
    ]
    assert latency.total == pytest.approx(2 * 1.0 + 2 * 0.5)


class CountingModel(Model):
    """Takes note of the end of each task, as models do that may be moved."""

    num_ended = 0

    def submit(self, task: InferenceTask) -> None:
        on_done = task.on_done

        def done(outcome: Outcome) -> None:
            self.num_ended += 1
            on_done(outcome)

        task.on_done = done
        super().submit(task)


def test_a_request_is_gone_with_its_answer_though_its_end_was_counted() -> None:
    """Nothing of it, as large as it may be, waits in a cycle for the collector."""
    desk = Desk(SharedLookup(), is_batched=False)
    model = CountingModel()
    handle = desk.publish(model)
    known(desk, message(0, 0))
    call = FakeCall(message(1, 2))
    gone = weakref.ref(call)
    gc.disable()
    try:
        desk.send([call])
        assert list(reply_of(call).outputs["y"].float_val) == [1, 2]
        del call
        assert gone() is None
    finally:
        gc.enable()
    assert model.num_ended == 2
    assert retire(desk.lookup.map, handle, lambda: None)
