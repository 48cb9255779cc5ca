"""Models on a GPU, in every backend that takes them; needs one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models import dlrm
from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost, kill_worker, process_host, until
from tests.runtime.zoo import Large, Scale
from tfs.core.dtype import DTYPES
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import DTYPE_OF, to_view
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import InterpreterModel
from tfs.testing.patience import PATIENCE_S

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch sees no CUDA device"
    ),
    pytest.mark.timeout(300),  # each process has a context to make
]

DEVICE = "cuda:0"
X = {"x": floats((1, 2), (3, 4))}
LARGE_BYTES = 400 << 20
SLACK_BYTES = 64 << 20
"""What a device's memory may differ by for other reasons."""

Load = Callable[[ModelSource], InterpreterModel]


@pytest.fixture(params=["inline", "process"])
def load(request: pytest.FixtureRequest) -> Iterator[Load]:
    """Loads on a new interpreter, which ends with the test."""
    if request.param == "inline":
        interpreters: list[InlineInterpreter] = []

        def load_inline(source: ModelSource) -> InterpreterModel:
            interpreters.append(InlineInterpreter(f"inline-{len(interpreters)}"))
            return interpreters[-1].load(source)

        yield load_inline
        for interpreter in interpreters:
            interpreter.close(time.monotonic() + PATIENCE_S)
        return
    with process_host() as host:
        yield lambda source: host.pool().load(source)


def recommender(folder: Path, version: int) -> tuple[ModelSource, Tensors, TensorView]:
    """A version for the first device, a request, and the processor's answer."""
    torch.manual_seed(version)
    _, tensors = dlrm.build()
    model = dlrm.DLRM(num_rows=10_000)  # tables large enough to be shared
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
    return replace(source, device=DEVICE), inputs, to_view(expected)


def large(folder: Path, version: int = 1, size_bytes: int = LARGE_BYTES) -> ModelSource:
    """A version whose one parameter takes so many bytes."""
    torch.manual_seed(version)
    signatures = {"serving_default": signature()}
    source = package(folder, Large(size_bytes), signatures, "large", version)
    return replace(source, device=DEVICE)


def used_bytes() -> int:
    """What all processes together have of the device."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    return total_bytes - free_bytes


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


def test_a_graph_runs_on_a_gpu(load: Load, tmp_path: Path) -> None:
    """A graph runs on a GPU in forks of a zygote that has traced a graph."""
    program = torch.export.export(
        Scale().eval(),
        (torch.ones(2, 2),),
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    torch.export.save(program, tmp_path / "model.pt2")
    signatures = {"serving_default": signature()}
    source = ModelSource(
        ServableId("graph", 1), str(tmp_path), "torch_export", {}, signatures, DEVICE
    )
    answer = ask(load(source), X).outputs()["y"]
    assert values(answer) == [[2, 4], [6, 8]]


def test_unloading_gives_the_memory_of_the_device_back(tmp_path: Path) -> None:
    """An unload gives memory back to the device and not to the process' allocator."""
    interpreter = InlineInterpreter("inline-0")
    source, inputs, _ = recommender(tmp_path, 1)
    stays = interpreter.load(source)
    ask(stays, inputs).outputs()  # what a first call takes for good
    before_bytes = used_bytes()
    model = interpreter.load(large(tmp_path))
    ask(model, X).outputs()
    assert used_bytes() - before_bytes >= LARGE_BYTES - SLACK_BYTES
    model.unload()
    assert used_bytes() - before_bytes <= SLACK_BYTES
    interpreter.close(time.monotonic() + PATIENCE_S)


def test_a_process_answers_as_this_one_bit_for_bit(
    host: ProcessHost, tmp_path: Path
) -> None:
    """The same kernels on the same bytes."""
    source, inputs, _ = recommender(tmp_path, 1)
    inline = InlineInterpreter("inline-0")
    expected = ask(inline.load(source), inputs).outputs()["y"]
    inline.close(time.monotonic() + PATIENCE_S)
    answer = ask(host.pool().load(source), inputs).outputs()["y"]
    assert answer.data == expected.data


def test_nothing_of_processes_is_left_on_the_device(
    host: ProcessHost, tmp_path: Path
) -> None:
    """What a killed worker held is the device's again, and so is an unloaded version."""
    gc.collect()
    torch.cuda.empty_cache()
    before_bytes = used_bytes()
    model = host.pool().load(large(tmp_path))
    expected = ask(model, X).outputs()["y"].data
    kill_worker(model)
    assert ask(model, X).outputs()["y"].data == expected
    model.unload()
    until(lambda: used_bytes() - before_bytes <= SLACK_BYTES, "an empty device")
