"""Layers run as one chain: the same bits, and modules that stay modules."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.runtime.guest.bits import bits, images
from tests.runtime.guest.module_copies import copies_of
from tfs.runtime.guest.fast_layers.layer_chains import quicken_chains
from tfs.runtime.guest.fast_layers.plain_call import is_plain_call

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    lambda: nn.LeakyReLU(0.2),
    nn.SiLU,
    nn.Hardswish,
    nn.Hardsigmoid,
)


class Keeper(nn.Module):
    """Returns what it got, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        return x


def network(activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Returns layers of every kind that chains know, with statistics of their own."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)),
        activation(),
        nn.Conv2d(24, 24, 5, padding="same", groups=24),
        nn.BatchNorm2d(24, affine=False),
        activation(),
        nn.Dropout(0.3),
        nn.Conv2d(24, 8, 3, padding=1, padding_mode="reflect"),
        nn.AdaptiveAvgPool2d(2),
        activation(),
        nn.Flatten(),
        nn.Linear(32, 7),
        activation(),
        nn.Linear(7, 3, bias=False),
    ).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


def quickened(plain: nn.Module) -> nn.Module:
    quick = copy.deepcopy(plain)
    quicken_chains(quick)
    return quick


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each call of a chain whether it was run as one."""
    taken: list[bool] = []

    def noted(tensor: torch.Tensor) -> bool:
        taken.append(is_plain_call(tensor))
        return taken[-1]

    monkeypatch.setattr(
        "tfs.runtime.guest.fast_layers.layer_chains.is_plain_call", noted
    )
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda made: str(made()))
def test_chain_returns_the_bits_and_strides_of_its_layers(
    activation: Callable[[], nn.Module], dtype: torch.dtype, runs: list[bool]
) -> None:
    """A chain's answer is that of its layers, whatever the elements are."""
    plain = network(activation).to(dtype)
    quick = quickened(plain)
    for tensor in (
        images(dtype=dtype),
        images((1, 16, 5, 4), dtype).to(memory_format=torch.channels_last),
        torch.randn(3, 16, 40, 41).to(dtype),
    ):
        before = bits(tensor)
        with torch.inference_mode():
            expected, given = plain(tensor), quick(input=tensor)
            first, again = plain[0](tensor), quick[0](tensor)  # type: ignore[index]
        assert bits(given) == bits(expected)
        assert bits(again) == bits(first)
        assert again.stride() == first.stride()
        assert bits(tensor) == before
    assert runs == [True] * 6


def test_activation_changes_only_what_nobody_else_has() -> None:
    """The chain's input, and what a layer may have kept, are not written to."""
    keeper = Keeper()
    quick = quickened(nn.Sequential(nn.ReLU(), nn.Linear(4, 4), keeper, nn.ReLU()))
    keeper = quick[2]  # type: ignore[index]
    tensor = torch.randn(64, 4)
    before = tensor.clone()
    with torch.inference_mode():
        given = quick(tensor)
    assert torch.equal(tensor, before)
    (kept,) = keeper.kept
    assert kept.min() < 0
    assert torch.equal(given, kept.relu())


def test_activation_that_works_in_place_hands_on_what_it_got() -> None:
    """Two that work in place on the caller's tensor change it, as the model says."""
    layers = nn.Sequential(nn.Hardswish(inplace=True), nn.ReLU())
    quick = quickened(layers)
    ours, theirs = (images((2, 3)).nan_to_num() for _ in range(2))
    with torch.inference_mode():
        assert bits(quick(ours)) == bits(layers(theirs))
    assert bits(ours) == bits(theirs)
    assert ours.min() < 0  # what the second did was not done to it


def test_hooks_of_layers_run() -> None:
    """Whoever looks at a layer's input or output sees it, as it was then."""
    seen: list[tuple[str, float]] = []
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plain[0].register_forward_hook(
        lambda _, __, out: seen.append(("out", float(out.min())))
    )
    plain[2].register_forward_pre_hook(
        lambda _, given: seen.append(("in", float(given[0].min())))
    )
    quick = quickened(plain)
    tensor = torch.randn(8, 4)
    with torch.inference_mode():
        expected = plain(tensor)
        by_layers, seen[:] = list(seen), []
        assert bits(quick(tensor)) == bits(expected)
    assert seen == by_layers
    assert [name for name, _ in seen] == ["out", "in"]


def test_hooks_of_all_modules_run() -> None:
    """A hook that somebody registered for every module sees each one."""
    quick = quickened(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, __: seen.append(type(module).__name__)
    )
    try:
        with torch.inference_mode():
            quick(torch.randn(1, 4))
    finally:
        handle.remove()
    assert seen == ["Linear", "ReLU", "Sequential"]


def test_layers_may_change_between_calls() -> None:
    """A chain runs the layers it has, with the settings that they have then."""
    quick = quickened(network())
    assert isinstance(quick, nn.Sequential)
    tensor = images().nan_to_num(0, 1, -1)
    with torch.inference_mode():
        quick(tensor)
        quick[1] = nn.Hardswish()
        norm = quick[3]
        assert isinstance(norm, nn.BatchNorm2d)
        norm.eps = 0.1
        quick.append(nn.Hardsigmoid())
        quick[5].train()
        plain = nn.Sequential(*quick)
        torch.manual_seed(5)
        expected = plain(tensor)
        torch.manual_seed(5)
        assert bits(quick(tensor)) == bits(expected)
        norm.train()
        assert norm.running_mean is not None
        before = norm.running_mean.clone()
        quick(tensor)
        assert not torch.equal(norm.running_mean, before)


def test_subclasses_and_replaced_methods_are_left_alone() -> None:
    """Only what is known to run as torch's module does is quickened."""

    class Own(nn.Sequential):
        pass

    class Twice(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            return 2 * super().forward(input)

    replaced = nn.Linear(4, 4)
    replaced.forward = lambda input: input  # type: ignore[method-assign]  # noqa: A006
    own = Own(nn.ReLU())
    plain = nn.Sequential(Twice(4, 4), replaced, own)
    quicken_chains(plain)
    assert "forward" not in vars(own)
    tensor = torch.randn(2, 4)
    with torch.inference_mode():
        expected = (2 * nn.Linear.forward(plain[0], tensor)).relu()  # type: ignore[arg-type]
        assert bits(plain(tensor)) == bits(expected)


def test_chain_that_would_gain_nothing_is_left_alone() -> None:
    """Layers of the model's own are called as ever, without a look at them before."""
    model = nn.Sequential(Keeper(), nn.ReLU())
    quicken_chains(model)
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    "place",
    [
        "torch.nn.Linear.forward",
        "torch.nn.Conv2d._conv_forward",
        "torch.nn.functional.relu",
    ],
)
def test_library_that_replaced_what_is_torchs_keeps_its_own(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch's layers are not torch's any more, chains are left alone."""
    monkeypatch.setattr(place, lambda *_: torch.zeros(1))
    model = nn.Sequential(nn.Linear(2, 2))
    quicken_chains(model)
    assert "forward" not in vars(model)


def test_convolution_whose_borders_a_model_changed_keeps_them() -> None:
    """A layer's own way to convolve is taken: models of images that tile have one."""
    layer = nn.Conv2d(2, 3, 3, padding=1)
    quick = nn.Sequential(layer)
    quicken_chains(quick)

    def around(
        images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        wrapped = nn.functional.pad(images, (1, 1, 1, 1), mode="circular")
        return nn.functional.conv2d(wrapped, weight, bias)

    vars(layer)["_conv_forward"] = around
    tensor = torch.randn(1, 2, 5, 5)
    with torch.inference_mode():
        expected = around(tensor, layer.weight, layer.bias)
        assert bits(quick(tensor)) == bits(expected)


def test_gradients_get_the_layers_that_the_model_wrote(runs: list[bool]) -> None:
    """A model that differentiates something in a call does so as before."""
    plain = network()
    quick = quickened(plain)
    tensors = [torch.randn(2, 16, 9, 9, requires_grad=True) for _ in range(2)]
    tensors[1].data.copy_(tensors[0].data)
    plain(tensors[0]).sum().backward()
    quick(tensors[1]).sum().backward()
    assert tensors[0].grad is not None
    assert tensors[1].grad is not None
    assert bits(tensors[1].grad) == bits(tensors[0].grad)
    assert not any(runs)


def test_automatic_casts_are_as_before(runs: list[bool]) -> None:
    """A model that serves under autocast gets the dtypes that it asked for."""
    plain = network()
    quick = quickened(plain)
    tensor = torch.randn(2, 16, 9, 9)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert bits(quick(tensor)) == bits(plain(tensor))
    assert not any(runs)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_quickened_chain_pickles_scripts_traces_and_exports() -> None:
    """What models do with their modules at run time works with a quickened one."""
    plain = network()
    quick = quickened(plain)
    tensor = torch.randn(2, 16, 12, 12)
    copied = copy.deepcopy(quick)
    copied[0] = nn.Identity()  # type: ignore[operator]
    with torch.inference_mode():
        expected = plain(tensor)
        others = copies_of(quick, tensor)
        others["itself"] = quick
        others["symbolic"] = torch.fx.symbolic_trace(quick)
        given = {name: bits(other(tensor)) for name, other in others.items()}
        mapped = torch.func.vmap(quick)(tensor[None])[0]
    assert given == dict.fromkeys(others, bits(expected))
    torch.testing.assert_close(mapped, expected)
    operators = {
        str(node.target)
        for node in torch.export.export(quick, (tensor,)).graph.nodes
        if node.op == "call_function"
    }
    assert "aten.relu.default" in operators
    assert "aten.relu_.default" not in operators
