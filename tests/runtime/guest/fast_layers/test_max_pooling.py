"""Max pooling by the quick kernel: the same bits, and modules that stay modules."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from tests.runtime.guest.bits import bits, images
from tests.runtime.guest.module_copies import copies_of
from tfs.core.dtype import FLOAT32
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.runtime.guest.fast_layers import max_pooling
from tfs.runtime.guest.fast_layers.max_pooling import max_pool2d, quicken_modules
from tfs.runtime.guest.fast_layers.quickening import quicken_program
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.version_files import VersionFiles

SETTINGS = (
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3)},
    {"kernel_size": 2, "stride": 1, "dilation": 2},
    {"kernel_size": 3, "stride": (2, 3), "padding": (1, 0), "ceil_mode": True},
)
DTYPES = (torch.float32, torch.float64, torch.float16)


def pool(**settings: object) -> nn.MaxPool2d:
    return nn.MaxPool2d(**settings)  # type: ignore[arg-type]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each call whether it went to the quick kernel."""
    taken: list[bool] = []
    pays = max_pooling._pays

    def noted(tensor: torch.Tensor) -> bool:
        taken.append(pays(tensor))
        return taken[-1]

    monkeypatch.setattr(max_pooling, "_pays", noted)
    return taken


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_quickened_module_returns_the_bits_and_strides_of_a_plain_one(
    settings: dict[str, object], dtype: torch.dtype, quickly: list[bool]
) -> None:
    """A quick answer is the plain one, whatever the elements and the settings are."""
    plain, quick = pool(**settings), pool(**settings)
    quicken_modules(quick)
    tensor = images(dtype=dtype)
    with torch.inference_mode():
        expected, given = plain(tensor), quick(input=tensor)
    assert quickly == [True]
    assert bits(given) == bits(expected)
    assert given.stride() == expected.stride()


@pytest.mark.parametrize(
    "tensor",
    [
        images((16, 33, 31)),  # one image without a batch
        images((2, 4, 64, 64)),  # few channels
        images((1, 16, 8, 8)),  # few elements
        images().to(memory_format=torch.channels_last),
        images().transpose(2, 3),
        images(dtype=torch.bfloat16),
    ],
    ids=("no batch", "channels", "elements", "channels last", "transposed", "bfloat16"),
)
def test_tensor_for_which_copies_do_not_pay_is_pooled_as_before(
    tensor: torch.Tensor,
) -> None:
    """What the quick kernel is not for goes where it went: values and strides."""
    plain, quick = pool(kernel_size=2), pool(kernel_size=2)
    quicken_modules(quick)
    with torch.inference_mode():
        expected, given = plain(tensor), quick(tensor)
    assert bits(given) == bits(expected)
    assert given.stride() == expected.stride()


def test_gradients_get_the_operators_that_the_model_wrote(
    quickly: list[bool],
) -> None:
    """A model that differentiates something in a call does so as before."""
    quick = pool(kernel_size=2)
    quicken_modules(quick)
    tensor = torch.randn(2, 16, 32, 32, requires_grad=True)
    quick(tensor).sum().backward()
    assert quickly == [False]
    assert tensor.grad is not None
    assert tensor.grad.count_nonzero() == 2 * 16 * 16 * 16


def test_indices_and_subclasses_and_replaced_methods_are_left_alone() -> None:
    """Only what is known to pool as torch's module does is quickened."""

    class Own(nn.MaxPool2d):
        pass

    replaced = pool(kernel_size=2)
    replaced.forward = lambda input: input  # type: ignore[method-assign]  # noqa: A006
    model = nn.ModuleList([Own(2), pool(kernel_size=2, return_indices=True), replaced])
    before = [dict(vars(module)) for module in model]
    quicken_modules(model)
    assert [dict(vars(module)) for module in model] == before


def test_indices_asked_for_later_are_returned() -> None:
    """A module's settings may change after it was quickened."""
    quick = pool(kernel_size=2)
    quicken_modules(quick)
    quick.return_indices = True
    with torch.inference_mode():
        _, indices = quick(images())
    assert indices.dtype is torch.int64


def test_copy_of_a_quickened_module_has_settings_of_its_own() -> None:
    """A copy that is changed pools by what it was changed to, the first does not."""
    quick = pool(kernel_size=2)
    quicken_modules(quick)
    copied = copy.deepcopy(quick)
    copied.kernel_size = copied.stride = 4
    with torch.inference_mode():
        assert quick(images()).shape[2:] == (16, 15)
        assert copied(images()).shape[2:] == (8, 7)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_quickened_module_pickles_scripts_traces_and_exports() -> None:
    """What models do with their modules at run time works with a quickened one."""
    plain = nn.Sequential(pool(kernel_size=2))
    quick = copy.deepcopy(plain)
    quicken_modules(quick)
    tensor = torch.randn(2, 16, 32, 32)
    with torch.inference_mode():
        expected = plain(tensor)
        others = copies_of(quick, tensor)
        others["mapped"] = lambda each: torch.func.vmap(quick)(each[None])[0]
        given = {name: bits(other(tensor)) for name, other in others.items()}
    exported = torch.export.export(quick, (tensor,))
    operators = [str(node.target) for node in exported.graph.nodes]
    assert "aten.max_pool2d.default" in operators
    assert "aten.contiguous.default" not in operators
    assert given == dict.fromkeys(others, bits(expected))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_exported_program_pools_quickly_with_the_same_bits(
    settings: dict[str, object], quickly: list[bool]
) -> None:
    """A program's operator is replaced with all of its arguments."""
    tensor = images()
    program = torch.export.export(nn.Sequential(pool(**settings)), (tensor,)).module()
    assert isinstance(program, torch.fx.GraphModule)
    with torch.inference_mode():
        expected = program(tensor)
        quicken_program(program)
        given = program(tensor)
    assert quickly == [True]
    assert bits(given) == bits(expected)
    assert given.stride() == expected.stride()


def test_program_without_pooling_is_not_compiled_anew() -> None:
    """Loading a program costs nothing more where there is nothing to replace."""
    program = torch.fx.symbolic_trace(nn.Linear(2, 2))
    code = program.forward
    quicken_program(program)
    assert program.forward == code


def test_operator_takes_what_torchs_takes() -> None:
    """Arguments that a program leaves out are torch's defaults."""
    tensor = images()
    with torch.inference_mode():
        expected = torch.ops.aten.max_pool2d(tensor, [2, 2])
        assert bits(max_pool2d(tensor, [2, 2])) == bits(expected)


@pytest.mark.parametrize("platform", ["torch_package", "torch_export"])
def test_loaded_version_pools_quickly(
    platform: Literal["torch_package", "torch_export"],
    tmp_path: Path,
    quickly: list[bool],
) -> None:
    """Packages and programs do so without their author's doing, to the same bits."""
    module = nn.Sequential(pool(kernel_size=3, stride=2))
    tensor = torch.randn(2, 16, 33, 31)
    path = save(module, tensor, tmp_path, platform=platform)
    manifest = read_manifest(str(path))
    source = ModelSource(
        ServableId("pool", 1),
        str(path),
        platform,
        manifest.entry,
        manifest.signatures,
    )
    files = VersionFiles.stage(source)
    guest = load_guest_model(source, files)
    files.close()
    (name,) = manifest.signatures[DEFAULT_SIGNATURE].inputs
    view = TensorView(FLOAT32, tuple(tensor.shape), tensor.numpy().tobytes())
    quickly.clear()
    with torch.inference_mode():
        (output,) = guest.call(DEFAULT_SIGNATURE, {name: view}).values()
        expected = module(tensor)
    guest.close()
    assert quickly == [True]
    assert bytes(output.data) == expected.numpy().tobytes()  # type: ignore[arg-type]
