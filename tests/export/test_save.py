"""Versions as ``save`` writes them, and modules that it refuses."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.package.package_importer import PackageImporter

from tests.models.adds_one import AddsOne
from tests.models.digits import DigitClassifier
from tests.models.nested import ReadsItsFolder, TakesAnyName, Undecided
from tests.models.odd_results import Measures, TopTwo
from tests.models.own_tensor import Small
from tests.models.two_ways import TwoWays
from tests.models.with_closure import Closure
from tests.models.with_part import WithPart
from tests.models.with_state import (
    Numbers,
    ReadsFile,
    Tempered,
    Widened,
)
from tests.python_program import run_python
from tfs.core.dtype import FLOAT32
from tfs.core.errors import DataLoss, FailedPrecondition, InvalidArgument
from tfs.core.signature import Method, TensorSpec
from tfs.core.signature import Signature as ServedSignature
from tfs.core.version.version_layout import SAVED_FORMS
from tfs.core.version_directory import read_manifest, verify_files
from tfs.export import (
    Packaging,
    Signature,
    save,
    save_python,
)
from tfs.export.values import from_array, same


def test_every_form_that_can_be_named_is_written(tmp_path: Path) -> None:
    """What the command offers as a form, and what ``save`` writes, are the same."""
    with pytest.raises(InvalidArgument, match=f"use one of {', '.join(SAVED_FORMS)}$"):
        save(AddsOne(), torch.rand(2, 3), tmp_path, platform="nosuch")


def test_saved_version_is_complete_verified_and_gives_the_same_outputs(
    tmp_path: Path,
) -> None:
    """The archive alone, loaded hermetically, repeats the module bit for bit."""
    module = DigitClassifier()
    pixels = torch.rand(3, 64) * 16
    path = save(module, pixels, tmp_path, method="classify", labels=list("0123456789"))
    manifest = read_manifest(path)
    verify_files(path, manifest)
    assert manifest.platform == "torch_package"
    assert manifest.entry == {"package": "model", "resource": "model.pkl"}
    assert manifest.producer.torch == torch.__version__
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert type(loaded) is not DigitClassifier
    with torch.inference_mode():
        assert same(loaded(pixels), module.eval()(pixels))


def test_module_in_training_mode_is_saved_in_evaluation_mode_and_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Saving in the middle of training neither serves dropout nor ends training."""
    module = DigitClassifier().train()
    module.norm.eval()
    path = save(module, torch.rand(2, 64), tmp_path)
    assert module.training
    assert module.dropout.training
    assert not module.norm.training
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert not any(part.training for part in loaded.modules())
    assert "module_in_training_mode" in caplog.text


def test_examples_lie_where_the_signature_says(tmp_path: Path) -> None:
    """Probes and warm-up read the author's own values."""
    pixels = torch.rand(2, 64)
    path = save(DigitClassifier(), pixels, tmp_path)
    slot = read_manifest(path).signatures["serving_default"].examples["pixels"]
    data = Path(path, "examples.bin").read_bytes()
    assert slot.shape == (2, 64)
    assert data[slot.offset :][: 2 * 64 * 4] == pixels.numpy().tobytes()


def test_versions_are_numbered_on_and_never_overwritten(tmp_path: Path) -> None:
    """Without a number the next free one is taken; with one, only if it is free."""
    example = torch.rand(2, 64)
    (tmp_path / "7").mkdir()
    assert save(DigitClassifier(), example, tmp_path).endswith("/8")
    with pytest.raises(FailedPrecondition, match="never overwritten"):
        save(DigitClassifier(), example, tmp_path, 8)


def test_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    """A version appears whole or not at all."""
    module = DigitClassifier()
    module.add_module("dropout", Closure())
    with pytest.raises(InvalidArgument):
        save(module, torch.rand(2, 64), tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", ["program", "module"])
def test_program_of_torch_export_is_told_how_it_is_served(
    tmp_path: Path, form: str
) -> None:
    """It is a version but for its place; what was made from it cannot be saved again."""
    program = torch.export.export(nn.Linear(2, 2), (torch.rand(3, 2),))
    given = cast(nn.Module, program if form == "program" else program.module())
    with pytest.raises(InvalidArgument, match=r"torch\.export\.save\(program"):
        save(given, torch.rand(3, 2), tmp_path)


def test_further_signatures_call_other_methods(tmp_path: Path) -> None:
    """One version can answer several signatures, each by its own method."""
    path = save(
        TwoWays(),
        torch.rand(2, 3),
        tmp_path,
        signatures={
            "embed": Signature(torch.rand(2, 3), call="embed", output_names=["vector"])
        },
    )
    manifest = read_manifest(path)
    assert manifest.entry["methods"] == {"embed": "embed"}
    assert list(manifest.signatures["embed"].outputs) == ["vector"]


def test_model_that_depends_on_a_changed_global_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the archive would answer differently is found before it is committed."""
    from tests.models import with_global

    monkeypatch.setattr(with_global, "FACTOR", 3.0)
    with pytest.raises(DataLoss, match="global variable"):
        save(with_global.Scaled(), torch.rand(2, 2), tmp_path)
    assert os.listdir(tmp_path) == []


def test_assets_and_batching_parameters_are_part_of_the_version(
    tmp_path: Path,
) -> None:
    """Everything beside the archive is covered by the manifest's digests."""
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "vocabulary.txt").write_text("a b c")
    path = save(
        DigitClassifier(), torch.rand(2, 64), tmp_path / "base", assets=assets,
        packaging=Packaging(batching_parameters="max_batch_size { value: 8 }"),
    )  # fmt: skip
    files = read_manifest(path).files
    assert {"assets/vocabulary.txt", "batching_params.pbtxt"} <= files.keys()


def test_assets_that_are_no_folder_are_refused_before_the_model_is_written(
    tmp_path: Path,
) -> None:
    """Nobody waits for gigabytes of weights to hear of a slip; nothing is left behind."""
    module = DigitClassifier()
    module.cannot_be_saved = lambda: None  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match="assets must be a folder: nowhere"):
        save(module, torch.rand(2, 64), tmp_path, assets="nowhere")
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", ["traced", "scripted"])
def test_module_that_is_torchscript_already_is_saved_so(
    tmp_path: Path, form: str
) -> None:
    """Its methods are no Python functions, and tell their parameters all the same."""
    module = nn.Linear(3, 2)
    script: nn.Module = (
        torch.jit.trace(module, torch.rand(2, 3))  # type: ignore[no-untyped-call]
        if form == "traced"
        else torch.jit.script(module)
    )
    path = save(script, torch.rand(2, 3), tmp_path, platform="torchscript")
    signature = read_manifest(path).signatures["serving_default"]
    assert signature.inputs["input"].shape == (-1, 3)
    assert signature.outputs["output"].shape == (-1, 2)


def test_numpy_arrays_are_example_inputs_too(tmp_path: Path) -> None:
    """An array is one tensor, never a row of tensors."""
    pixels = torch.rand(2, 3).numpy()
    for example in (pixels, [pixels], {"x": pixels}):
        signature = read_manifest(save(AddsOne(), example, tmp_path)).signatures
        assert signature["serving_default"].inputs["x"].shape == (-1, 3)
    save(AddsOne(), pixels[:, ::-1], tmp_path)


def test_array_of_strings_is_an_example_input_too() -> None:
    """It is a string tensor, which the module gets as lists of bytes."""
    words = np.array([["a", "b"], ["c", "d"]])
    assert from_array(words) == [["a", "b"], ["c", "d"]]
    assert from_array(words.astype(object)) == [["a", "b"], ["c", "d"]]
    mixed = np.array([None, "a"])
    assert from_array(mixed) is mixed


def test_what_is_no_module_is_refused_with_the_way_for_it(tmp_path: Path) -> None:
    """Anything else has a form of its own."""
    for what, message in (
        ("net", r"str is no nn\.Module; .*save_python"),
        (AddsOne, r"pass a module of it, AddsOne\(\.\.\.\)"),
        (DigitClassifier().state_dict(), "weights alone cannot be called"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            save(what, torch.rand(2, 3), tmp_path)  # type: ignore[arg-type]


def test_file_of_the_working_directory_is_not_there_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server works elsewhere; the author's program may read it on."""
    (tmp_path / "factor.txt").write_text("2.0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="relative to the working directory"):
        save(ReadsFile("factor.txt"), torch.rand(2, 3), tmp_path / "base")
    assert Path("factor.txt").read_text() == "2.0"


def test_file_of_a_modules_own_folder_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    """A packaged module lies in no folder; its author learns what reads the archive."""
    with pytest.raises(InvalidArgument) as refused:
        save(ReadsItsFolder(), torch.rand(2, 3), tmp_path)
    assert 'resources={"tests/models/__init__.py": text}' in refused.value.message
    assert 'load_text("tests/models", "__init__.py")' in refused.value.message


def test_graph_of_a_module_with_its_own_names_in_and_out(tmp_path: Path) -> None:
    """``**`` inputs and a named tuple go into a graph, which has neither."""
    rows = {"left": torch.rand(2, 3), "right": torch.rand(2, 3)}
    path = save(TakesAnyName(), rows, tmp_path, platform="torch_export")
    manifest = read_manifest(path)
    assert manifest.entry == {"args": ["left", "right"]}
    (signature,) = manifest.signatures.values()
    assert list(signature.outputs) == ["mean", "deviation"]


def test_model_that_is_no_graph_is_refused_in_a_few_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What torch prints of a graph that it gave up is kept from the terminal."""
    with pytest.raises(InvalidArgument, match="Save it as torch_package"):
        save(Undecided(), torch.rand(2, 3), tmp_path, platform="torch_export")
    assert "def forward" not in capfd.readouterr().err


def test_strings_are_nothing_for_graphs(tmp_path: Path) -> None:
    """torch would speak of its own shapes."""
    with pytest.raises(
        InvalidArgument, match=r"'text' of Greets holds strings.*as torch_"
    ):
        save(Greets(), {"text": ["a", "b"]}, tmp_path, platform="torch_export")


class Greets(nn.Module):
    def forward(self, text: list[bytes]) -> torch.Tensor:
        return torch.tensor([len(each) for each in text])


class OtherInGraphs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x


def test_defaults_of_the_authors_program_are_not_those_of_servers(
    tmp_path: Path,
) -> None:
    """A model that leans on them would answer otherwise there, or not at all."""
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InvalidArgument, match=r"called torch\.set_default_dtype"):
            save(Widened(), torch.rand(2, 3, dtype=torch.float32), tmp_path)
        save(AddsOne(), torch.rand(2, 3), tmp_path)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        save(AddsOne(), torch.rand(2, 3, device="cpu"), tmp_path)


def test_graph_that_computes_otherwise_is_told_of_what_may_be_the_cause(
    tmp_path: Path,
) -> None:
    """The model is not at fault: torch's own parts take other ways through in graphs."""
    with pytest.raises(DataLoss, match=r"no fast path.* Saved as torch_package"):
        save(OtherInGraphs(), torch.rand(2, 3), tmp_path, platform="torch_export")


def test_input_that_cannot_be_left_out_is_found_before_callers_do(
    tmp_path: Path,
) -> None:
    """The example has rows of its own; what leaves it out gets the default as it is."""
    rows = {"x": torch.rand(2, 3), "heat": torch.ones(2)}
    defaults = {"heat": torch.ones(3)}
    with pytest.raises(InvalidArgument, match="leave out 'heat'"):
        save(
            Tempered(),
            Signature(rows, defaults=defaults, batched=False, dynamic={"heat": [0]}),
            tmp_path,
        )


def test_operator_that_is_registered_once_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    """Versions in one process could not have it each, and the archive not be tried."""
    from tests.models.with_operator import Tripled

    with pytest.raises(InvalidArgument, match=r"@torch\.library\.custom_op"):
        save(Tripled(), torch.rand(2, 3), tmp_path)


def test_parameters_that_were_never_used_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the example makes of them at random is nobody's training."""
    save(nn.Sequential(nn.LazyLinear(2)), torch.rand(2, 3), tmp_path)
    assert "event=lazy_parameters" in caplog.text
    assert "parameters=0.weight,0.bias" in caplog.text


def test_base_path_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written there is the version's own, however its path is spelled."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "servable.py"
    source.write_text(
        "class Doubles:\n    def predict(self, x):\n        return {'y': 2 * x}\n"
    )
    spec = TensorSpec(FLOAT32, (-1, 1))
    signature = ServedSignature(Method.PREDICT, {"x": spec}, {"y": spec})
    examples = {"x": torch.ones(2, 1)}
    paths = (
        save(AddsOne(), examples, "models/adds"),
        save_python(
            source,
            "models/doubles",
            signatures={"serving_default": signature},
            example_inputs=examples,
        ),
    )
    for path in paths:
        verify_files(path, read_manifest(path))
    assert [Path(path).parent.name for path in paths] == ["adds", "doubles"]


def test_file_of_the_authors_machine_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server may have it too, so it is no error."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    place = tmp_path / "factor.txt"
    place.write_text("2.0")
    save(ReadsFile(str(place)), torch.rand(2, 3), tmp_path / "base")
    assert f"files_outside_of_version paths={place} are" in caplog.text


def test_outputs_are_named_by_strings(tmp_path: Path) -> None:
    """A dict's number is no name that a client could ask for."""
    with pytest.raises(InvalidArgument, match="with the key 0"):
        save(Numbers(), torch.rand(2, 3), tmp_path)


def test_a_full_disk_is_an_error_and_does_not_end_the_program(tmp_path: Path) -> None:
    """torch alone would abort the process that trained the model, half a version left."""
    script = (
        "import os, resource, sys, torch, tfs.export\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "for platform in ('torch_package', 'torch_export', 'torchscript'):\n"
        "    base = os.path.join(sys.argv[1], platform)\n"
        "    net = torch.nn.Linear(300, 300).eval()\n"
        "    try:\n"
        "        tfs.export.save(net, torch.rand(2, 300), base, platform=platform)\n"
        "    except OSError as error:\n"
        "        print(platform, error.strerror, os.path.exists(base))\n"
    )
    done = run_python("-c", script, str(tmp_path))
    assert done.stdout.splitlines() == [
        "torch_package File too large False",
        "torch_export File too large False",
        "torchscript File too large False",
    ], done.stderr


def test_module_with_a_batched_part_is_saved_with_its_concurrency(
    tmp_path: Path,
) -> None:
    """The part is packaged with it, and the manifest says how to run it."""
    path = save(
        WithPart(), torch.rand(2, 3), tmp_path, packaging=Packaging(concurrency=4)
    )
    assert read_manifest(path).entry["concurrency"] == 4


@pytest.mark.parametrize(
    ("platform", "packaging", "words"),
    [
        ("torch_package", {"concurrency": 0}, "concurrency"),
        ("torch_package", {"concurrency": 1000}, "concurrency"),
        ("torch_export", {"concurrency": 2}, "runs one request at a time"),
        (
            "torch_package",
            {"batching_parameters": "max_batch_sise { value: 8 }"},
            "max_batch_sise",
        ),
    ],
)
def test_packaging_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, platform: str, packaging: dict[str, Any], words: str
) -> None:
    """A mistake shows here, not on the server; graphs have no part that could be joined."""
    place = tmp_path / "base"
    with pytest.raises(InvalidArgument, match=words):
        save(
            AddsOne(),
            torch.ones(2, 3),
            place,
            platform=platform,
            packaging=Packaging(**packaging),
        )
    assert not place.exists()


def test_a_file_that_was_edited_and_reloaded_is_saved_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook one edits, reloads and saves again; the old source is not the model's."""
    monkeypatch.syspath_prepend(tmp_path)
    net = "import edited_step\nfrom torch import nn\n\nclass Net(nn.Module):\n"
    net += "    def forward(self, x):\n        return edited_step.step(x)\n"
    (tmp_path / "edited_net.py").write_text(net)
    step = tmp_path / "edited_step.py"
    step.write_text("def step(x):\n    return x + 1\n")
    module = importlib.import_module("edited_net").Net()
    save(module, torch.rand(2, 3), tmp_path / "net")
    step.write_text("def step(x):\n    return x.abs() + 10\n")
    importlib.reload(importlib.import_module("edited_step"))
    path = save(module, torch.rand(2, 3), tmp_path / "net")
    assert "+ 10" in PackageImporter(f"{path}/model.pt").get_source("edited_step")


@pytest.mark.parametrize(
    ("module", "platform", "advice"),
    [
        (TopTwo(), "torch_export", "Return tensors, dicts and tuples"),
        (Measures(), "torchscript", "Pass the result of torch.jit.trace"),
    ],
    ids=["torch's-own-tuple", "dataclass"],
)
def test_results_that_a_form_cannot_hold_are_refused_with_advice(
    tmp_path: Path, module: nn.Module, platform: str, advice: str
) -> None:
    """What torch raises of them is of many kinds, and none says what to do."""
    with pytest.raises(InvalidArgument, match=advice):
        save(module, torch.rand(2, 3), tmp_path, platform=platform)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["buffer", "parameter", "attribute"])
@pytest.mark.parametrize("form", ["module", "scripted", "traced"])
def test_tensor_without_memory_is_refused_as_torchscript(
    tmp_path: Path, how: str, form: str
) -> None:
    """torch ends the process that would write it, and with it the trained model."""
    net: nn.Module = nn.Sequential(Small(how)).eval()
    if form == "scripted":
        net = torch.jit.script(net)
    elif form == "traced":
        net = torch.jit.trace(net, torch.rand(2, 4))  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidArgument, match=r"is a Scaled, a tensor that computes"):
        save(net, torch.rand(2, 4), tmp_path, platform="torchscript")


class Decodes(nn.Module):
    def forward(self, text: list[str]) -> torch.Tensor:
        return torch.tensor([len("".join(each)) for each in text])


def test_module_that_takes_bytes_for_text_is_told_to_decode_them(
    tmp_path: Path,
) -> None:
    """Clients send bytes, and most models of strings are written for text."""
    with pytest.raises(InvalidArgument, match="decode the bytes"):
        save(Decodes(), {"text": ["one", "three"]}, tmp_path)
