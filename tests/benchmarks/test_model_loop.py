"""The program that the runtime is held to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.benchmarks.model_loop import load, measure
from tests.benchmarks.runtime import make_subject
from tfs.runtime.guest.torch_tensor import to_torch


def test_first_call_of_each_thread_is_not_counted() -> None:
    """Caches are filled before the time begins, and every other call counts."""
    lock = threading.Lock()
    num_calls = 0

    def call() -> None:
        nonlocal num_calls
        with lock:
            num_calls += 1

    calls_per_s, latencies_s = measure(call, 2, 0.01)
    assert len(latencies_s) == num_calls - 2
    assert calls_per_s > 0
    assert min(latencies_s) > 0


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["eager", "traced"])
def test_every_kind_of_loop_answers_as_the_model_does(
    kind: str, tmp_path: Path
) -> None:
    """What is timed beside the interpreters computes the same."""
    subject = make_subject(tmp_path, "dlrm")
    with torch.inference_mode():
        answer = load(str(subject.archive), str(subject.inputs_path), kind)()
    assert isinstance(answer, torch.Tensor)
    expected = to_torch(subject.outputs["y"])
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(answer, expected)
