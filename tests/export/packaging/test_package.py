"""What goes into a package and what stays out: the author's code, libraries, resources."""

from __future__ import annotations

import json
import re
import sys
import threading
import warnings
import weakref
import zipfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.package.package_importer import PackageImporter

from tests.e2e.serving import run_script
from tests.models.adds_one import AddsOne
from tests.models.digits import DigitClassifier
from tests.models.with_closure import Closure
from tests.models.with_resource import Blob
from tfs.core.errors import InvalidArgument
from tfs.export import (
    DependencyReport,
    Packaging,
    explain,
    save,
)
from tfs.export.values import same


def test_value_that_cannot_be_pickled_is_in_the_tree_with_what_to_do(
    tmp_path: Path,
) -> None:
    """The author learns which values at which places, and how to write each."""
    module = nn.Sequential(nn.Linear(2, 2), Closure(), unsavable())
    with pytest.raises(InvalidArgument) as caught:
        save(module, torch.rand(2, 2), tmp_path)
    report = explain(module, Packaging())
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
    assert "tests.models.with_closure interned" in tree


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
    tree = " ".join(explain(module, Packaging()).tree().split())
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
    unsaved = {each.path: each.advice for each in explain(module, Packaging()).unsaved}
    assert list(unsaved) == ["model.pool", "model.chosen.act"]
    assert "leave pool out of what model saves" in unsaved["model.pool"]


@pytest.mark.parametrize("rule", ["intern", "mock"])
@pytest.mark.parametrize("glob", ["torch.**", "torch", "json"])
def test_rule_about_what_servers_run_on_is_refused(rule: str, glob: str) -> None:
    """A rule that torch.package would ignore is no rule to accept in silence."""
    with pytest.raises(InvalidArgument, match=f"{rule} '{re.escape(glob)}' has no eff"):
        Packaging(mock=[glob]) if rule == "mock" else Packaging(intern=[glob])


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
    code, printed = run_script(script, str(tmp_path / "base"))
    assert (code, printed.splitlines().count("training")) == (0, 1), printed
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
        "    tfs.export.save(Twice(inner), x, sys.argv[2],\n"
        "        packaging=tfs.export.Packaging(importers=importers))\n"
    )
    code, printed = run_script(script, str(inner), str(tmp_path / "base"))
    assert (code, printed.splitlines().count("wrapping")) == (0, 1), printed
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
        packaging=Packaging(report=reports.append),
    )  # fmt: skip
    module = reports[0].modules["hypothesis"]
    assert (module.action.value, module.reason) == ("mocked", "you said so")
    assert "hypothesis  mocked: you said so" in str(reports[0])


def test_mock_that_is_needed_is_found_before_committing(tmp_path: Path) -> None:
    """Loading the archive back shows that a mock was one too many."""
    from tests.models.with_libraries import UsesNumpy

    mock = ["numpy.**", "hypothesis.**"]
    with pytest.raises(InvalidArgument, match="mocked module is needed after all"):
        save(UsesNumpy(), torch.rand(2, 2), tmp_path, mock=mock)


def test_resource_is_readable_by_the_packaged_model(tmp_path: Path) -> None:
    """Text put into the archive is found through torch_package_importer."""
    from tests.models.with_resource import Vocabulary

    path = save(
        Vocabulary(), torch.ones(2, 1), tmp_path,
        packaging=Packaging(resources={"words.txt": "a\nb\nc\n"}),
    )  # fmt: skip
    loaded = PackageImporter(f"{path}/model.pt").load_pickle("model", "model.pkl")
    assert loaded(torch.ones(2, 1)).tolist() == [[3], [3]]


def test_module_that_needs_its_resources_can_be_called_before(tmp_path: Path) -> None:
    """What the archive will hold is readable while the module is tried."""
    path = save(
        Blob(),
        torch.ones(2, 3),
        tmp_path,
        packaging=Packaging(resources={"words.txt": "one two", "bin/data": b"\0\1\2"}),
    )
    importer = PackageImporter(f"{path}/model.pt")
    loaded = importer.load_pickle("model", "model.pkl")
    assert torch.equal(loaded(torch.ones(1, 1)), torch.tensor([[5.0]]))
    assert "torch_package_importer" not in sys.modules


def test_include_adds_a_module_that_nothing_imports_visibly(tmp_path: Path) -> None:
    """Dynamic imports are found by nobody; their author names them."""
    from tests.models.with_dynamic_import import Dynamic

    with pytest.raises(
        InvalidArgument, match="your own code, which no server has: include it"
    ):
        save(Dynamic(), torch.rand(2, 2), tmp_path)
    path = save(
        Dynamic(), torch.rand(2, 2), tmp_path, include=["tests.models.with_global"]
    )
    with zipfile.ZipFile(f"{path}/model.pt") as archive:
        assert "archive/tests/models/with_global.py" in archive.namelist()


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
    report = explain(DigitClassifier(), Packaging())
    assert not report.unresolved
    assert "tests.models.digits  interned" in report.tree()


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
    report = explain(nn.Sequential(*parts[:2]), Packaging())
    assert "code of the package it was loaded from" in report.tree()
    save(nn.Sequential(*parts[:2]), torch.rand(2, 3), tmp_path)
    with pytest.raises(InvalidArgument, match="two different modules called"):
        save(nn.Sequential(*parts), torch.rand(2, 3), tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_script_in_another_encoding_leaves_its_blocks_behind(
    tmp_path: Path, encoding: str
) -> None:
    """The class comes whole, and no server runs what stood around it."""
    script = tmp_path / "train.py"
    first = "# coding: latin-1\n" if encoding == "latin-1" else ""
    script.write_text(
        f"{first}import sys\n"
        "import torch\n"
        "import tfs.export\n"
        "NOTE = 'one\x0b\x1c two'\n"
        "E = '\N{LATIN SMALL LETTER E WITH ACUTE}'\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + len(E)\n"
        "with open(sys.argv[1] + '.log', 'a') as log:\n"
        "    torch.backends.cudnn.benchmark = True\n"
        "    print('training', file=log)\n"
        "if __name__ == '__main__':\n"
        "    path = tfs.export.save(Net(), torch.zeros(2, 2), sys.argv[1])\n",
        encoding=encoding,
    )
    code, printed = run_script(script, str(tmp_path / "base"))
    assert code == 0, printed
    loaded = PackageImporter(tmp_path / "base" / "1" / "model.pt").load_pickle(
        "model", "model.pkl"
    )
    assert loaded(torch.zeros(1)).tolist() == [1]
    assert (tmp_path / "base.log").read_text() == "training\n"
