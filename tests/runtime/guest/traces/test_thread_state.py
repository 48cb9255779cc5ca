"""What a model leaves behind on its thread is seen, because other models run there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.runtime.packaged import signature
from tests.runtime.process_host import ProcessHost
from tests.tensors import floats
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.traces.thread_state import ThreadState


def on_own_thread(work: Callable[[], object]) -> list[str]:
    """Returns what ``work`` changes of a thread that ends after it."""

    def watched() -> list[str]:
        state = ThreadState()
        work()
        return state.changes()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(watched).result(30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: torch.set_default_device("meta"), "modes of torch"),
        (lambda: torch.set_autocast_enabled("cpu", True), "automatic casts"),
        (lambda: torch.set_flush_denormal(True), "denormal numbers"),
        (lambda: torch.set_num_threads(3), "the number of torch's threads"),
        (lambda: sys.settrace(lambda *_: None), "the trace function"),
    ],
    ids=["device", "autocast", "denormals", "threads", "trace"],
)
def test_what_stays_behind_on_a_thread_is_named(
    change: Callable[[], object], words: str
) -> None:
    """The next model that is called on the thread would compute something else."""
    num_threads = torch.get_num_threads()
    try:
        assert on_own_thread(change) == [words]
    finally:
        torch.set_num_threads(num_threads)


def test_what_ends_with_the_call_is_no_change() -> None:
    """Modes that a model enters and leaves, and threads of its own."""

    def call() -> None:
        with ExitStack() as modes:
            modes.enter_context(torch.no_grad())
            modes.enter_context(torch.inference_mode())
            modes.enter_context(torch.autocast("cpu", torch.bfloat16))
            modes.enter_context(torch.device("meta"))
            torch.ones(2)
        thread = threading.Thread(target=torch.set_default_device, args=("meta",))
        thread.start()
        thread.join()

    assert on_own_thread(call) == []


def test_a_worker_tells_what_calls_leave_on_their_thread(
    host: ProcessHost, tmp_path: Path
) -> None:
    """So such a model gets a process, and not a thread that others use."""
    (tmp_path / "servable.py").write_text(
        "import torch\n"
        "class Casts:\n"
        "    def predict(self, x):\n"
        "        torch.autocast('cpu', torch.bfloat16).__enter__()\n"
        "        return {'y': 2 * x}\n"
    )
    source = ModelSource(
        ServableId("casts", 1),
        str(tmp_path),
        "python",
        {},
        {"serving_default": signature()},
    )
    model = host.interpreter().load(source)
    assert model.process_changes == ""
    model.two_thread_scaling("serving_default", {"x": floats((1, 2), 1, 2)}, 0.01)
    assert model.process_changes == "automatic casts"
