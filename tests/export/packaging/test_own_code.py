"""The author's own modules: packaged, and out of reach of what was packaged without them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.package.package_importer import PackageImporter

from tests.python_program import output_of
from tfs.core.errors import InvalidArgument
from tfs.core.version_directory import read_manifest
from tfs.export import (
    Packaging,
    save,
)


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
from tfs.runtime.guest.guest_model import load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
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
    output_of(quietly, "-c", here)


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
        "resources.read_binary('own_data', 'size.txt')",
        "next((f.read(), f.close())[0] for f in [resources.open_text('own_data', 'size.txt')])",
        "next((f.read(), f.close())[0]"
        " for f in [resources.open_binary('own_data', 'size.txt')])",
        "next((p.__enter__().read_text(), p.__exit__(None, None, None))[0]"
        " for p in [resources.path('own_data', 'size.txt')])",
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
    with pytest.raises(
        InvalidArgument, match=r"Packaging\(resources=.* to save$|StopIter"
    ):
        save(module, torch.rand(2, 3), tmp_path)
    save(
        module,
        torch.rand(2, 3),
        tmp_path,
        packaging=Packaging(resources={"own_data/size.txt": "2"}),
    )


def test_own_code_outside_of_the_archive_is_out_of_reach(
    tmp_path: Path, own_code: Path
) -> None:
    """No server has the author's folders, so the check before a commit has not either."""
    before = dict(sys.modules)
    with pytest.raises(
        InvalidArgument, match=r"own_heads is your own code.*: include it$"
    ):
        save(_own_net(), torch.rand(2, 3), tmp_path)
    assert before.keys() <= sys.modules.keys()
    (own_code / "own_heads.py").write_text(
        "from importlib import util\n"
        "def head(x):\n"
        "    return x + len(util.find_spec('own_heads').name)\n"
    )
    sys.modules.pop("own_heads")
    importlib.invalidate_caches()
    with pytest.raises(InvalidArgument, match=r"has no attribute 'name'.*not there$"):
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
        packaging = Packaging(resources={"words.txt": "a"})
        with pytest.raises(InvalidArgument, match=r'"resources/words\.txt"'):
            save(source.Model(), torch.rand(2, 3), tmp_path, packaging=packaging)
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


@pytest.mark.parametrize(
    ("encoding", "first"),
    [
        ("utf-8-sig", ""),
        ("latin-1", "# -*- coding: latin-1 -*-\n"),
        ("cp1252", "#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\n"),
    ],
)
@pytest.mark.parametrize("place", ["module", "sources", "folder"])
def test_source_in_another_encoding_means_the_same_in_the_archive(
    tmp_path: Path, own_code: Path, encoding: str, first: str, place: str
) -> None:
    """Python reads a file by its mark or its first lines, and an archive as UTF-8."""
    net = (
        f"{first}import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + len('\N{LATIN SMALL LETTER E WITH ACUTE}')\n"
    )
    (own_code / "own_net.py").write_text(net, encoding=encoding)
    module = _own_net()
    sources = {}
    if place == "sources":
        sources = {"own_net": str(own_code / "own_net.py")}
    elif place == "folder":
        inner = own_code / "own_heads"
        (inner / "deep").mkdir(parents=True)
        (inner / "__init__.py").write_text(first, encoding=encoding)
        (inner / "deep" / "__init__.py").write_text("")
        (inner / "deep" / "er.py").write_text(net, encoding=encoding)
        sources = {"own_heads": str(inner)}
    path = save(
        module, torch.zeros(2, 3), tmp_path, packaging=Packaging(sources=sources)
    )
    importer = PackageImporter(f"{path}/model.pt")
    loaded = importer.load_pickle("model", "model.pkl")
    assert loaded(torch.zeros(1)).tolist() == [1]
    if place == "folder":
        deeper = importer.import_module("own_heads.deep.er").Net()
        assert deeper(torch.zeros(1)).tolist() == [1]
