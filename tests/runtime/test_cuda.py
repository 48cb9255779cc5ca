"""Models on a GPU, in every backend that takes them; needs one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models import dlrm
from tests.runtime.answers import WAIT_S, ask
from tests.runtime.packaged import package
from tests.runtime.process_host import process_host
from tfs.core.dtype import DTYPES
from tfs.core.servable import Tensors
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.torch_tensor import DTYPE_OF, to_view
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.model_source import ModelSource

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch sees no CUDA device"
    ),
]

Load = Callable[[ModelSource], InterpreterModel]


@pytest.fixture(params=["inline", "process"])
def load(request: pytest.FixtureRequest) -> Iterator[Load]:
    """Loads on a new interpreter, which ends with the test."""
    if request.param == "process":
        with process_host() as host:
            yield lambda source: host.interpreter().load(source)
        return
    interpreters: list[InlineInterpreter] = []

    def load_inline(source: ModelSource) -> InterpreterModel:
        interpreters.append(InlineInterpreter(f"inline-{len(interpreters)}"))
        interpreters[-1].start()
        return interpreters[-1].load(source)

    yield load_inline
    for interpreter in interpreters:
        interpreter.close(time.monotonic() + WAIT_S)


def recommender(folder: Path, version: int) -> tuple[ModelSource, Tensors, TensorView]:
    """A version for the first device, a request, and the processor's answer."""
    torch.manual_seed(version)
    model, tensors = dlrm.build()
    with torch.inference_mode():
        expected = model.eval()(**tensors)
    signatures = {
        "serving_default": Signature(
            Method.PREDICT,
            {
                name: TensorSpec(DTYPE_OF[tensor.dtype], (-1, *tensor.shape[1:]))
                for name, tensor in tensors.items()
            },
            {"y": TensorSpec(DTYPES["float32"], (-1,))},
        )
    }
    source = package(folder, model, signatures, "dlrm", version)
    inputs = {name: to_view(tensor) for name, tensor in tensors.items()}
    return replace(source, device="cuda:0"), inputs, to_view(expected)


def assert_close(answer: TensorView, expected: TensorView) -> None:
    """The device rounds otherwise than the processor, and no more than that."""
    got, wanted = (
        torch.frombuffer(bytearray(view.data), dtype=torch.float32)
        for view in (answer, expected)
        if not isinstance(view.data, tuple)
    )
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_on_a_gpu_answers_as_on_the_processor(
    load: Load, tmp_path: Path
) -> None:
    """Inputs are moved to its device, and outputs back, call after call."""
    source, inputs, expected = recommender(tmp_path, 1)
    model = load(source)
    for _ in range(3):
        assert_close(ask(model, inputs).outputs()["y"], expected)


def test_two_versions_on_one_gpu_answer_each_for_itself(
    load: Load, tmp_path: Path
) -> None:
    """Unloading one leaves the other's weights on the device."""
    first, inputs, expected = recommender(tmp_path, 1)
    second, others, expected_of_second = recommender(tmp_path, 2)
    models = load(first), load(second)
    assert_close(ask(models[0], inputs).outputs()["y"], expected)
    models[0].unload()
    assert_close(ask(models[1], others).outputs()["y"], expected_of_second)


def test_unloading_gives_the_memory_of_the_device_back(tmp_path: Path) -> None:
    """Within the server, too, whose process stays."""
    source, inputs, _ = recommender(tmp_path, 1)
    interpreter = InlineInterpreter("inline-0")
    interpreter.start()
    model = interpreter.load(source)
    ask(model, inputs).outputs()
    held_bytes = torch.cuda.memory_allocated(0)
    model.unload()
    assert torch.cuda.memory_allocated(0) < held_bytes
    interpreter.close(time.monotonic() + WAIT_S)
