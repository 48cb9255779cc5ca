"""Wrappers around a module: torch's own are left out, an author's are saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from tests.export.called_version import call_version
from tests.models.adds_one import AddsOne
from tests.models.forwarding import Averaged, Calibrated, DataParallel, Described
from tfs.core.errors import InvalidArgument
from tfs.export import save
from tfs.export.values import view_of

X = torch.rand(2, 3)


def linear() -> nn.Module:
    return nn.Linear(3, 3)


def compiled(net: nn.Module) -> nn.Module:
    return cast(nn.Module, torch.compile(net, backend="eager"))


def parametrized(net: nn.Module) -> nn.Module:
    return cast(nn.Module, torch.nn.utils.parametrizations.weight_norm(net))


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda *args: args[-1] * 2)
    return module


def answers(module: nn.Module, base: Path) -> bool:
    """Saves a module; returns whether its version answers as the module does."""
    with torch.no_grad():
        wanted = module.eval()(X)
    name = "input" if isinstance(module, nn.Sequential) else "x"
    found = call_version(save(module, X, base), {name: X})
    return found["output"] == view_of(wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize(
    "made",  # when the test runs: torch's compiler takes five seconds to import
    [
        lambda: Calibrated(compiled(linear())),
        lambda: nn.Sequential(Calibrated(compiled(linear()))),
        lambda: Calibrated(parametrized(linear())),
        lambda: Calibrated(nn.DataParallel(linear())),
        lambda: DataParallel(linear()),
        lambda: nn.Sequential(DataParallel(linear())),
        lambda: Averaged(linear()),
        Described,
    ],
    ids=[
        "forwards-compiled", "part", "forwards-parametrized", "forwards-parallel",
        "name", "part-of-the-name", "derived", "schema",
    ],
)  # fmt: skip
def test_what_only_looks_like_torchs_is_saved_whole(
    tmp_path: Path, made: Callable[[], nn.Module]
) -> None:
    """Names and attributes are anybody's; torch's own wrappers are known by their types."""
    assert answers(made(), tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        compiled,
        torch.optim.swa_utils.AveragedModel,
        lambda net: nn.Sequential(hooked(compiled(net))),
    ],
    ids=["parallel", "compiled", "averaged", "part"],
)
def test_wrapper_with_hooks_of_its_own_is_refused(
    tmp_path: Path, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    """They would be left out with it, without a word."""
    module = wrap(AddsOne())
    if not isinstance(module, nn.Sequential):
        hooked(module)
    with pytest.raises(InvalidArgument, match="has hooks, and is not saved"):
        save(module, X, tmp_path)
