from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.core.conformance.servable import (
    SERVABLE_CHECKS,
    ServableCheck,
    example_inputs,
    run_task,
)
from tests.models.digits import DigitClassifier
from tests.runtime.process_host import process_host
from tests.servables.fakes import ID
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import InvalidItems
from tfs.core.servable import Servable
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.export import save, save_python
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.servables.platform import LoadContext
from tfs.servables.registry import default_registry

EXAMPLE = torch.rand(2, 64)


def module_saved_as(platform: str) -> Callable[[Path], str]:
    return lambda base: save(DigitClassifier(), EXAMPLE, base, platform=platform)


def python(base: Path) -> str:
    return save_python(Path(__file__).parent / "sorting_servable.py", base)


def table(base: Path) -> str:
    base.mkdir()
    (base / "table.csv").write_text("item,price:float32\ns0,1\ns1,2.5\ns2,3\n")
    return str(base)


VERSIONS = {
    "torch_package": module_saved_as("torch_package"),
    "torch_export": module_saved_as("torch_export"),
    "torchscript": module_saved_as("torchscript"),
    "python": python,
    "hashmap": table,
}


@pytest.fixture(scope="module", params=["inline", "process"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter]:
    with contextlib.ExitStack() as stack:
        made: Interpreter
        if request.param == "inline":
            made = InlineInterpreter("inline-conformance")
        else:
            made = stack.enter_context(process_host()).pool()
        yield made
        made.close()


@pytest.fixture(scope="module", params=VERSIONS)
def servable(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    interpreter: Interpreter,
) -> Iterator[Servable]:
    path = VERSIONS[request.param](tmp_path_factory.mktemp("base") / "model")
    loader = default_registry().loader(path, LoadContext(lambda _: interpreter))
    loader.load(ID)
    yield loader.servable
    loader.unload()


@pytest.mark.parametrize("check", SERVABLE_CHECKS)
def test_every_platform_keeps_a_servables_promises(
    check: ServableCheck, servable: Servable
) -> None:
    """Whatever a version is made of, whoever calls it can rely on the same."""
    check(lambda: servable, example_inputs)


def test_invalid_rows_are_told_by_every_interpreter(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """Which rows are wrong, and why, survives the way out of a process."""
    loader = default_registry().loader(
        python(tmp_path), LoadContext(lambda _: interpreter)
    )
    loader.load(ID)
    inputs = {
        "numbers": TensorView(FLOAT32, (2, 3), struct.pack("<6f", 1, 2, 3, 4, -5, 6)),
        "names": TensorView(STRING, (2,), (b"ann", b"bob")),
    }
    outcome = run_task(loader.servable, DEFAULT_SIGNATURE, inputs)
    loader.unload()
    assert isinstance(outcome, InvalidItems)
    assert outcome.rows == {1: "numbers must not be negative"}
