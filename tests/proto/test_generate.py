"""tfs/proto is what protos/generate.py makes of the .proto files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.python_program import run_python


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(str(root / "protos/generate.py"), *arguments)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with the .proto files and what was generated from them."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "protos", tmp_path / "protos", ignore=ignored)
    shutil.copytree(ROOT / "tfs/proto", tmp_path / "tfs/proto", ignore=ignored)
    return tmp_path


def test_the_committed_code_is_fresh() -> None:
    """Nobody edits generated code or forgets to regenerate it."""
    result = generate(ROOT, "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_check_names_stale_missing_and_orphaned_files_and_changes_nothing(
    copy: Path,
) -> None:
    """--check says all there is to do, and leaves it to `make proto`."""
    proto = copy / "tfs/proto"
    stale = proto / "tensorflow_serving/apis/model_pb2.py"
    stale.write_text("# edited by hand\n")
    missing = proto / "tensorflow_serving/apis/predict_pb2.pyi"
    missing.unlink()
    orphan = proto / "tensorflow_serving/old/gone_pb2.py"
    orphan.parent.mkdir()
    orphan.write_text("")

    result = generate(copy, "--check")

    assert result.returncode == 1
    assert [line.partition(";")[0] for line in result.stdout.splitlines()] == [
        "stale: tfs/proto/tensorflow_serving/apis/model_pb2.py",
        "stale: tfs/proto/tensorflow_serving/apis/predict_pb2.pyi",
        "orphaned: tfs/proto/tensorflow_serving/old/gone_pb2.py has no .proto file",
    ]
    assert stale.read_text() == "# edited by hand\n"
    assert orphan.exists()
    assert not missing.exists()


def test_generating_repairs_a_tree_and_leaves_what_people_wrote(copy: Path) -> None:
    """After a run the tree is the committed one, byte for byte."""
    proto = copy / "tfs/proto"
    (proto / "tensorflow_serving/apis/model_pb2.py").write_text("# edited by hand\n")
    (proto / "tensorflow_serving/apis/gone_pb2.py").write_text("")
    shutil.rmtree(proto / "tfs")

    assert generate(copy).returncode == 0

    repaired = {path.relative_to(proto): path for path in proto.rglob("*.py*")}
    committed = {
        path.relative_to(ROOT / "tfs/proto"): path
        for path in (ROOT / "tfs/proto").rglob("*.py*")
        if path.suffix != ".pyc"
    }
    assert repaired.keys() == committed.keys()
    for name, path in repaired.items():
        assert path.read_bytes() == committed[name].read_bytes(), name
