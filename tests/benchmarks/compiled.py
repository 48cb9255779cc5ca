"""The forms in which ``save`` stores a module, beside each other: rows of bench-runtime.

Each version is loaded as an interpreter loads it, and called by one thread with one
request. ``eager`` is a torch_package, ``torchscript`` a traced and frozen module.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import torch

import tfs.export
from tests.benchmarks.harness import Report, Sample, interleave
from tests.benchmarks.row import Goal, Row
from tests.models.dlrm import DLRM
from tests.models.mobilenet_v3 import MobileNetV3
from tests.models.resnet18 import ResNet18
from tfs.core.servable_id import ServableId
from tfs.core.version_directory import read_manifest
from tfs.export.values import view_of
from tfs.runtime.guest.guest_model import GuestModel, load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource

Inputs = dict[str, torch.Tensor]

_NAMES = ("dlrm", "mobilenet", "resnet18")
_ROUNDS = 9
_WINDOW_S = 0.5


def rows() -> Iterator[Row]:
    """Returns the rows: calls per second, compiled beside the other forms."""
    for name in _NAMES:
        goal = Goal("ratio", ">=", 1.2) if name == "dlrm" else None
        yield Row(f"runtime/compiled-{name}/vs-torchscript", "calls/s", goal)
        yield Row(f"runtime/compiled-{name}/vs-eager", "calls/s")


def _built(name: str) -> tuple[torch.nn.Module, Inputs]:
    torch.manual_seed(0)
    if name == "dlrm":
        return DLRM(num_tables=26, num_rows=1000, width=16).eval(), {
            "dense": torch.rand(2, 13),
            "categories": torch.randint(0, 1000, (2, 26, 4)),
        }
    images = {"image": torch.rand(2, 3, 224, 224)}
    if name == "mobilenet":
        return MobileNetV3(1000).eval(), images
    return ResNet18(64, 1000).eval(), images


def measure_compiled(report: Report) -> None:
    """Calls per second by model and form."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in _NAMES:
            _measure(report, Path(folder, name), name)


def _measure(report: Report, folder: Path, name: str) -> None:
    module, inputs = _built(name)
    traced = torch.jit.trace(  # type: ignore[no-untyped-call]
        module, example_kwarg_inputs=inputs, check_trace=False
    )
    forms = {
        "eager": tfs.export.save(module, inputs, folder),
        "torchscript": tfs.export.save(
            torch.jit.freeze(traced), inputs, folder, platform="torchscript"
        ),
        "compiled": tfs.export.save(module, inputs, folder, platform="aotinductor"),
    }
    row = {key: tensor[:1].contiguous() for key, tensor in inputs.items()}
    request = inputs if name == "dlrm" else row
    with ExitStack() as stack:
        measurers: dict[str, Callable[[], Sample]] = {}
        for form, path in forms.items():
            model = stack.enter_context(closing(_loaded(path)))
            measurers[form] = lambda model=model: _rate(model, request)  # type: ignore[misc]
        runs = interleave(measurers, num_rounds=_ROUNDS)
    rates = {form: quantities["rate"] for form, quantities in runs.items()}
    for other in ("torchscript", "eager"):
        report.record(
            f"runtime/compiled-{name}/vs-{other}", rates["compiled"], rates[other]
        )


def _loaded(path: str) -> GuestModel:
    manifest = read_manifest(path)
    source = ModelSource(
        ServableId("form", 1),
        path,
        manifest.platform,
        manifest.entry,
        manifest.signatures,
    )
    with closing(VersionFiles.stage(source)) as files:
        return load_guest_model(source, files)


def _rate(model: GuestModel, inputs: Inputs) -> Sample:
    views = {name: view_of(tensor) for name, tensor in inputs.items()}
    num_calls = 0
    with torch.inference_mode():
        model.call("serving_default", views)
        started_s = time.perf_counter()
        while (passed_s := time.perf_counter() - started_s) < _WINDOW_S:
            model.call("serving_default", views)
            num_calls += 1
    return {"rate": num_calls / passed_s}
