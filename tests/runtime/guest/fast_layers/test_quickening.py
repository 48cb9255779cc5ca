"""Which modules of a version are quickened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from tests.runtime.answers import ask
from tests.runtime.packaged import signature
from tests.runtime.process_host import ProcessHost
from tfs.core.dtype import BOOL, FLOAT32
from tfs.core.servable_id import ServableId
from tfs.core.signature import TensorSpec
from tfs.runtime.guest.fast_layers.quickening import quicken_held
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.torch_tensor import to_view


class Part:
    """Holds something, as classes of a file do."""

    def __init__(self, held: object) -> None:
        self.held = held


class Slotted:
    """Has no dict to look into."""

    __slots__ = ()


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def is_quickened(module: nn.Module) -> bool:
    return "forward" in vars(module)


PLACES: dict[str, Callable[[nn.Module], object]] = {
    "an attribute": Part,
    "a list": lambda module: Part([1, module]),
    "a dict of tuples": lambda module: Part({"nets": (module, None)}),
    "an object of the file's": lambda module: Part(Part(module)),
    "a cycle": lambda module: _cycle(module),
    "beside what has no dict": lambda module: Part([Slotted(), module]),
}


def _cycle(module: nn.Module) -> Part:
    part = Part(module)
    part.held = [part, module]
    return part


@pytest.mark.parametrize("place", PLACES)
def test_a_module_is_found_where_files_hold_it(place: str) -> None:
    """A class in a file says nowhere what its models are."""
    module = chain()
    quicken_held(PLACES[place](module), sys.modules[__name__])
    assert is_quickened(module)


def test_a_module_that_the_file_holds_itself_is_found() -> None:
    """Many load their model at the top."""
    code = ModuleType("a_file")
    module = chain()
    vars(code)["net"] = module
    quicken_held(object(), code)
    assert is_quickened(module)


def test_what_others_hold_is_left_alone() -> None:
    """Vocabularies are not searched, nor objects of libraries."""
    module = chain()
    long = {str(index): index for index in range(1000)}
    part = Part([{**long, "net": module}, SimpleNamespace(net=module)])
    quicken_held(part, sys.modules[__name__])
    assert not is_quickened(module)


def test_what_is_compiled_is_left_alone() -> None:
    """The compiler would meet other code than the author's."""
    module = chain()
    compiled = nn.Module()
    compiled.add_module("_orig_mod", module)
    quicken_held(Part(compiled), sys.modules[__name__])
    assert not is_quickened(module)
    module._compiled_call_impl = lambda x: x
    quicken_held(Part(module), sys.modules[__name__])
    assert not is_quickened(module)


def test_a_class_in_a_file_answers_to_the_bit(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its chains and bags run as those of a package do."""
    (tmp_path / "servable.py").write_text(
        "import torch\n"
        "class Scores:\n"
        "    def load(self, version):\n"
        "        torch.manual_seed(3)\n"
        "        self.net = torch.nn.Sequential(\n"
        "            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)\n"
        "        ).eval()\n"
        "    def predict(self, x):\n"
        "        quick = 'forward' in vars(self.net)\n"
        "        return {'y': self.net(x), 'quick': torch.full((len(x),), quick)}\n"
    )
    source = ModelSource(
        ServableId("scores", 1),
        str(tmp_path),
        "python",
        {},
        {
            "serving_default": signature(
                {"y": TensorSpec(FLOAT32, (-1, 4)), "quick": TensorSpec(BOOL, (-1,))},
                {"x": TensorSpec(FLOAT32, (-1, 8))},
            )
        },
    )
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    outputs = ask(host.interpreter().load(source), {"x": to_view(x)}).outputs()
    with torch.inference_mode():
        assert outputs["y"] == to_view(plain(x))
    assert outputs["quick"] == to_view(torch.ones(3, dtype=torch.bool))
