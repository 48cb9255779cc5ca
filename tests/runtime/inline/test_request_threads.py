"""Several requests of one model at once, with parts batched across them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runtime.answers import Answer, ask
from tests.runtime.packaged import SCALE_SIGNATURES, floats, package, signature, values
from tests.runtime.stage import STAGE, Stage
from tests.runtime.zoo import Joined, Scale
from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from tfs.core.servable import CancelToken
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.inline.inline_model import InlineModel
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

# Every source below reaches the test through the stage: it runs in this process.
AT_ONCE = """
from tests.runtime.stage import STAGE

class Servable:
    def predict(self, x):
        STAGE.meet()
        return x * 2
"""

WAITS = """
from tests.runtime.stage import STAGE

class Servable:
    def predict(self, x):
        STAGE.enter()
        return x * 2
"""

LOOKUP = """
import torch
from tests.runtime.stage import STAGE
from tfs.runtime.batched import batched

class Servable:
    def load(self, version):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        def core(x):
            STAGE.note(len(x))
            return net(x)
        self.net = net
        self.core = batched(core, max_batch_size=16)

    def words(self, text):
        return torch.tensor([[len(t), t.count(b" "), t.count(b"a")] for t in text]) / 8

    def predict(self, text):
        return self.core(self.words(text))      # words: each request on its own

    def alone(self, text):
        return self.net(self.words(text))
"""

DECODER = """
import torch
from tests.runtime.stage import STAGE
from tfs.runtime.batched import batched

class Servable:
    def load(self, version):
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(11, 8)
        self.cell = torch.nn.GRUCell(8, 8)
        self.head = torch.nn.Linear(8, 11)
        self.joined = batched(
            self.step, max_batch_size=8, timeout_s=3600.0, clock=STAGE.clock
        )

    def step(self, token, state):
        STAGE.note(len(token))
        state = self.cell(self.embedding(token), state)
        return self.head(state).argmax(1), state

    def encode(self, source):
        return torch.stack([self.embedding(row).sum(0) for row in source])

    def loop(self, step, source, length):
        token, state = source[:, 0], self.encode(source)
        tokens = []
        for index in range(int(length)):
            STAGE.iteration(int(source[0, 0]), index)
            token, state = step(token, state)
            tokens.append(token)
        return torch.stack(tokens, 1)

    def predict(self, source, length):
        with self.joined.session():
            STAGE.meet()
            return self.loop(self.joined, source, length)

    def alone(self, source, length):
        return self.loop(self.step, source, length)
"""


@pytest.fixture
def stage() -> Iterator[Stage]:
    STAGE.reset()
    yield STAGE
    STAGE.reset()


@pytest.fixture
def clock(stage: Stage) -> FakeClock:
    return stage.clock


@pytest.fixture
def interpreter(clock: FakeClock) -> Iterator[InlineInterpreter]:
    made = InlineInterpreter("inline-0", max_queued=64, clock=clock)
    yield made
    made.close()


def written(
    folder: Path,
    text: str,
    concurrency: int,
    signatures: dict[str, Signature] | None = None,
) -> ModelSource:
    """A version of platform python; every signature but the default calls its name."""
    folder = folder / "part" / "1"
    folder.mkdir(parents=True)
    (folder / "servable.py").write_text(text)
    signatures = signatures or {"serving_default": signature()}
    return ModelSource(
        ServableId("part", 1),
        str(folder),
        "python",
        {
            "concurrency": concurrency,
            "methods": {key: key for key in signatures if key != "serving_default"},
        },
        signatures,
    )


def asked(model: InlineModel, num: int) -> list[Answer]:
    return [ask(model, {"x": floats((i, 0))}) for i in range(num)]


def test_as_many_requests_as_asked_for_run_at_once(
    interpreter: InlineInterpreter, stage: Stage, tmp_path: Path
) -> None:
    """Each of the three waits inside the model for the two others."""
    stage.expect(3)
    model = interpreter.load(written(tmp_path, AT_ONCE, 3))
    answers = asked(model, 3)
    for number, answer in enumerate(answers):
        assert values(answer.outputs()["y"]) == [[2 * number, 0]]
    assert len({answer.thread_name for answer in answers}) == 3
    model.unload()
    assert interpreter.num_models == 0


def test_a_model_that_asks_for_nothing_gets_one_request_at_a_time(
    interpreter: InlineInterpreter, stage: Stage, tmp_path: Path
) -> None:
    """The default: model code need not be thread-safe."""
    model = interpreter.load(written(tmp_path, WAITS, 1))
    answers = asked(model, 3)
    assert stage.entered.acquire(timeout=PATIENCE_S)
    assert interpreter.num_pending == 3
    stage.go.set()
    assert {answer.thread_name for answer in answers if answer.outputs()} == {
        "inline-0"
    }


def test_what_waits_is_bounded_and_leaves_when_nobody_wants_it(
    clock: FakeClock, stage: Stage, tmp_path: Path
) -> None:
    """Cancelled and expired requests cost no compute; one too many is refused."""
    interpreter = InlineInterpreter("inline-0", max_queued=3, clock=clock)
    model = interpreter.load(written(tmp_path, WAITS, 2))
    running = asked(model, 2)
    for _ in running:
        assert stage.entered.acquire(timeout=PATIENCE_S)
    cancel = CancelToken()
    inputs = {"x": floats((1, 1))}
    late = ask(model, inputs, deadline_s=clock.now() + 1)
    gone = ask(model, inputs, cancel=cancel)
    stays = ask(model, inputs)
    assert isinstance(ask(model, inputs).error(), Unavailable)
    cancel.cancel(Cancelled("the client left"))
    clock.advance(2)
    stage.go.set()
    assert isinstance(late.error(), DeadlineExceeded)
    assert isinstance(gone.error(), Cancelled)
    assert values(stays.outputs()["y"]) == [[2, 2]]
    for answer in running:
        answer.outputs()
    interpreter.close()
    assert interpreter.num_pending == 0


def test_unloading_answers_what_waits_and_waits_for_what_runs(
    interpreter: InlineInterpreter, stage: Stage, tmp_path: Path
) -> None:
    """The model is gone only when none of its threads runs it."""
    model = interpreter.load(written(tmp_path, WAITS, 2))
    running = asked(model, 2)
    for _ in running:
        assert stage.entered.acquire(timeout=PATIENCE_S)
    waiting = ask(model, {"x": floats((1, 1))})
    unloader = threading.Thread(target=model.unload)
    unloader.start()
    assert isinstance(waiting.error(), Unavailable)
    assert model.guest is not None
    stage.go.set()
    unloader.join(PATIENCE_S)
    assert not unloader.is_alive()
    assert model.guest is None
    for answer in running:
        answer.outputs()
    assert isinstance(ask(model, {"x": floats((1, 1))}).error(), Unavailable)
    model.unload()


def test_closing_ends_by_its_deadline_though_a_call_hangs(
    stage: Stage, tmp_path: Path
) -> None:
    """The hanging call keeps its model; everything else is answered."""
    interpreter = InlineInterpreter("inline-0", clock=FakeClock())
    model = interpreter.load(written(tmp_path, WAITS, 2))
    running = asked(model, 2)
    for _ in running:
        assert stage.entered.acquire(timeout=PATIENCE_S)
    waiting = ask(model, {"x": floats((1, 1))})
    interpreter.close(0.0)
    assert isinstance(waiting.error(), Unavailable)
    assert model.guest is not None
    stage.go.set()
    for answer in running:
        answer.outputs()


def test_an_error_fails_its_request_only(
    interpreter: InlineInterpreter, tmp_path: Path
) -> None:
    """The thread goes on, also after code that wants to exit."""
    source = package(tmp_path, Scale(), SCALE_SIGNATURES, concurrency=2)
    model = interpreter.load(source)
    for name in ("fail", "exit", "fail", "exit"):
        assert isinstance(ask(model, {"x": floats((1, 1))}, name).error(), Internal)
    described = ask(model, {"x": floats((1, 1))}, "describe").outputs()["y"]
    assert values(described) == [[0, 1, 0, 1]]


@pytest.mark.parametrize("concurrency", [0, -1, 257, True, "8", 2.0])
def test_a_number_of_requests_that_is_none_is_refused(concurrency: object) -> None:
    """The manifest is read before anything runs."""
    with pytest.raises(InvalidArgument, match="concurrency"):
        ModelSource(
            ServableId("part", 1),
            "/nowhere",
            "python",
            {"concurrency": concurrency},
            {"serving_default": signature()},
        )


# -- with batched parts ----------------------------------------------------------------


def test_more_requests_than_threads_through_a_batched_part(
    interpreter: InlineInterpreter, stage: Stage, tmp_path: Path
) -> None:
    """Per-request Python and a batched core: no deadlock, and nothing changes."""
    texts = {"text": TensorSpec(STRING, (-1,))}
    scores = {"y": TensorSpec(FLOAT32, (-1, 2))}
    source = written(
        tmp_path,
        LOOKUP,
        3,
        {name: signature(scores, texts) for name in ("serving_default", "alone")},
    )
    model = interpreter.load(source)
    requests = [
        {"text": TensorView(STRING, (1,), (b"a " * number + b"bc",))}
        for number in range(60)
    ]
    answers = [ask(model, request) for request in requests]
    got = [values(answer.outputs()["y"]) for answer in answers]
    assert sum(stage.sizes) == 60
    assert max(stage.sizes) <= 3
    alone = [
        values(ask(model, request, "alone").outputs()["y"]) for request in requests
    ]
    assert torch.allclose(torch.tensor(got), torch.tensor(alone), rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.tensor(got).argmax(2), torch.tensor(alone).argmax(2))


DECODE_INPUTS = {"source": TensorSpec(INT64, (-1, 3)), "length": TensorSpec(INT64, ())}
DECODED = {"tokens": TensorSpec(INT64, (-1, -1))}
DECODE = {
    name: signature(DECODED, DECODE_INPUTS, batched=False)
    for name in ("serving_default", "alone")
}


def sentence(first: int, length: int) -> dict[str, TensorView]:
    tokens = torch.tensor([[first, 2, 3]])
    return {
        "source": TensorView(INT64, (1, 3), tokens.numpy().tobytes()),
        "length": TensorView(INT64, (), length.to_bytes(8, "little")),
    }


def test_decode_loops_join_and_leave_through_the_interpreter(
    interpreter: InlineInterpreter, stage: Stage, tmp_path: Path
) -> None:
    """Continuous batching of a sequence-to-sequence model; sequences as if alone."""
    stage.expect(3)
    model = interpreter.load(written(tmp_path, DECODER, 3, DECODE))
    lengths = {4: 2, 5: 4, 6: 7}
    answers = {
        first: ask(model, sentence(first, length)) for first, length in lengths.items()
    }
    got = {first: answer.outputs()["tokens"] for first, answer in answers.items()}
    assert stage.sizes == [3, 3, 2, 2, 1, 1, 1]
    for first, length in lengths.items():
        alone = ask(model, sentence(first, length), "alone").outputs()["tokens"]
        assert got[first] == alone


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
def test_a_request_that_nobody_wants_leaves_its_loop_at_the_next_iteration(
    interpreter: InlineInterpreter,
    clock: FakeClock,
    stage: Stage,
    tmp_path: Path,
    reason: str,
) -> None:
    """The others go on without it, in batches that are smaller by one."""
    cancel = CancelToken()
    deadline_s = clock.now() + 10

    def on_iteration(first: int, index: int) -> None:
        if (first, index) != (4, 2):
            return
        if reason == "cancelled":
            cancel.cancel(Cancelled("the client left"))
        else:
            clock.advance(10)

    stage.expect(2)
    stage.on_iteration = on_iteration
    model = interpreter.load(written(tmp_path, DECODER, 2, DECODE))
    leaves = ask(model, sentence(4, 6), deadline_s=deadline_s, cancel=cancel)
    stays = ask(model, sentence(5, 6))
    kind = Cancelled if reason == "cancelled" else DeadlineExceeded
    assert isinstance(leaves.error(), kind)
    got = stays.outputs()["tokens"]
    assert stage.sizes == [2, 2, 1, 1, 1, 1]
    stage.on_iteration = None
    assert got == ask(model, sentence(5, 6), "alone").outputs()["tokens"]


def test_a_part_is_an_attribute_of_a_packaged_module(
    interpreter: InlineInterpreter, tmp_path: Path
) -> None:
    """It is pickled with its function and options, and works on in its package."""
    source = package(
        tmp_path, Joined().eval(), {"serving_default": signature()}, concurrency=4
    )
    model = interpreter.load(source)
    for number, answer in enumerate(asked(model, 20)):
        assert values(answer.outputs()["y"]) == [[2 * number + 1, 1]]
    began_s = time.monotonic()
    model.unload()
    assert time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_load_that_gets_no_thread_says_so_and_the_next_one_serves(
    interpreter: InlineInterpreter,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
) -> None:
    """No version stays whose calls nobody would run."""
    stage.go.set()
    source = written(tmp_path, WAITS, concurrency)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_more_threads)
        with pytest.raises(ResourceExhausted, match="allow this process more threads"):
            interpreter.load(source)
    assert interpreter.num_models == 0
    model = interpreter.load(source)
    assert asked(model, 1)[0].outputs()


def _no_more_threads(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
