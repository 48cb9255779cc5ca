"""What peers' handlers compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.running_server import is_right, make_rows, run_alone
from tests.benchmarks.peers.workload import WORKLOADS, ServedModel

RAW = Exchange("/", to_bytes, from_bytes)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_a_handler_computes_what_torch_does(num_requests: int) -> None:
    """Each request gets its own row's output, alone and in a batch."""
    num_threads = torch.get_num_threads()
    try:
        served = ServedModel("mlp")
    finally:
        torch.set_num_threads(num_threads)
    workload = WORKLOADS["mlp"]
    rows = make_rows(workload, num_requests)
    replies = served.run([row.tobytes() for row in rows])
    model = workload.build()
    with torch.inference_mode():
        expected = [run_alone(model, workload, row) for row in rows]
    assert len(replies) == num_requests
    for reply, values in zip(replies, expected, strict=True):
        assert is_right(RAW, reply, values)


def test_a_reply_of_other_values_or_size_is_wrong() -> None:
    """Rounding is forgiven, nothing else is."""
    values = np.array([1.0, 2.0], np.float32)
    assert is_right(RAW, (values * 1.000001).tobytes(), values)
    assert not is_right(RAW, (values + 0.01).tobytes(), values)
    assert not is_right(RAW, values.tobytes() * 2, values)
    assert not is_right(RAW, b"odd", values)
