"""Large outputs leave without a copy only where nobody can change them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tfs.core.dtype import DTYPES, FLOAT32, STRING, DType
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.platforms.torch_callable import is_large, take_views
from tfs.runtime.guest.torch_tensor import TORCH_DTYPES, small_view, to_torch

NUM = 50_000


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    """As models are called."""
    with torch.inference_mode():
        yield


def given_away() -> tuple[bytearray, torch.Tensor]:
    """Returns a message's memory and the model's input in it."""
    memory = bytearray(4 * NUM)
    tensor = to_torch(TensorView(FLOAT32, (NUM,), memoryview(memory)))
    assert isinstance(tensor, torch.Tensor)
    return memory, tensor


def lies_in_the_model(make: Callable[[], torch.Tensor]) -> bool:
    """Tells whether an output's elements were left where the model put them."""
    expected = make().contiguous().view(torch.uint8).numpy().tobytes()
    view = take_views({"y": make()}, {})["y"]
    assert bytes(view.data) == expected  # type: ignore[arg-type]  # numbers
    return isinstance(view.data, memoryview)


@pytest.mark.parametrize(
    "dtype", [each for each in DTYPES.values() if each is not STRING], ids=str
)
def test_what_the_model_let_go_of_is_not_copied(dtype: DType) -> None:
    """A tensor of torch's own memory that nobody else has, whatever its dtype."""
    view = take_views({"y": torch.zeros(2, NUM, dtype=TORCH_DTYPES[dtype])}, {})["y"]
    if view.size_bytes >= 65_536:
        assert isinstance(view.data, memoryview)
        assert view.data.readonly
    assert TensorView.checked(view.dtype, view.shape, view.data) == view
    assert (view.dtype, view.shape) == (dtype, (2, NUM))


def test_what_was_too_large_for_the_short_way_out_is_not_copied() -> None:
    """That asks for its size before numpy sees it, and torch gives it up for its own."""

    def looked_at() -> torch.Tensor:
        tensor = torch.zeros(NUM)
        assert small_view(tensor) is None
        return tensor

    assert lies_in_the_model(looked_at)


def test_what_the_model_kept_is_copied() -> None:
    """It may write there again before the reply is sent."""
    kept = torch.arange(NUM, dtype=torch.float32)
    assert not lies_in_the_model(lambda: kept)
    assert not lies_in_the_model(lambda: kept[: NUM // 2])
    assert not lies_in_the_model(kept.detach)
    array = np.zeros(NUM, np.float32)
    assert not lies_in_the_model(lambda: torch.from_numpy(array))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_compiled_model_kept_is_copied() -> None:
    """Torch's own code holds tensors that Python knows nothing of."""

    class Accumulator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(NUM))
            self.total: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total

    model = torch.jit.script(Accumulator())
    view = take_views({"y": model(torch.ones(NUM))}, {})["y"]
    model(torch.ones(NUM))
    assert bytes(view.data) == np.ones(NUM, np.float32).tobytes()  # type: ignore[arg-type]


def test_what_would_keep_much_more_memory_is_copied() -> None:
    """Neither a part of a large tensor nor one out of order is left where it is."""
    assert not lies_in_the_model(lambda: torch.arange(4.0 * NUM)[:NUM])
    assert not lies_in_the_model(lambda: torch.zeros(300, 300).t())


def test_one_tensor_under_two_names_is_right_under_both() -> None:
    """A tensor that is returned under two names has its elements under both."""
    y = torch.arange(float(NUM))
    outputs: dict[str, torch.Tensor | TensorView] = {"y": y, "z": y}
    views = take_views(outputs, {})
    assert views["y"] == views["z"]
    assert not outputs


def test_an_input_that_is_the_output_is_sent_from_where_it_arrived() -> None:
    """What was given to the model comes back without a single copy."""
    memory, tensor = given_away()
    inputs: dict[str, torch.Tensor | bytes | list[object]] = {"x": tensor}
    outputs: dict[str, torch.Tensor | TensorView] = {"y": tensor}
    del tensor
    view = take_views(outputs, inputs)["y"]  # type: ignore[arg-type]
    memory[0] = 7
    assert isinstance(view.data, memoryview)
    assert view.data[0] == 7


def test_small_outputs_and_sparse_ones_are_not_looked_at() -> None:
    """A copy of them costs less than finding out."""
    assert not is_large(torch.zeros(4))
    assert not is_large(torch.eye(500).to_sparse())
    assert not is_large(TensorView(STRING, (1,), (b"a",)))
    assert is_large(torch.zeros(NUM))
