from __future__ import annotations

from collections.abc import Mapping

from tfs.core.dtype import FLOAT32
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.loaded_model import LOOK_S, LoadedModel
from tfs.runtime.guest.model_source import ModelSource

SPEC = {"x": TensorSpec(FLOAT32, (-1,))}
SOURCE = ModelSource(
    ServableId("m", 1),
    "/m/1",
    "python",
    {},
    {"s": Signature(Method.PREDICT, SPEC, SPEC)},
)


class Watched:
    """A guest that counts how often somebody looks, which takes ``look_s``."""

    def __init__(self, look_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.num_looks = 0
        self.num_pages = 0
        self._look_s = look_s

    def now(self) -> float:
        return self.now_s

    def num_written_pages(self) -> int:
        self.num_looks += 1
        self.now_s += self._look_s
        return self.num_pages

    def call(self, signature_name: str, inputs: Tensors) -> dict[str, TensorView]:
        raise NotImplementedError

    def run(
        self, signature_name: str, inputs: Mapping[str, Value], num_rows: int
    ) -> dict[str, Output]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_weights_are_looked_at_early_and_then_once_in_a_second_of_calls() -> None:
    """A model that writes late is told of when the next call comes."""
    guest = Watched()
    loaded = LoadedModel(SOURCE, guest, now=guest.now)
    for _ in range(500):
        assert loaded.written_pages_if_due() == 0
    assert guest.num_looks == 3
    guest.num_pages = 7
    guest.now_s = LOOK_S
    assert loaded.written_pages_if_due() == 7
    for _ in range(500):
        assert loaded.written_pages_if_due() == 0
    assert guest.num_looks == 4


def test_looks_that_take_long_are_rarer() -> None:
    """They take a thousandth of a worker's time, whatever the weights' size."""
    guest = Watched(look_s=0.1)
    loaded = LoadedModel(SOURCE, guest, now=guest.now)
    loaded.written_pages_if_due()
    for _ in range(8):
        guest.now_s += LOOK_S
        loaded.written_pages_if_due()
    assert guest.num_looks == 1
    guest.now_s += 100.0
    loaded.written_pages_if_due()
    assert guest.num_looks == 2
