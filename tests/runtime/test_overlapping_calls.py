"""Several requests of one model at once in a process interpreter."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import cast

import pytest
import torch

from tests.runtime.answers import Answer, ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost, until
from tests.runtime.zoo import Joined, Scale
from tfs.core.dtype import FLOAT32
from tfs.core.errors import Cancelled, DeadlineExceeded, Internal, Unavailable
from tfs.core.servable import CancelToken
from tfs.core.servable_id import ServableId
from tfs.core.signature import TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.testing.patience import PATIENCE_S

MEETING = """
import os, threading

class Servable:
    def load(self, version):
        self.barrier = threading.Barrier(3)

    def predict(self, x):
        if x[0, 1] == 1:
            self.barrier.wait(60)               # until two others are inside as well
        if x[0, 1] == 2:
            os.abort()
        if x[0, 1] == 3:
            threading.Event().wait()
        if x[0, 1] == 4:
            os.closerange(3, 1 << 16)
        return x * 2
"""

ENDLESS = """
import torch
from tfs.runtime.batched import batched

class Servable:
    def load(self, version):
        self.step = batched(torch.nn.Identity(), max_batch_size=8)

    def predict(self, x):
        while x[0, 0] > 0:                      # for as long as somebody waits
            x = self.step(x)
        return x
"""


def written(folder: Path, text: str, concurrency: int) -> ModelSource:
    folder = folder / "part" / "1"
    folder.mkdir(parents=True)
    (folder / "servable.py").write_text(text)
    return ModelSource(
        ServableId("part", 1),
        str(folder),
        "python",
        {"concurrency": concurrency},
        {"serving_default": signature()},
    )


def asked(model: InterpreterModel, *rows: tuple[float, float]) -> list[Answer]:
    return [ask(model, {"x": floats(row)}) for row in rows]


def test_as_many_requests_as_asked_for_run_at_once(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Each of three waits inside the model for the two others, again and again."""
    interpreter = host.pool()
    model = interpreter.load(written(tmp_path, MEETING, 3))
    for _ in range(5):
        answers = asked(model, (1, 1), (2, 1), (3, 1))
        for number, answer in enumerate(answers, 1):
            assert values(answer.outputs()["y"]) == [[2 * number, 2]]
    model.unload()
    assert not model.pids


def test_more_requests_than_slots_pass_through_a_batched_part(
    host: ProcessHost, tmp_path: Path
) -> None:
    """No deadlock, every answer its own, as the plain model's."""
    source = package(
        tmp_path, Joined().eval(), {"serving_default": signature()}, concurrency=4
    )
    model = host.pool().load(source)
    answers = asked(model, *((number, 0) for number in range(80)))
    for number, answer in enumerate(answers):
        assert values(answer.outputs()["y"]) == [[2 * number + 1, 1]]


def test_tensors_that_fit_no_slot_find_their_call(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Memfds travel in the order of requests, and of replies, which differ."""
    num = 60_000
    spec = {"y": TensorSpec(FLOAT32, (-1, num))}
    source = package(
        tmp_path,
        Scale(),
        {"serving_default": signature(spec, {"x": TensorSpec(FLOAT32, (-1, num))})},
        concurrency=4,
    )
    options = ProcessOptions(worker=WorkerOptions(slab_bytes=1 << 20))
    model = host.pool(options).load(source)
    tensors = [torch.rand(1, num) for _ in range(24)]
    answers = [
        ask(model, {"x": TensorView(FLOAT32, (1, num), tensor.numpy().tobytes())})
        for tensor in tensors
    ]
    for tensor, answer in zip(tensors, answers, strict=True):
        got = cast("bytes", answer.outputs()["y"].data)
        assert got == (tensor * 2).numpy().tobytes()


def test_a_crash_fails_what_was_inside_and_the_rest_is_answered(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Whoever was in the interpreter gets INTERNAL; the next worker takes up again."""
    interpreter = host.pool()
    model = interpreter.load(written(tmp_path, MEETING, 3))
    inside = asked(model, (1, 3), (2, 3), (3, 2))
    behind = asked(model, (4, 0), (5, 0))
    for answer in inside:
        assert "SIGABRT" in cast("Internal", answer.error()).message
    assert [values(answer.outputs()["y"]) for answer in behind] == [
        [[8, 0]],
        [[10, 0]],
    ]
    assert model.num_deaths == 1


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
def test_a_request_that_nobody_wants_leaves_at_its_next_step(
    host: ProcessHost, tmp_path: Path, reason: str
) -> None:
    """Cancellation and deadline reach the part, in another process though it is."""
    model = host.pool().load(written(tmp_path, ENDLESS, 2))
    cancel = CancelToken()
    deadline_s = time.monotonic() + 0.2 if reason == "expired" else None
    leaves = ask(model, {"x": floats((1, 0))}, deadline_s=deadline_s, cancel=cancel)
    assert values(ask(model, {"x": floats((0, 5))}).outputs()["y"]) == [[0, 5]]
    if reason == "cancelled":
        cancel.cancel(Cancelled("the client left"))
    kind = Cancelled if reason == "cancelled" else DeadlineExceeded
    assert isinstance(leaves.error(), kind)
    assert cancel.on_cancel is None


def test_a_call_that_hangs_ends_the_interpreter(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Each call has the time it would have alone; all inside share the end."""
    interpreter = host.pool(ProcessOptions(call_timeout_s=3.0))
    model = interpreter.load(written(tmp_path, MEETING, 3))
    hanging = ask(model, {"x": floats((1, 3))})
    assert "took over" in cast("Internal", hanging.error()).message
    # The next worker is as wide.
    for answer in asked(model, (1, 1), (2, 1), (3, 1)):
        answer.outputs()


def test_unloading_answers_what_waits_and_waits_for_what_runs(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Another version of the pool goes on."""
    interpreter = host.pool()
    model = interpreter.load(written(tmp_path, MEETING, 3))
    other = interpreter.load(package(tmp_path, Scale()))
    inside = asked(model, (1, 1), (2, 1))
    until(lambda: model.num_pending == 2, "both inside")
    unloader = threading.Thread(target=model.unload)
    unloader.start()
    until(
        lambda: isinstance(asked(model, (0, 0))[0].outcome(), Unavailable), "no entry"
    )
    assert values(ask(other, {"x": floats((1, 2))}).outputs()["y"]) == [[2, 4]]
    assert unloader.is_alive()
    # Their third comes through no queue: the crash of the worker sets them free.
    interpreter.close(time.monotonic())
    unloader.join(PATIENCE_S)
    for answer in inside:
        assert isinstance(answer.error(), Unavailable)


def test_a_full_queue_refuses_at_once(host: ProcessHost, tmp_path: Path) -> None:
    """What waits is bounded beside what runs."""
    interpreter = host.pool(ProcessOptions(max_queued=2))
    model = interpreter.load(written(tmp_path, MEETING, 2))
    inside = asked(model, (1, 3), (2, 3))
    until(lambda: model.num_pending == 2, "both inside")
    waiting = asked(model, (3, 0), (4, 0))
    until(lambda: model.num_pending == 4, "two waiting")
    assert isinstance(asked(model, (5, 0))[0].error(), Unavailable)
    interpreter.close(time.monotonic())
    for answer in (*inside, *waiting):
        assert isinstance(answer.error(), Unavailable)


def test_a_pool_gives_such_a_model_one_process(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Requests meet only where they run together."""
    pool = host.pool(num_processes=2)
    model = pool.load(written(tmp_path, MEETING, 3))
    for answer in asked(model, (1, 1), (2, 1), (3, 1)):
        answer.outputs()
    assert len(model.pids) == 1
    model.unload()
    assert pool.is_spent


def test_a_thread_that_cannot_go_on_ends_its_worker(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its caller would wait for as long as calls may take, and so would the next ones."""
    interpreter = host.pool(ProcessOptions(call_timeout_s=1000.0))
    model = interpreter.load(written(tmp_path, MEETING, 2))
    error = ask(model, {"x": floats((1, 4))}).error()
    assert isinstance(error, Internal)
    assert "part/1" in error.message
    (answer,) = asked(model, (1, 0))
    assert values(answer.outputs()["y"]) == [[2, 0]]
    assert model.num_deaths == 1
