from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.core.conformance.servable import (
    SERVABLE_CHECKS,
    ServableCheck,
    example_inputs,
)
from tests.models.digits import DigitClassifier
from tests.servables.fakes import ID
from tfs.core.servable import Servable
from tfs.export import save, save_python
from tfs.runtime.inline_interpreter import InlineInterpreter
from tfs.servables.built_in import default_registry
from tfs.servables.platform import LoadContext

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


@pytest.fixture(scope="module")
def inline() -> Iterator[InlineInterpreter]:
    interpreter = InlineInterpreter("inline-conformance")
    interpreter.start()
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="module", params=VERSIONS)
def servable(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    inline: InlineInterpreter,
) -> Iterator[Servable]:
    path = VERSIONS[request.param](tmp_path_factory.mktemp("base") / "model")
    loader = default_registry().loader(path, LoadContext(lambda _: inline))
    loader.load(ID)
    yield loader.servable
    loader.unload()


@pytest.mark.parametrize("check", SERVABLE_CHECKS)
def test_every_platform_keeps_a_servables_promises(
    check: ServableCheck, servable: Servable
) -> None:
    """Whatever a version is made of, whoever calls it can rely on the same."""
    check(lambda: servable, example_inputs)
