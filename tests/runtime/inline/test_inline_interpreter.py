"""What the in-process backend does beyond the conformance suite: the front."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runtime.answers import Answer, ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.process_host import until
from tests.runtime.zoo import Scale
from tfs.core.errors import ServingError
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import Outcome
from tfs.core.servable_id import ServableId
from tfs.runtime.inline import inline_model
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.inline.inline_model import InlineModel
from tfs.servables.loaded_version import PlacedModel
from tfs.testing.patience import PATIENCE_S


@pytest.fixture
def loop() -> Iterator[ServingLoop]:
    loop = ServingLoop(name="front-loop")
    loop.start()
    yield loop
    loop.close(time.monotonic() + PATIENCE_S)
    assert loop.num_failures == 0


def ask_on(loop: ServingLoop, model: InlineModel, value: float, name: str) -> Answer:
    """Submits on the loop; returns when the submission returned."""
    answers: list[Answer] = []
    done = threading.Event()

    def submit() -> None:
        answers.append(ask(model, {"x": floats((value, 1))}, name))
        done.set()

    loop.post(submit)
    assert done.wait(PATIENCE_S)
    return answers[0]


def test_a_front_model_runs_on_the_loop_until_a_call_is_slow(
    loop: ServingLoop, tmp_path: Path
) -> None:
    """Quick calls are answered before submit returns; after a slow one the thread runs."""
    told: list[tuple[ServableId, float]] = []
    interpreter = InlineInterpreter(
        "front-0",
        front_loop=loop,
        on_slow=lambda who, call_s: told.append((who, call_s)),
    )
    model = interpreter.load(package(tmp_path, Scale()))
    front = model.front
    ask_on(loop, model, 1, "serving_default")  # the first call may take long
    model.front = front
    told.clear()
    quick = ask_on(loop, model, 1, "serving_default")
    assert quick.is_there
    assert quick.thread_name == "front-loop"
    described = ask_on(loop, model, 1, "describe").outputs()["y"]
    assert values(described) == [[0, 1, 0, 1]]
    assert told == []
    slow = ask_on(loop, model, 0.05, "slow")  # it sleeps
    assert slow.thread_name == "front-loop"
    assert len(told) == 1
    assert told[0][0] == model.source.id
    assert told[0][1] >= 0.05
    after = ask_on(loop, model, 2, "serving_default")
    assert values(after.outputs()["y"]) == [[4, 2]]
    assert after.thread_name == "front-0"
    interpreter.close(time.monotonic() + PATIENCE_S)


def test_a_front_model_runs_on_the_thread_for_others(
    loop: ServingLoop, tmp_path: Path
) -> None:
    """What another thread submits does not run there, and a busy model is not entered."""
    interpreter = InlineInterpreter("front-0", front_loop=loop)
    model = interpreter.load(package(tmp_path, Scale()))
    running = ask(model, {"x": floats((0.2, 1))}, "slow")
    until(interpreter._thread.running.locked, "the call's begin")
    behind = ask_on(loop, model, 1, "serving_default")
    assert not running.is_there
    for answer in (running, behind):
        answer.outputs()
        assert answer.thread_name == "front-0"
    model.unload()
    interpreter.close(time.monotonic() + PATIENCE_S)


def test_a_call_at_once_is_one_on_the_loop_or_none(
    loop: ServingLoop, tmp_path: Path
) -> None:
    """Where it may not run nothing is done: another thread, a busy or unloaded model."""
    interpreter = InlineInterpreter("front-0", front_loop=loop)
    model = interpreter.load(package(tmp_path, Scale()))
    placed = PlacedModel(model)
    inputs = {"x": floats((3, 1))}

    def call() -> Outcome | None:
        return placed.compute_now("serving_default", lambda: inputs)

    def on_loop() -> Outcome | None:
        outcomes: list[Outcome | None] = []
        done = threading.Event()

        def record() -> None:
            outcomes.append(call())
            done.set()

        loop.post(record)
        assert done.wait(PATIENCE_S)
        return outcomes[0]

    front = model.front
    ask_on(loop, model, 1, "serving_default")  # the first call may take long
    model.front = front
    assert call() is None
    outputs = on_loop()
    assert not isinstance(outputs, ServingError | None)
    assert values(outputs["y"]) == [[6, 2]]
    running = ask(model, {"x": floats((0.2, 1))}, "slow")
    until(interpreter._thread.running.locked, "the call's begin")
    assert on_loop() is None
    running.outputs()
    placed.unload()
    assert on_loop() is None
    interpreter.close(time.monotonic() + PATIENCE_S)


def test_only_a_loops_own_thread_is_left_in_inference_mode(
    loop: ServingLoop, tmp_path: Path
) -> None:
    """A thread that somebody lends the loop is given back as it was."""
    own = InlineInterpreter("front-0", front_loop=loop)
    own_model = own.load(package(tmp_path, Scale()))
    modes: list[bool] = []
    for value in (1, 2):
        ask_on(loop, own_model, value, "serving_default").outputs()
    done = threading.Event()
    loop.post(lambda: modes.append(torch.is_inference_mode_enabled()))
    loop.post(done.set)
    assert done.wait(PATIENCE_S)
    assert modes == [True]
    own.close(time.monotonic() + PATIENCE_S)
    lent = ServingLoop()
    lent.step()
    guest = InlineInterpreter("front-1", front_loop=lent)
    model = guest.load(package(tmp_path / "lent", Scale()))
    inputs = {"x": floats((3, 1))}
    for _ in range(2):
        outcome = model.compute_now("serving_default", lambda: inputs)
        assert not isinstance(outcome, ServingError | None)
        assert not torch.is_inference_mode_enabled()
    guest.close(time.monotonic() + PATIENCE_S)
    lent.close()


def test_a_call_is_measured_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model took, not how long its caller waited for it on another thread."""
    interpreter = InlineInterpreter("measured")
    model = interpreter.load(package(tmp_path, Scale()))
    assert model.last_call_s is None
    times = iter((10.0, 10.5))
    monkeypatch.setattr(inline_model, "perf_counter", lambda: next(times))
    answer = ask(model, {"x": floats((1, 2))}, "serving_default")
    answer.outputs()
    assert model.last_call_s == 0.5
    model.unload()
    interpreter.close(time.monotonic() + PATIENCE_S)


def test_a_rehearsal_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    """It is on the caller's thread: the interpreter's need not even run."""
    interpreter = InlineInterpreter("rehearsing")
    model = interpreter.load(package(tmp_path, Scale()))
    model.rehearse("count", {"x": floats((1, 2))}, 30.0)
    model.rehearse("fail", {"x": floats((1, 2))}, 30.0)
    answer = ask(model, {"x": floats((1, 2))}, "count")
    assert values(answer.outputs()["y"]) == [[2, 2]]
    interpreter.close()
    model.rehearse("count", {"x": floats((1, 2))}, 30.0)


def test_a_failed_call_keeps_no_frames(tmp_path: Path) -> None:
    """They would hold the model's tensors, and each other until the collector comes."""
    interpreter = InlineInterpreter("failing")
    model = interpreter.load(package(tmp_path, Scale()))
    fault = ask(model, {"x": floats((1, 2))}, "fail").error()
    assert fault.__traceback__ is None
    assert fault.__cause__ is not None
    assert fault.__cause__.__traceback__ is None
    interpreter.close(time.monotonic() + PATIENCE_S)
