"""tfs.servables.source_reach, and what each platform says of its versions."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
import torch

from tests.models import dlrm
from tfs.export import save, save_python
from tfs.servables.platforms.model_archive import TorchPackage, TorchScript
from tfs.servables.platforms.python_model import PythonModel
from tfs.servables.platforms.torch_export import TorchExport
from tfs.servables.source_reach import why_folder, why_package

SERVABLE = """
{first}
class Doubled:
    signatures = {{
        "serving_default": {{
            "method": "predict",
            "inputs": {{"x": {{"dtype": "float32", "shape": [-1, 2]}}}},
            "outputs": {{"y": {{"dtype": "float32", "shape": [-1, 2]}}}},
        }}
    }}

    def predict(self, x):
        return {{"y": x * 2}}
"""


def archive(path: Path, **files: bytes) -> str:
    """Writes an archive like torch.package's; "__" in a name stands for "/"."""
    place = path / "model.pt"
    with zipfile.ZipFile(place, "w") as written:
        for name, content in files.items():
            inner = name.replace("__", "/").replace("_py", ".py")
            written.writestr(f"archive/{inner}", content)
        written.writestr("archive/.data/extern_modules", "torch.nn\ncollections\n")
    return str(place)


def test_a_packaged_model_of_torch_alone_may_run_in_the_server(tmp_path: Path) -> None:
    """Code, pickles and what the archive says that it needs are all looked at."""
    x = torch.rand(2, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    path = save(model, {"input": x}, tmp_path)
    assert TorchPackage().why_apart(path) == ""


def test_models_as_people_package_them_may_run_in_the_server(tmp_path: Path) -> None:
    """The rule is for what crashes, not for ordinary models."""
    model, inputs = dlrm.build()
    path = save(model, inputs, tmp_path)
    assert TorchPackage().why_apart(path) == ""


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"net__a_py": b"import ctypes"}, r"net/a\.py imports ctypes \(line 1\)"),
        ({"a_py": b"import b", "b_py": b"import mmap"}, r"b\.py imports mmap"),
        ({"model__m.pkl": b"\x80\x03cctypes\nstring_at\n."}, "imports ctypes"),
        ({"model__m.pkl": b"\x80\x03ctorch\nctypes\n."}, "reaches ctypes"),
        ({"model__m.pkl": b"\x80\x03cos\nabort\n."}, r"reaches os\.abort"),
        ({"model__m.pkl": b"\x80\x03cbuiltins\neval\n."}, "reaches eval"),
        ({"model__m.bin": b"\x80\x03cctypes\nstring_at\n."}, "imports ctypes"),
        ({"model__m.pkl": b"\x80\x04\x8c\x02os\x8c\x05abort\x93."}, "STACK_GLOBAL"),
        ({"model__m.pkl": b"\xff"}, "cannot be read as a pickle"),
    ],
)
def test_archives_that_reach_further_say_where(
    tmp_path: Path, files: dict[str, bytes], why: str
) -> None:
    """In a module of any depth, and in pickles, which may name anything."""
    assert why_package(archive(tmp_path, a_py=b"import torch")) == ""
    told = why_package(archive(tmp_path, **files))
    assert re.search(why, told), told


def test_a_servable_says_where_it_reaches_further(tmp_path: Path) -> None:
    """Its own file, and every module beside it."""
    source = tmp_path / "servable.py"
    source.write_text(SERVABLE.format(first="import json"))
    x = torch.rand(2, 2)
    path = save_python(source, tmp_path / "m", example_inputs={"x": x})
    assert PythonModel().why_apart(path) == ""
    source.write_text(SERVABLE.format(first="import ctypes"))
    path = save_python(source, tmp_path / "m", example_inputs={"x": x})
    assert PythonModel().why_apart(path) == "servable.py imports ctypes (line 2)"


def test_machine_code_beside_a_servable_keeps_it_apart(tmp_path: Path) -> None:
    """It could be imported under the name of a module of its own."""
    (tmp_path / "servable.py").write_text("import fast")
    assert "imports fast" in why_folder(str(tmp_path))
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "__init__.py").write_text("from . import kernel")
    assert why_folder(str(tmp_path)) == ""
    (tmp_path / "fast" / "kernel.so").write_bytes(b"\x7fELF")
    assert why_folder(str(tmp_path)) == "fast/kernel.so is machine code"


def test_graphs_may_run_in_the_server(tmp_path: Path) -> None:
    """TorchScript and torch.export; what AOTInductor compiled may not."""
    model = torch.nn.Linear(2, 2).eval()
    inputs = {"input": torch.rand(2, 2)}
    path = save(model, inputs, tmp_path / "s", platform="torchscript")
    assert TorchScript().why_apart(path) == ""
    path = save(model, inputs, tmp_path / "e", platform="torch_export")
    assert TorchExport().why_apart(path) == ""
    with zipfile.ZipFile(f"{path}/model.pt2", "a") as compiled:
        folder = compiled.namelist()[0].partition("/")[0]
        compiled.writestr(f"{folder}/data/aotinductor/model/model.so", b"\x7fELF")
    assert TorchExport().why_apart(path) == "model.pt2 is machine code"
