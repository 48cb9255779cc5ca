"""Modules whose state is changed by calls, wrapped, shared or otherwise not plain."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from torch.package.package_importer import PackageImporter

from tests.export.called_version import call_version
from tests.models.adds_one import AddsOne
from tests.models.with_config import Configured
from tests.models.with_state import (
    Adapted,
    Counts,
    Differentiates,
    DifferentiatesInThreads,
    DifferentiatesOnServers,
    FourBits,
    Halfway,
    Hooked,
    Overwrites,
    Remembers,
)
from tfs.core.errors import InvalidArgument
from tfs.export import (
    Packaging,
    Signature,
    explain,
    save,
)
from tfs.export.values import same, view_of


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrappers_of_training_are_left_out(tmp_path: Path) -> None:
    """torch.compile, data parallelism and averages belong to the process that trains."""
    compiled = cast(nn.Module, torch.compile(AddsOne()))
    average = torch.optim.swa_utils.AveragedModel(AddsOne())
    for module in (compiled, nn.DataParallel(AddsOne()), average):
        path = save(module, torch.rand(2, 3), tmp_path)
        loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
        assert type(loaded).__name__ == "AddsOne"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_compiled_parts_are_saved_as_they_were_written(tmp_path: Path) -> None:
    """The archive has the uncompiled parts; the author keeps what he compiled."""
    wrapped = cast(nn.Module, torch.compile(nn.Linear(3, 3)))
    in_place = nn.Linear(3, 2)
    in_place.compile()
    call = in_place._compiled_call_impl
    module = nn.Sequential(wrapped, in_place)
    path = save(module, torch.rand(2, 3), tmp_path)
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert [type(part) for part in loaded] == [nn.Linear, nn.Linear]
    assert module[0] is wrapped
    assert in_place._compiled_call_impl is call
    assert explain(module, Packaging()).is_complete


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_part_is_named_with_the_way_out(tmp_path: Path) -> None:
    """torch.package does not take TorchScript; the message says what does."""
    traced: nn.Module = torch.jit.trace(AddsOne(), torch.ones(3))  # type: ignore[no-untyped-call]
    module = nn.Sequential(nn.Linear(3, 3), traced)
    with pytest.raises(InvalidArgument, match=r"(?s)model\.1 = TorchScript.*platform="):
        save(module, torch.rand(2, 3), tmp_path)


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_module_is_saved_with_its_values(
    tmp_path: Path, name: str
) -> None:
    """What computes a weight cannot be pickled; the weight can, and is the same."""
    part = getattr(torch.nn.utils.parametrizations, name)(nn.Linear(3, 3))
    module = nn.Sequential(part, AddsOne()).eval()
    x = torch.rand(2, 3)
    path = save(module, x, tmp_path)
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert type(loaded[0]) is nn.Linear
    with torch.inference_mode():
        assert same(loaded(x), module(x))
    assert torch.nn.utils.parametrize.is_parametrized(part)


def test_parametrized_module_that_cannot_be_copied_says_what_to_do(
    tmp_path: Path,
) -> None:
    """The author can fix the values himself."""
    module = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    module.lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="remove_parametrizations"):
        save(module, torch.rand(2, 3), tmp_path)


def test_state_that_calls_change_is_saved_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Saving calls a module several times, which neither it nor its version shows."""
    module = Counts()
    last = module.last
    path = save(
        module,
        torch.rand(2, 3),
        tmp_path,
        signatures={"again": Signature(torch.rand(2, 3), call="again")},
    )
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    for each in (module, cast(Counts, loaded)):
        assert each.calls.item() == 0
        assert each.last.tolist() == [[0, 0, 0]]
    assert module.last is last
    assert "outputs_not_repeatable" not in caplog.text


def test_nothing_that_a_module_remembers_gets_into_its_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Parameters, attributes, containers, objects and generators stay as they were."""
    module = Remembers()
    weight, sizes = module.replaced, module.sizes
    path = save(module, torch.rand(1, 3), tmp_path)
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert module.replaced is weight
    assert module.sizes is sizes
    fresh = Remembers()
    x = torch.rand(2, 3)
    for each in (module, cast(Remembers, loaded)):
        assert each.num_calls == 0
        assert not each.sizes
        assert list(each.order) == ["a", "b"]
        assert each.tally.last == 0
        assert not hasattr(each, "late")
    with torch.no_grad():
        assert same(module(x), fresh(x))
        assert same(cast(Remembers, loaded)(x), Remembers()(x))
    assert "outputs_not_repeatable" not in caplog.text


def test_adapter_that_merges_to_predict_is_saved_merged_and_left_apart(
    tmp_path: Path,
) -> None:
    """The author's weights keep their bits, which subtracting would not give back."""
    module = Adapted()
    weight = module.weight.detach().clone()
    path = save(module, torch.rand(2, 3), tmp_path)
    assert module.training
    assert not module.is_merged
    assert same(module.weight, weight)
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert cast(Adapted, loaded).is_merged


def test_model_that_overwrites_its_input_gets_a_copy(tmp_path: Path) -> None:
    """A server gives it one as well; the author's tensor stays as it was."""
    x = torch.rand(2, 3)
    before = x.clone()
    path = save(Overwrites(), x, tmp_path)
    assert same(x, before)
    data = Path(path, "examples.bin").read_bytes()
    assert data[: x.nbytes] == before.numpy().tobytes()


class NeedsGradients(nn.Module):
    """Differentiates as if gradients were always on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = x.detach().requires_grad_()
        return torch.autograd.grad(place.pow(2).sum(), place)[0]


def test_parts_nested_too_deeply_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """Neither the traceback of a thousand calls nor what broke last says what to do."""
    module: nn.Module = nn.Identity()
    for _ in range(200):
        module = nn.Sequential(module)
    before = sys.getrecursionlimit()  # torch's tracers raise it, and leave it so
    sys.setrecursionlimit(1000)
    try:
        with pytest.raises(InvalidArgument, match=r"setrecursionlimit.*side by side"):
            save(module, torch.rand(2, 3), tmp_path)
    finally:
        sys.setrecursionlimit(before)


def test_dict_that_shows_its_items_as_attributes_is_saved(tmp_path: Path) -> None:
    """Whatever it says of attributes that it does not have; pickle does not ask either."""
    assert Path(save(Configured(), torch.rand(2, 3), tmp_path)).is_dir()


def test_module_that_restores_itself_unmade_is_told_of_torchscript(
    tmp_path: Path,
) -> None:
    """A part that restores itself without its attributes is refused with a way out."""
    with pytest.raises(InvalidArgument, match="platform='torchscript'"):
        save(Halfway(), torch.rand(2, 3), tmp_path)


def test_model_that_differentiates_learns_how_servers_call_it(tmp_path: Path) -> None:
    """There is no gradient in inference mode but for code that leaves it."""
    for module in (Differentiates(), NeedsGradients()):
        with pytest.raises(InvalidArgument, match=r"inference_mode\(False\)"):
            save(module, torch.rand(2, 3), tmp_path)
    with pytest.raises(InvalidArgument, match=r"starts threads.*inference_mode\(\)"):
        save(DifferentiatesInThreads(), torch.rand(2, 3), tmp_path)
    save(DifferentiatesOnServers(), torch.rand(2, 3), tmp_path)


def test_hooks_see_inputs_as_they_do_where_the_model_was_trained(
    tmp_path: Path,
) -> None:
    """A hook that takes no keywords would be called without any inputs, and say nothing."""
    module, x, y = Hooked(), torch.rand(2, 3), torch.rand(2, 3)
    path = save(module, (x, y), tmp_path)
    outputs = call_version(path, {"x": x, "y": y})
    assert outputs["output"] == view_of(module(x, y))


@pytest.mark.filterwarnings("ignore:.*quantize_per_channel")
def test_weights_that_cannot_be_cloned_are_saved(tmp_path: Path) -> None:
    """torch clones only some kinds of quantised tensors."""
    module, x = FourBits(), torch.rand(2, 3)
    outputs = call_version(save(module, x, tmp_path), {"x": x})
    assert outputs["output"] == view_of(module(x))
