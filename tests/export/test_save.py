from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
import zipfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.package.package_importer import PackageImporter

from tests.models.adds_one import AddsOne
from tests.models.digits import DigitClassifier
from tests.models.nested import ReadsItsFolder, TakesAnyName, Undecided
from tests.models.two_ways import TwoWays
from tests.models.with_config import Configured
from tests.models.with_part import WithPart
from tests.models.with_resource import Blob
from tests.models.with_state import (
    Adapted,
    Counts,
    Differentiates,
    DifferentiatesInThreads,
    DifferentiatesOnServers,
    Halfway,
    Numbers,
    Overwrites,
    ReadsFile,
    Remembers,
    Tempered,
    Widened,
)
from tfs.core.dtype import FLOAT32
from tfs.core.errors import DataLoss, FailedPrecondition, InvalidArgument
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.version_directory import read_manifest, verify_files
from tfs.export import (
    DependencyReport,
    PackageRules,
    SignatureOptions,
    explain,
    save,
    save_python,
)
from tfs.export.values import from_array, same

ROOT = Path(__file__).resolve().parents[2]


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


class Closure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def test_value_that_cannot_be_pickled_is_in_the_tree_with_what_to_do(
    tmp_path: Path,
) -> None:
    """The author learns which values at which places, and how to write each."""
    module = nn.Sequential(nn.Linear(2, 2), Closure(), unsavable())
    with pytest.raises(InvalidArgument) as caught:
        save(module, torch.rand(2, 2), tmp_path)
    report = explain(module, PackageRules())
    assert not report.is_complete
    assert report.tree() in str(caught.value)
    tree = " ".join(report.tree().split())
    for place, why, advice in (
        (r"model\.1\.function", "a lambda", r"write `def name\(\.\.\.\):` at the top"),
        (r"model\.2\.lock", "lock object", "__getstate__ that drops it"),
        (r"model\.2\.held\['of'\]", "within another", r"functools\.partial\(times"),
        (r"model\.2\.library", "the module json", "instead of keeping it"),
        (r"model\.2\.names\.default_factory", "a lambda", r"`def name\(\.\.\.\):`"),
        (r"model\.2\.0", "a class within a function", "move class Local out of"),
    ):
        wanted = f"{place} CANNOT BE SAVED: [^├]*{why}[^├]* -> [^├]*{advice}"
        assert re.search(wanted, tree), tree
    assert "tests.export.test_save interned" in tree


def twice(x: torch.Tensor) -> torch.Tensor:
    """Is scripted, which makes something else than a function of it."""
    return x * 2


def unsavable() -> nn.Module:
    """Returns a module full of what has no name or belongs to this process."""

    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def times(x: torch.Tensor) -> torch.Tensor:
        return x * len(held)

    module = nn.Sequential(Local())
    held = {"of": times}
    names: dict[str, int] = defaultdict(lambda: 0)
    for name, value in (
        ("lock", threading.Lock()),
        ("held", held),
        ("library", json),
        ("names", names),
    ):
        setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    ("attribute", "why", "advice"),
    [
        ("weak", "a weak reference", "keep the object itself in weak"),
        ("script", "a scripted function", "call it by its name in forward"),
        ("layout", "torch.contiguous_format", "write it where it is used"),
        (r"_forward_hooks\[\d+\]", "a lambda", "register that as the hook"),
    ],
)
def test_advice_is_for_the_kind_of_value(attribute: str, why: str, advice: str) -> None:
    """What is no file and no lock is not told to be opened at its first use."""
    module = nn.Sequential()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(twice)
    for name, value in (
        ("weak", weakref.ref(module)),
        ("script", script),
        ("layout", torch.contiguous_format),
    ):
        setattr(module, name, value)
    module.register_forward_hook(lambda *_: None)
    tree = " ".join(explain(module, PackageRules()).tree().split())
    wanted = rf"model\.{attribute} CANNOT BE SAVED: [^├]*{why}[^├]* -> [^├]*{advice}"
    assert re.search(wanted, tree), tree


def test_object_of_a_library_is_to_be_left_out_whole() -> None:
    """What it keeps inside is not the author's to change, but for what he put there."""
    module = nn.Linear(2, 2)
    for name, value in (
        ("pool", ThreadPoolExecutor(1)),
        ("chosen", SimpleNamespace(act=lambda x: x)),
    ):
        setattr(module, name, value)
    unsaved = {
        each.path: each.advice for each in explain(module, PackageRules()).unsaved
    }
    assert list(unsaved) == ["model.pool", "model.chosen.act"]
    assert "leave pool out of what model saves" in unsaved["model.pool"]


@pytest.mark.parametrize("form", ["program", "module"])
def test_program_of_torch_export_is_told_how_it_is_served(
    tmp_path: Path, form: str
) -> None:
    """It is a version but for its place; what was made from it cannot be saved again."""
    program = torch.export.export(nn.Linear(2, 2), (torch.rand(3, 2),))
    given = cast(nn.Module, program if form == "program" else program.module())
    with pytest.raises(InvalidArgument, match=r"torch\.export\.save\(program"):
        save(given, torch.rand(3, 2), tmp_path)


@pytest.mark.parametrize("rule", ["intern", "mock"])
@pytest.mark.parametrize("glob", ["torch.**", "torch", "json"])
def test_rule_about_what_servers_run_on_is_refused(rule: str, glob: str) -> None:
    """A rule that torch.package would ignore is no rule to accept in silence."""
    with pytest.raises(InvalidArgument, match=f"{rule} '{re.escape(glob)}' has no eff"):
        PackageRules(mock=[glob]) if rule == "mock" else PackageRules(intern=[glob])


def test_further_signatures_call_other_methods(tmp_path: Path) -> None:
    """One version can answer several signatures, each by its own method."""
    path = save(
        TwoWays(),
        torch.rand(2, 3),
        tmp_path,
        signatures={
            "embed": SignatureOptions(
                torch.rand(2, 3), call="embed", output_names=["vector"]
            )
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


def test_script_that_trains_can_export_its_own_class(tmp_path: Path) -> None:
    """A class of __main__ is packaged without the statements that train it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "from torch import nn\n"
        "import tfs.export\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + 1\n"
        "print('training')\n"
        "print(tfs.export.save(Net(), torch.rand(2, 2), sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "base")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.splitlines().count("training") == 1
    with zipfile.ZipFile(tmp_path / "base" / "1" / "model.pt") as archive:
        source = archive.read("archive/__main__.py").decode()
    assert "class Net" in source
    assert "training" not in source


def test_script_can_wrap_what_came_out_of_a_package(tmp_path: Path) -> None:
    """Its class is packaged without the script's statements, however importers say."""
    inner = save(DigitClassifier().eval(), torch.rand(2, 64), tmp_path / "inner")
    script = tmp_path / "wrap.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "import tfs.export\n"
        "from torch import nn\n"
        "from torch.package import PackageImporter\n"
        "importer = PackageImporter(sys.argv[1] + '/model.pt')\n"
        "class Twice(nn.Module):\n"
        "    def __init__(self, inner):\n"
        "        super().__init__()\n"
        "        self.inner = inner\n"
        "    def forward(self, pixels):\n"
        "        return self.inner(pixels) * 2\n"
        "print('wrapping')\n"
        "inner = importer.load_pickle('model', 'model.pkl')\n"
        "x = torch.rand(2, 64)\n"
        "for importers in ([], [importer]):\n"
        "    tfs.export.save(Twice(inner), x, sys.argv[2], importers=importers)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(inner), str(tmp_path / "base")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.splitlines() == ["wrapping"]
    for version in ("1", "2"):
        with zipfile.ZipFile(tmp_path / "base" / version / "model.pt") as archive:
            source = archive.read("archive/__main__.py").decode()
        assert "class Twice" in source
        assert "wrapping" not in source


def test_library_without_a_decision_is_explained_in_a_tree(tmp_path: Path) -> None:
    """The message says who imports the library and which options there are."""
    from tests.models.with_libraries import Plotting

    with pytest.raises(InvalidArgument) as caught:
        save(Plotting(), torch.rand(2, 2), tmp_path)
    text = caught.value.message
    assert "hypothesis (imported by tests.models.with_libraries)" in text
    assert 'mock=["hypothesis.**"]' in text
    assert "└─ " in text


def test_mocked_library_is_a_stub_in_the_archive(tmp_path: Path) -> None:
    """A dependency that predicting does not use can be mocked away."""
    from tests.models.with_libraries import Plotting

    reports: list[DependencyReport] = []
    save(
        Plotting(), torch.rand(2, 2), tmp_path, mock=["hypothesis.**"],
        report=reports.append,
    )  # fmt: skip
    module = reports[0].modules["hypothesis"]
    assert (module.action.value, module.reason) == ("mocked", "you said so")
    assert "hypothesis  mocked: you said so" in str(reports[0])


def test_mock_that_is_needed_is_found_before_committing(tmp_path: Path) -> None:
    """Loading the archive back shows that a mock was one too many."""
    from tests.models.with_libraries import UsesNumpy

    mock = ["numpy.**", "hypothesis.**"]
    with pytest.raises(InvalidArgument, match="works here but not from its package"):
        save(UsesNumpy(), torch.rand(2, 2), tmp_path, mock=mock)


def test_resource_is_readable_by_the_packaged_model(tmp_path: Path) -> None:
    """Text put into the archive is found through torch_package_importer."""
    from tests.models.with_resource import Vocabulary

    path = save(
        Vocabulary(), torch.ones(2, 1), tmp_path,
        resources={"words.txt": "a\nb\nc\n"},
    )  # fmt: skip
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert loaded(torch.ones(2, 1)).tolist() == [[3], [3]]


def test_module_that_needs_its_resources_can_be_called_before(tmp_path: Path) -> None:
    """What the archive will hold is readable while the module is tried."""
    path = save(
        Blob(),
        torch.ones(2, 3),
        tmp_path,
        resources={"words.txt": "one two", "bin/data": b"\0\1\2"},
    )
    importer = PackageImporter(f"{path}/model.pt")
    loaded = importer.load_pickle("model", "model.pkl")
    assert torch.equal(loaded(torch.ones(1, 1)), torch.tensor([[5.0]]))
    assert "torch_package_importer" not in sys.modules


def test_include_adds_a_module_that_nothing_imports_visibly(tmp_path: Path) -> None:
    """Dynamic imports are found by nobody; their author names them."""
    from tests.models.with_dynamic_import import Dynamic

    with pytest.raises(InvalidArgument, match="if one is missing, include it"):
        save(Dynamic(), torch.rand(2, 2), tmp_path)
    path = save(
        Dynamic(), torch.rand(2, 2), tmp_path, include=["tests.models.with_global"]
    )
    with zipfile.ZipFile(f"{path}/model.pt") as archive:
        assert "archive/tests/models/with_global.py" in archive.namelist()


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the author's own modules, importable and nothing else."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for name in ("own_net", "own_heads", "own_library"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / "own_heads.py").write_text("def head(x):\n    return x + 5\n")
    (folder / "own_net.py").write_text(
        "from importlib import import_module, util\n"
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one = torch.nn.Parameter(torch.ones(1))\n"
        "    def forward(self, x):\n"
        "        assert util.find_spec('torch') and import_module('json')\n"
        "        return import_module('own_' + 'heads').head(x) * self.one\n"
    )
    return folder


def _own_net() -> nn.Module:
    net: nn.Module = importlib.import_module("own_net").Net()
    return net


def test_importlib_looks_into_the_archive(tmp_path: Path, own_code: Path) -> None:
    """A name made up at run time is found there, without the author's folders.

    Nor does torch complain of its own ways to whoever loads a package first.
    """
    path = save(_own_net(), torch.rand(2, 3), tmp_path, include=["own_heads"])
    here = f"""
import torch
from tfs.core.dtype import FLOAT32
from tfs.core.servable_id import ServableId
from tfs.core.tensor_view import TensorView
from tfs.core.version_directory import read_manifest
from tfs.runtime.guest.guest_model import VersionFiles, load_guest_model
from tfs.runtime.guest.model_source import ModelSource
signatures = read_manifest({path!r}).signatures
source = ModelSource(ServableId("net", 1), {path!r}, "torch_package", {{}}, signatures)
model = load_guest_model(source, VersionFiles.stage(source))
ones = TensorView(FLOAT32, (1, 3), torch.ones(1, 3).numpy().tobytes())
with torch.inference_mode():
    sums = model.call("serving_default", {{"x": ones}})["output"]
assert torch.frombuffer(bytearray(sums.data), dtype=torch.float32).tolist() == [6.0] * 3
"""
    quietly = "-Werror:TypedStorage is deprecated"
    subprocess.run(
        [sys.executable, quietly, "-c", here], cwd=ROOT, check=True, timeout=200
    )


def test_module_that_has_a_name_of_pythons_goes_into_the_archive(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has Python's own module of that name, and not the author's."""
    (own_code / "this.py").write_text(
        "import torch\n"
        "class Halves(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x / 2\n"
    )
    monkeypatch.setitem(sys.modules, "this", types.ModuleType("this"))
    del sys.modules["this"]
    module = importlib.import_module("this").Halves()
    path = save(module, torch.rand(2, 3), tmp_path)
    with zipfile.ZipFile(f"{path}/model.pt") as archive:
        assert "archive/this.py" in archive.namelist()


def test_pythons_modules_are_there_however_they_are_imported(
    tmp_path: Path, own_code: Path
) -> None:
    """What no import statement names is in no list of an archive's."""
    (own_code / "own_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        rounded = __import__('decimal').Decimal(1)\n"
        "        namespace = {}\n"
        "        exec('import colorsys, torch.nn.utils as utils', namespace)\n"
        "        assert namespace['utils'].weight_norm\n"
        "        return x * float(rounded)\n"
    )
    save(_own_net(), torch.rand(2, 3), tmp_path)


def test_module_that_is_nowhere_is_named_whole(tmp_path: Path, own_code: Path) -> None:
    """The error names the whole module, not only a parent that the archive has."""
    folder = own_code / "own_data"
    folder.mkdir()
    for name in ("__init__", "heads"):
        (folder / f"{name}.py").touch()
    (folder / "net.py").write_text(
        "from importlib import import_module, resources\n"
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        import_module('.heads', __package__)\n"
        "        resources.files('own_data.texts')\n"
        "        return x\n"
    )
    (folder / "texts").mkdir()
    for each in [name for name in sys.modules if name.startswith("own_data")]:
        del sys.modules[each]
    net = importlib.import_module("own_data.net").Net()
    with pytest.raises(
        InvalidArgument, match=r"'own_data\.heads' in the arch.*include"
    ):
        save(net, torch.rand(2, 3), tmp_path)
    with pytest.raises(InvalidArgument, match=r'\{"own_data/texts/FILE": text\}'):
        save(net, torch.rand(2, 3), tmp_path, include=["own_data.heads"])


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files")
@pytest.mark.parametrize(
    "read",
    [
        "resources.files(__package__).joinpath('size.txt').read_text()",
        "(importlib.resources.files(__name__) / 'size.txt').read_bytes()",
        "resources.read_text('own_data', 'size.txt')",
        "next(p for p in resources.files('own_data').iterdir()"
        " if p.name.endswith('txt') and p.is_file()).read_text()",
        "pkgutil.get_data(__name__, 'size.txt')",
        "resources.files('own_data').joinpath('size.txt').read_text()",
    ],
)
@pytest.mark.parametrize("file", ["__init__", "net"])
def test_data_of_a_packaged_module_is_found_by_pythons_own_ways(
    tmp_path: Path,
    own_code: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: str,
    file: str,
) -> None:
    """Code that reads its configuration so needs no other way to do it on a server."""
    if file == "net" and "__name__" in read:
        read = read.replace("__name__", "__package__")
    folder = own_code / "own_data"
    folder.mkdir()
    (folder / "size.txt").write_text("2")
    (folder / "__init__.py").touch()
    (folder / f"{file}.py").write_text(
        "import importlib.resources\n"
        "import pkgutil\n"
        "from importlib import resources\n"
        "import torch\n"
        f"SIZE = int({read})\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * SIZE\n"
    )
    name = "own_data" if file == "__init__" else "own_data.net"
    for each in ("own_data", "own_data.net"):
        monkeypatch.setitem(sys.modules, each, types.ModuleType(each))
        del sys.modules[each]
    module = importlib.import_module(name).Net()
    with pytest.raises(InvalidArgument, match=r"pass resources=.* to save$|StopIter"):
        save(module, torch.rand(2, 3), tmp_path)
    save(module, torch.rand(2, 3), tmp_path, resources={"own_data/size.txt": "2"})


def test_own_code_outside_of_the_archive_is_out_of_reach(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server has the author's folders, so the check before a commit has not either."""

    class Lazy(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            sys.modules["own_lazily_loaded"] = self
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "own_lazy", Lazy("own_lazy"))
    monkeypatch.delattr(sys.modules["own_lazy"], "__spec__")
    before = dict(sys.modules)
    with pytest.raises(
        InvalidArgument, match=r"'own_heads' \(it is your own code.*\)$"
    ):
        save(_own_net(), torch.rand(2, 3), tmp_path)
    assert sys.modules["own_net"] is not before.get("own_net")
    assert before.keys() <= sys.modules.keys()
    assert "own_lazily_loaded" not in sys.modules
    assert not any("Refuser" in type(each).__name__ for each in sys.meta_path)
    (own_code / "own_heads.py").write_text(
        "from importlib import util\n"
        "def head(x):\n"
        "    return x + len(util.find_spec('own_heads').name)\n"
    )
    sys.modules.pop("own_heads")
    importlib.invalidate_caches()
    with pytest.raises(InvalidArgument, match=r"'own_heads' \(it is in the archive"):
        save(_own_net(), torch.rand(2, 3), tmp_path, include=["own_heads"])


def test_authors_own_file_may_be_called_model(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what most people call it; the archive's own package makes room for it."""
    (own_code / "model.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(3, 2)\n"
    )
    spec = importlib.util.find_spec("model")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as imported:
        imported.setitem(sys.modules, "model", source)
        spec.loader.exec_module(source)
        path = save(source.Model(), torch.rand(2, 3), tmp_path / "base")
        resources = {"words.txt": "a"}
        with pytest.raises(InvalidArgument, match=r'"resources/words\.txt"'):
            save(source.Model(), torch.rand(2, 3), tmp_path, resources=resources)
    entry = read_manifest(path).entry
    assert entry["package"] == "packaged_model"
    importer = PackageImporter(f"{path}/model.pt")
    loaded = importer.load_pickle("packaged_model", "model.pkl")
    again = save(loaded, torch.rand(2, 3), tmp_path / "base")
    assert read_manifest(again).entry == entry


def test_extern_own_code_may_import_more_of_it(tmp_path: Path, own_code: Path) -> None:
    """Who says that servers have a library has said so of all that it needs."""
    library = own_code / "own_library"
    library.mkdir()
    (library / "__init__.py").write_text("")
    (library / "plus.py").write_text("def plus(x):\n    return x + 1\n")
    (library / "late.py").write_text(
        "def late(x):\n"
        "    from own_library.plus import plus\n"
        "    import own_heads\n"
        "    return own_heads.head(plus(x))\n"
    )
    (own_code / "own_net.py").write_text(
        "import torch\n"
        "from own_library.late import late\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return late(x)\n"
    )
    path = save(_own_net(), torch.rand(2, 3), tmp_path, extern=["own_library.**"])
    assert "serving_default" in read_manifest(path).signatures


def test_imported_object_can_be_exported_again(tmp_path: Path) -> None:
    """A model loaded from one package goes into another, with that package's code."""
    module = DigitClassifier()
    pixels = torch.rand(2, 64)
    first = save(module, pixels, tmp_path)
    loaded = PackageImporter(f"{first}/model.pt").load_pickle("model", "model.pkl")
    with torch.no_grad():
        loaded.head.bias.add_(1)
    second = save(loaded, pixels, tmp_path)
    again = PackageImporter(f"{second}/model.pt").load_pickle("model", "model.pkl")
    with torch.inference_mode():
        assert same(again(pixels), loaded(pixels))


def test_unzipped_edited_and_zipped_archive_loads(tmp_path: Path) -> None:
    """Packages are made to be opened: source edited by hand is what runs."""
    path = save(AddsOne(), torch.ones(2, 3), tmp_path)
    edited = tmp_path / "edited.pt"
    with (
        zipfile.ZipFile(f"{path}/model.pt") as old,
        zipfile.ZipFile(edited, "w") as new,
    ):
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, data.replace(b"x + 1", b"x + 5"))
    loaded = PackageImporter(str(edited)).load_pickle("model", "model.pkl")
    assert loaded(torch.zeros(1)).tolist() == [5]


def test_explain_writes_nothing(tmp_path: Path) -> None:
    """The tree can be had before anything is exported."""
    report = explain(DigitClassifier(), PackageRules())
    assert not report.unresolved
    assert "tests.models.digits  interned" in report.tree()


def test_assets_and_batching_parameters_are_part_of_the_version(
    tmp_path: Path,
) -> None:
    """Everything beside the archive is covered by the manifest's digests."""
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "vocabulary.txt").write_text("a b c")
    path = save(
        DigitClassifier(), torch.rand(2, 64), tmp_path / "base", assets=assets,
        batching_parameters="max_batch_size { value: 8 }",
    )  # fmt: skip
    files = read_manifest(path).files
    assert {"assets/vocabulary.txt", "batching_params.pbtxt"} <= files.keys()


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
    assert explain(module, PackageRules()).is_complete


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_part_is_named_with_the_way_out(tmp_path: Path) -> None:
    """torch.package does not take TorchScript; the message says what does."""
    traced: nn.Module = torch.jit.trace(AddsOne(), torch.ones(3))  # type: ignore[no-untyped-call]
    module = nn.Sequential(nn.Linear(3, 3), traced)
    with pytest.raises(InvalidArgument, match=r"(?s)model\.1 = TorchScript.*platform="):
        save(module, torch.rand(2, 3), tmp_path)


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
        signatures={"again": SignatureOptions(torch.rand(2, 3), call="again")},
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
        save(Tempered(), rows, tmp_path, defaults=defaults, batched=False,
             dynamic={"heat": [0]})  # fmt: skip


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
    signature = Signature(Method.PREDICT, {"x": spec}, {"y": spec})
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
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    place = tmp_path / "factor.txt"
    place.write_text("2.0")
    save(ReadsFile(str(place)), torch.rand(2, 3), tmp_path / "base")
    assert f"files_outside_of_version paths={place} are" in caplog.text


def test_outputs_are_named_by_strings(tmp_path: Path) -> None:
    """A dict's number is no name that a client could ask for."""
    with pytest.raises(InvalidArgument, match="with the key 0"):
        save(Numbers(), torch.rand(2, 3), tmp_path)


def test_two_different_modules_of_one_name_are_refused(tmp_path: Path) -> None:
    """An archive holds one file per name; the wrong one must not win silently."""
    path = save(AddsOne(), torch.rand(2, 3), tmp_path)
    edited = tmp_path / "edited.pt"
    with (
        zipfile.ZipFile(f"{path}/model.pt") as old,
        zipfile.ZipFile(edited, "w") as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info).replace(b"x + 1", b"x + 5"))
    parts = [
        PackageImporter(str(place)).load_pickle("model", "model.pkl")
        for place in (f"{path}/model.pt", f"{path}/model.pt", edited)
    ]
    report = explain(nn.Sequential(*parts[:2]), PackageRules())
    assert "code of the package it was loaded from" in report.tree()
    save(nn.Sequential(*parts[:2]), torch.rand(2, 3), tmp_path)
    with pytest.raises(InvalidArgument, match="two different modules called"):
        save(nn.Sequential(*parts), torch.rand(2, 3), tmp_path)


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
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "torch_package File too large False",
        "torch_export File too large False",
        "torchscript File too large False",
    ], done.stderr


def test_batching_parameters_are_read_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """A typing mistake in them shows here, not on the server."""
    with pytest.raises(InvalidArgument, match="max_batch_sise"):
        save(
            AddsOne(), torch.rand(2, 3), tmp_path / "base",
            batching_parameters="max_batch_sise { value: 8 }",
        )  # fmt: skip
    assert not (tmp_path / "base").exists()


def test_module_with_a_batched_part_is_saved_with_its_concurrency(
    tmp_path: Path,
) -> None:
    """The part is packaged with it, and the manifest says how to run it."""
    path = save(WithPart(), torch.rand(2, 3), tmp_path, concurrency=4)
    assert read_manifest(path).entry["concurrency"] == 4


@pytest.mark.parametrize(
    ("platform", "concurrency"),
    [("torch_package", 0), ("torch_package", 1000), ("torch_export", 2)],
)
def test_concurrency_that_cannot_be_is_refused(
    tmp_path: Path, platform: str, concurrency: int
) -> None:
    """Graphs have no part that could be joined."""
    with pytest.raises(InvalidArgument):
        save(
            AddsOne(),
            torch.ones(2, 3),
            tmp_path / "base",
            platform=platform,
            concurrency=concurrency,
        )
    assert not (tmp_path / "base").exists()
