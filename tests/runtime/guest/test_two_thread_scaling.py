from __future__ import annotations

import threading
from collections.abc import Mapping

from tfs.core.errors import Internal
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.guest_model import Output, Value, two_thread_scaling


class Meeting:
    """A model whose calls count themselves; some fail."""

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.num_calls = 0
        self.threads: set[int] = set()

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        self.num_calls += 1
        self.threads.add(threading.get_ident())
        if self.num_calls == self.fails_at:
            raise Internal("failed")
        return {}

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        raise NotImplementedError

    def seed(self, seed: int | None) -> None:
        pass

    def close(self) -> None:
        pass


def test_scaling_is_the_rate_of_two_threads_over_one() -> None:
    """One thread calls alone, then two together; the answer is a positive ratio."""
    model = Meeting()
    scaling = two_thread_scaling(model, "serving_default", {}, 0.5)
    assert scaling is not None
    assert scaling > 0
    assert len(model.threads) >= 2


def test_failing_call_leaves_the_scaling_unknown() -> None:
    """A model that fails is not placed by half a measurement, and nobody hangs."""
    assert two_thread_scaling(Meeting(fails_at=1), "serving_default", {}, 0.01) is None
