"""Convolutions with their weights in blocks: the same bits, and never old weights."""

from __future__ import annotations

import copy
import gc
import mmap
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.runtime.guest.bits import bits, images
from tests.runtime.guest.module_copies import copies_of
from tfs.core.servable_id import ServableId
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.runtime.guest.fast_layers import packed_convolutions
from tfs.runtime.guest.fast_layers.layer_chains import quicken_chains
from tfs.runtime.guest.fast_layers.packed_convolutions import (
    KEPT,
    PackedWeight,
    quicken_convolutions,
)
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.torch_package import open_package
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.weights.weight_places import by_address
from tfs.runtime.inline.inline_interpreter import InlineInterpreter

pytestmark = pytest.mark.skipif(
    not torch._C._has_mkldnn, reason="this torch has no oneDNN"
)


def layer(**settings: object) -> nn.Conv2d:
    """Returns a layer of 576 KB."""
    torch.manual_seed(1)
    return nn.Conv2d(128, 128, 3, **{"padding": 1, **settings})  # type: ignore[arg-type]


def mapped(model: nn.Module, *, is_quickened: bool = True) -> nn.Module:
    """Returns a copy whose weights lie in a sealed file, quickened."""
    model = copy.deepcopy(model)
    memory = b"".join(
        parameter.detach().numpy().tobytes() for parameter in model.parameters()
    )
    fd = new_memfd("weights")
    with open(fd, "wb", closefd=False) as file:
        file.write(memory)
    sealed = SealedFile.seal(fd)
    mapping: mmap.mmap = sealed.map()
    sealed.close()
    offset = 0
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.data = torch.frombuffer(
            mapping, dtype=torch.float32, count=parameter.numel(), offset=offset
        ).view(parameter.shape)
        offset += parameter.nbytes
    if is_quickened:
        quicken_convolutions(model, by_address(lambda: [mapping]))
    return model


def saved(folder: Path) -> ModelSource:
    """Writes a version with one layer; returns how it is loaded."""
    save(layer().eval(), torch.randn(2, 128, 20, 20), folder / "conv", version=1)
    path = str(folder / "conv" / "1")
    manifest = read_manifest(path)
    return ModelSource(
        ServableId("conv", 1),
        path,
        manifest.platform,
        manifest.entry,
        manifest.signatures,
    )


def kept(module: nn.Module) -> bool:
    """Tells whether a quickened layer keeps its weights in blocks."""
    packed = vars(module)[KEPT]
    assert isinstance(packed, PackedWeight)
    return packed.is_kept


@pytest.mark.parametrize(
    "settings",
    [{}, {"bias": False, "stride": (2, 1)}, {"padding": (2, 0), "dilation": 2}],
    ids=str,
)
def test_packed_layer_returns_the_bits_and_strides_of_a_plain_one(
    settings: dict[str, object],
) -> None:
    """An answer is torch's, in the first call of a shape and in those after it."""
    plain = layer(**settings)
    quick = mapped(plain)
    with torch.inference_mode():
        for shape in ((1, 128, 20, 21), (5, 128, 14, 13), (1, 128, 20, 21)):
            for tensor in (torch.randn(shape), images(shape), torch.randn(shape)):
                expected, given = plain(tensor), quick(input=tensor)
                assert bits(given) == bits(expected)
                assert given.stride() == expected.stride()
                assert kept(quick)


def test_further_calls_go_to_the_kernel_that_takes_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a layer keeps is what it is computed with, once it was compared."""
    quick = mapped(layer())
    tensor = torch.randn(1, 128, 20, 20)
    with torch.inference_mode():
        expected = quick(tensor)
        monkeypatch.setattr(packed_convolutions, "_conv2d", None)
        assert bits(quick(tensor)) == bits(expected)


def test_calls_at_the_same_time_answer_to_the_bit() -> None:
    """Models that take several requests at once share what a layer keeps."""
    plain = layer()
    quick = mapped(plain)
    tensors = [torch.randn(1, 128, 13 + index % 2, 13) for index in range(12)]

    def call(tensor: torch.Tensor) -> list[int]:
        with torch.inference_mode():
            return bits(quick(tensor))

    with torch.inference_mode():
        expected = [bits(plain(tensor)) for tensor in tensors]
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(call, tensors)) == expected
    assert kept(quick)


def negate(model: nn.Conv2d) -> None:
    model.weight.data.neg_()


def replace_weight(model: nn.Conv2d) -> None:
    model.weight = nn.Parameter(-model.weight, requires_grad=False)


def point_elsewhere(model: nn.Conv2d) -> None:
    model.weight.data = -model.weight.data


def change_in_place(model: nn.Conv2d) -> None:
    model.weight.mul_(-1)


def change_stride(model: nn.Conv2d) -> None:
    model.stride = (2, 2)


def change_borders(model: nn.Conv2d) -> None:
    model.padding_mode = "circular"
    model._reversed_padding_repeated_twice = [1, 1, 1, 1]


def drop_bias(model: nn.Conv2d) -> None:
    model.bias = None


CHANGES = (
    negate,
    replace_weight,
    point_elsewhere,
    change_in_place,
    change_stride,
    change_borders,
    drop_bias,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_layer_that_is_changed_answers_by_what_it_was_changed_to(
    change: Callable[[nn.Conv2d], None],
) -> None:
    """No change of a layer is overlooked, by whatever alias its weights are written."""
    plain, tensor = layer(), torch.randn(1, 128, 20, 20)
    quick = mapped(plain)
    assert isinstance(quick, nn.Conv2d)
    with torch.inference_mode():
        quick(tensor)
        assert kept(quick)
    with torch.no_grad():
        change(plain)
        change(quick)
    with torch.inference_mode():
        assert bits(quick(tensor)) == bits(plain(tensor))
        assert bits(quick(tensor)) == bits(plain(tensor))
    assert not kept(quick)


def test_bias_that_is_written_to_is_added_as_it_is_now() -> None:
    """Nothing of a bias is kept."""
    plain, tensor = layer(), torch.randn(1, 128, 20, 20)
    quick = mapped(plain)
    assert isinstance(quick, nn.Conv2d)
    with torch.inference_mode():
        quick(tensor)
        for each in (plain, quick):
            assert each.bias is not None
            each.bias.data.add_(1)
        assert bits(quick(tensor)) == bits(plain(tensor))


def test_weights_elsewhere_than_in_the_file_are_left_alone() -> None:
    """Weights whose changes nobody would notice are never copied."""
    on_heap = layer()
    quicken_convolutions(on_heap, lambda storage: None)
    assert KEPT not in vars(on_heap)
    moved = mapped(layer())
    assert isinstance(moved, nn.Conv2d)
    moved.weight.data = moved.weight.data.clone()
    with torch.inference_mode():
        moved(torch.randn(1, 128, 20, 20))
    assert not kept(moved)


def test_pages_written_to_before_the_first_call_are_left_alone() -> None:
    """A version that works on its weights while it loads has pages of its own."""
    quick = mapped(layer())
    assert isinstance(quick, nn.Conv2d)
    quick.weight.data[0, 0, 0, 0] = 1.0
    with torch.inference_mode():
        quick(torch.randn(1, 128, 20, 20))
    assert not kept(quick)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(128, 20, 20),  # one image without a batch
        torch.randn(1, 128, 12, 12),  # few elements
        torch.randn(1, 128, 20, 20).to(memory_format=torch.channels_last),
        torch.randn(1, 128, 20, 21).transpose(2, 3),
        torch.randn(0, 128, 20, 20),
    ],
    ids=("no batch", "elements", "channels last", "transposed", "no rows"),
)
def test_images_that_torch_computes_otherwise_go_to_torch(tensor: torch.Tensor) -> None:
    """What another kernel is for goes there: values and strides."""
    plain = layer()
    quick = mapped(plain)
    with torch.inference_mode():
        expected, given = plain(tensor), quick(tensor)
    assert bits(given) == bits(expected)
    assert given.stride() == expected.stride()
    assert not kept(quick)


def test_gradients_get_the_operators_that_the_model_wrote() -> None:
    """A model that differentiates something in a call does so as before."""
    quick = mapped(layer())
    tensor = torch.randn(1, 128, 20, 20, requires_grad=True)
    quick(tensor).sum().backward()
    assert tensor.grad is not None
    assert not kept(quick)


def test_another_answer_than_torchs_is_given_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where kernels differ in a single bit, the layer is torch's for good."""
    plain, tensor = layer(), torch.randn(1, 128, 20, 20)
    quick = mapped(plain)
    operators = packed_convolutions._operators

    class Other:
        conv2d_prepack = operators.conv2d_prepack

        @staticmethod
        def conv2d_run(images: torch.Tensor, context: object) -> torch.Tensor:
            made: torch.Tensor = operators.conv2d_run(images, context)
            made.view(torch.int32)[0, 0, 0, 0] ^= 1
            return made

    monkeypatch.setattr(packed_convolutions, "_operators", Other)
    with torch.inference_mode():
        assert bits(quick(tensor)) == bits(plain(tensor))
        assert not kept(quick)
        assert bits(quick(tensor)) == bits(plain(tensor))


@pytest.mark.filterwarnings("ignore:TF32")
def test_onednn_that_is_turned_off_stays_off() -> None:
    """A program that wants other kernels gets them."""
    plain, tensor = layer(), torch.randn(1, 128, 20, 20)
    quick = mapped(plain)
    with torch.inference_mode():
        quick(tensor)
        with torch.backends.mkldnn.flags(enabled=False):
            assert bits(quick(tensor)) == bits(plain(tensor))


def test_subclasses_and_replaced_methods_and_few_weights_are_left_alone() -> None:
    """Only what is known to convolve as torch's module does is quickened."""

    class Own(nn.Conv2d):
        pass

    replaced = layer()
    replaced.forward = lambda input: input  # type: ignore[method-assign]  # noqa: A006
    model = nn.ModuleList([Own(128, 128, 3), nn.Conv2d(8, 8, 3), replaced])
    before = [set(vars(module)) for module in model]
    quickened = mapped(model)
    assert isinstance(quickened, nn.ModuleList)
    assert [set(vars(module)) for module in quickened] == before


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_quickened_module_pickles_scripts_and_traces_without_what_it_keeps() -> None:
    """What models do with their modules at run time works with a quickened one."""
    plain = nn.Sequential(layer())
    quick = mapped(plain)
    tensor = torch.randn(1, 128, 20, 20)
    with torch.inference_mode():
        expected = quick(tensor)
    assert kept(quick[0])  # type: ignore[index]
    copied = copy.deepcopy(quick)
    assert not kept(copied[0])  # type: ignore[index]
    for name, made in copies_of(quick, tensor).items():
        with torch.inference_mode():
            assert bits(made(tensor)) == bits(expected), name
    with torch.inference_mode():
        assert bits(copied(tensor)) == bits(expected)
    assert not kept(copied[0])  # type: ignore[index]


def test_layer_in_a_chain_is_packed_as_well() -> None:
    """What layers gain does not end what chains gain."""
    plain = nn.Sequential(layer(bias=False), nn.ReLU(), layer(), nn.Sigmoid()).eval()
    quick = mapped(plain)
    quicken_chains(quick)
    tensor = torch.randn(1, 128, 20, 20)
    with torch.inference_mode():
        expected = plain(tensor)
        for _ in range(3):
            assert bits(quick(tensor)) == bits(expected)
    assert kept(quick[0])  # type: ignore[index]
    assert kept(quick[2])  # type: ignore[index]


def test_second_copy_goes_with_the_module() -> None:
    """Who drops a model drops all that its layers keep."""
    quick = mapped(layer())
    with torch.inference_mode():
        quick(torch.randn(1, 128, 20, 20))
    assert kept(quick)
    packed, module = weakref.ref(vars(quick)[KEPT]), weakref.ref(quick)
    del quick
    gc.collect()
    assert module() is None
    assert packed() is None


@pytest.mark.parametrize("packs", [False, True])
def test_interpreter_packs_weights_only_if_told(
    packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second copy of weights is its owner's choice; workers never make one."""
    told: list[nn.Module] = []
    monkeypatch.setattr(
        "tfs.runtime.guest.platforms.torch_package.quicken_convolutions",
        lambda model, find_offset: told.append(model),
    )
    source = saved(tmp_path)
    interpreter = InlineInterpreter(packs_weights=packs)
    interpreter.start()
    try:
        interpreter.load(source)
    finally:
        interpreter.close()
    assert len(told) == packs


def test_packaged_weights_are_found_in_their_file(tmp_path: Path) -> None:
    """The weights of a package lie where changes of them are seen."""
    source = saved(tmp_path)
    files = VersionFiles.stage(source)
    importer = open_package(files["model.pt"], "test")
    model = importer.load_pickle(
        source.text("package", "model"), source.text("resource", "model.pkl")
    )
    quicken_convolutions(model, by_address(importer.zip_reader.mappings))
    with torch.inference_mode():
        model(torch.randn(1, 128, 20, 20))
    packed = [vars(each)[KEPT] for each in model.modules() if KEPT in vars(each)]
    assert [each.is_kept for each in packed] == [True]
    files.close()
