"""What a model leaves behind is seen, because other models run in that process."""

from __future__ import annotations

import builtins
import functools
import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.python_program import output_of
from tests.runtime.packaged import package, signature
from tests.runtime.process_host import ProcessHost
from tests.runtime.zoo import Scale
from tests.tensors import floats
from tfs.core.servable_id import ServableId
from tfs.runtime.guest import side_effects
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.side_effects import (
    KnownFunctions,
    ProcessEffects,
    ThreadEffects,
    in_a_copy,
)

_SORTED = sorted
_MATMUL = attrgetter("matmul")(torch.backends.mkldnn)


def test_nothing_changed_is_nothing() -> None:
    """What a thread sets for itself, and what an import adds, is no change."""
    before = ProcessEffects()
    torch.manual_seed(0)
    with torch.no_grad(), torch.inference_mode():
        torch.ones(2)
        assert before.changes() == []


@pytest.mark.parametrize(
    ("change", "undo", "words"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "the default dtype",
        ),
        *(
            (
                functools.partial(torch.set_default_device, device),
                lambda: torch.set_default_device(None),
                "the default device",
            )
            for device in ("meta", "cpu")  # either is a mode that sees every operator
        ),
        (
            lambda: torch.set_float32_matmul_precision("medium"),
            lambda: torch.set_float32_matmul_precision("highest"),
            "the precision of matmul",
        ),
        (
            lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
            lambda: signal.signal(signal.SIGCHLD, signal.SIG_DFL),
            "signal handlers",
        ),
        (  # from then on torch refuses to tell the precision as it used to
            lambda: setattr(_MATMUL, "fp32_precision", "bf16"),
            lambda: setattr(_MATMUL, "fp32_precision", "none"),
            "the precision of matmul",
        ),
        (
            lambda: logging.disable(logging.CRITICAL),
            lambda: logging.disable(logging.NOTSET),
            "logging",
        ),
        (
            lambda: sys.path.insert(0, "/nowhere"),
            lambda: sys.path.remove("/nowhere"),
            "the module path",
        ),
        (
            lambda: os.environ.update(TFS_MEDDLED="yes"),
            lambda: os.environ.pop("TFS_MEDDLED"),
            "the environment",
        ),
        (
            lambda: socket.setdefaulttimeout(1.0),
            lambda: socket.setdefaulttimeout(None),
            "the timeout of sockets",
        ),
        (gc.disable, gc.enable, "garbage collection"),
        (
            lambda: warnings.filterwarnings("error", message="meddled"),
            lambda: vars(warnings)["filters"].pop(0),
            "warnings as errors",
        ),
        (
            lambda: vars(builtins).update(sorted=list),
            lambda: vars(builtins).update(sorted=_SORTED),
            "builtins.sorted",
        ),
    ],
)
def test_a_setting_of_the_whole_process_is_told(
    change: Callable[[], object], undo: Callable[[], object], words: str
) -> None:
    """A model that needs it so needs a process of its own."""
    before = ProcessEffects()
    change()
    try:
        assert words in before.changes()
    finally:
        undo()
    assert before.changes() == []


def test_an_operator_of_the_models_own_is_told() -> None:
    """An operator that a model registers is reported as a change of the process."""
    before = ProcessEffects()
    new_library: Any = torch.library.Library  # untyped
    library = new_library("tfs_process_state", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    assert before.changes() == ["operators of torch (tfs_process_state::scaled)"]
    library._destroy()
    before = ProcessEffects()
    library = new_library("aten", "IMPL")
    library.impl("_test_serialization_subcmul", lambda *_: None, "MPS")
    try:
        assert "aten::_test_serialization_subcmul" in str(before.changes())
    finally:
        library._destroy()


@pytest.mark.slow
def test_what_parts_of_torch_register_is_no_change() -> None:
    """Imported by a model, they are there for all others as well."""
    program = (
        "import torch\n"
        "from tfs.runtime.guest.side_effects import ProcessEffects\n"
        "before = ProcessEffects()\n"
        "import torch._dynamo, torch._inductor.compile_fx\n"
        "print(repr(before.changes()))\n"
    )
    told = output_of("-W", "ignore", "-c", program).splitlines()[-1]
    assert "operators" not in told


def test_a_patched_function_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A patched function is reported by name, beside other changes."""
    before = ProcessEffects()
    monkeypatch.setattr(torch, "matmul", torch.mm)
    monkeypatch.setattr(torch.nn.functional, "an_addition", torch.mm, raising=False)
    monkeypatch.chdir(tmp_path)
    assert before.changes() == ["the working directory", "torch.matmul"]


def test_a_worker_tells_what_loading_changed(host: ProcessHost, tmp_path: Path) -> None:
    """The probe's process is spared nothing, so that the server's may be."""
    (tmp_path / "servable.py").write_text(
        "import torch\n"
        "torch.set_default_dtype(torch.float64)\n"
        "class Doubles:\n"
        "    def predict(self, x):\n"
        "        return {'y': 2 * x}\n"
    )
    signatures = {"serving_default": signature()}
    source = ModelSource(
        ServableId("doubles", 1), str(tmp_path), "python", {}, signatures
    )
    model = host.pool().load(source)
    assert model.loaded.process_changes == "the default dtype"
    plain = host.pool().load(package(tmp_path, Scale()))
    assert plain.loaded.process_changes == ""
    known = host.pool().load(replace(source, was_measured=True))
    assert known.loaded.process_changes == ""  # known of its code: nobody looked


def on_own_thread(work: Callable[[], object]) -> list[str]:
    """Returns what ``work`` changes of a thread that ends after it."""

    def watched() -> list[str]:
        before = ThreadEffects()
        work()
        return before.changes()

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
    model = host.pool().load(source)
    assert model.loaded.process_changes == ""
    model.two_thread_scaling("serving_default", {"x": floats((1, 2), 1, 2)}, 0.01)
    assert model.loaded.process_changes == "automatic casts"


PATCHES: dict[str, tuple[object, str]] = {
    "torch.matmul": (torch, "matmul"),
    "Tensor.relu": (torch.Tensor, "relu"),
    "Module.forward": (torch.nn.Module, "forward"),
    "torch.nn.functional.gelu": (torch.nn.functional, "gelu"),
    "builtins.compile": (builtins, "compile"),
    "json.loads": (json, "loads"),
    "threading.Barrier": (threading, "Barrier"),
}


@pytest.mark.parametrize("words", PATCHES)
def test_a_replaced_function_is_told(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Whoever owns it, or inherits it; and put back, it is no change."""
    owner, name = PATCHES[words]
    before = KnownFunctions()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *_: None)
        assert before.replaced() == [words]
    assert before.replaced() == []


def test_a_function_that_a_class_replaces_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Classes can be called as well, and are not compared themselves."""
    before = KnownFunctions()
    monkeypatch.setattr(torch, "matmul", int)
    assert before.replaced() == ["torch.matmul"]


def test_what_is_added_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every import of a part of torch adds something."""
    before = KnownFunctions()
    monkeypatch.setattr(torch, "an_addition", len, raising=False)
    assert before.replaced() == []


def test_an_operator_that_follows_another_is_told() -> None:
    """A new operator is noticed even if another went and their number is the same."""
    new_library: Any = torch.library.Library  # untyped
    first = new_library("tfs_torch_surface", "DEF")
    first.define("scaled(Tensor x) -> Tensor")
    before = KnownFunctions()
    first._destroy()
    second = new_library("tfs_torch_surface", "DEF")
    try:
        second.define("shifted(Tensor x) -> Tensor")
        assert before.replaced() == ["operators of torch (tfs_torch_surface::shifted)"]
    finally:
        second._destroy()


def test_a_look_in_a_copy_tells_what_it_found_and_when_it_failed() -> None:
    """The process itself stays as it is, and a copy that dies proves nothing."""
    looked: list[str] = []

    def look() -> list[str]:
        looked.append("here")
        return ["torch.matmul", "json.loads"]

    assert in_a_copy(look) == ["torch.matmul", "json.loads"]
    assert in_a_copy(list) == []
    assert not looked
    assert in_a_copy(lambda: os._exit(1)) == ["what cannot be compared"]


def test_a_copy_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model registers to run in forks may never return; its load still does."""
    monkeypatch.setattr(side_effects, "_PATIENCE_S", 0.05)

    def hang() -> list[str]:
        threading.Event().wait()
        return []

    assert in_a_copy(hang) == ["what cannot be compared"]
