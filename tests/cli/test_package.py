from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.models import for_command_line
from tests.models.adds_one import AddsOne
from tfs.cli.package import add_parser
from tfs.core.version_directory import read_manifest
from tfs.export import save
from tfs.runtime.guest.torch_tensor import to_view

SORTING = Path(__file__).parents[1] / "servables" / "sorting_servable.py"


def packaged(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["package", *arguments])
    status: int = args.run(args)
    return status


def test_module_is_packaged_and_its_path_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is the new version alone, for scripts; the tree goes beside."""
    base = str(tmp_path / "base")
    spec = "tests.models.for_command_line:net"
    assert packaged(spec, "--out", base, "--method=classify", "--labels=a, b") == 0
    out, err = capsys.readouterr()
    assert out == f"{base}/1\n"
    assert "tests.models.for_command_line" in err
    (signature,) = read_manifest(f"{base}/1").signatures.values()
    assert signature.labels == ("a", "b")


def test_warnings_are_told_as_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line of a log, event=..., is for whoever runs servers."""
    spec = "tests.models.for_command_line:net"
    assert packaged(spec, "--out", str(tmp_path)) == 0
    told = capsys.readouterr().err
    assert "event=" not in told
    assert "tfs package: warning: module in training mode: module=" in told


def test_the_form_may_be_called_a_platform(tmp_path: Path) -> None:
    """`--platform` is another name of the form, as `tfs.export.save` calls it."""
    base = str(tmp_path / "base")
    spec = "tests.models.for_command_line:net"
    assert packaged(spec, "--out", base, "--platform=torchscript") == 0
    assert read_manifest(f"{base}/1").platform == "torchscript"


def test_an_example_that_is_missing_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows where it was looked for before they have read the manual."""
    assert packaged("tests.models.adds_one:AddsOne", "--out", str(tmp_path)) == 1
    told = capsys.readouterr().err
    assert "tests.models.adds_one:example_inputs" in told
    assert "or name them with --example MODULE:NAME" in told


def test_sizes_that_callers_choose_are_told_by_input(tmp_path: Path) -> None:
    """A model of sequences needs no script to be packaged."""
    base = str(tmp_path / "base")
    spec = "tests.models.for_command_line:net"
    assert packaged(spec, "--out", base, "--dynamic=x=1", "--pad=x=0.5") == 0
    (signature,) = read_manifest(f"{base}/1").signatures.values()
    assert signature.inputs["x"].shape == (-1, -1)
    assert signature.inputs["x"].pad == 0.5


def test_what_the_library_takes_is_said_on_the_command_line(tmp_path: Path) -> None:
    """Whoever uses the command need not write a script for one more signature."""
    base = str(tmp_path / "base")
    spec = "tests.models.for_command_line"
    arguments = [f"--example={spec}:scaled_inputs", "--default=by=3", "--concurrency=4"]
    arguments += [f"--signature=plain={spec}:plain", f"--features={spec}:features"]
    assert packaged(f"{spec}:scaled", "--out", base, *arguments) == 0
    manifest = read_manifest(f"{base}/1")
    signature = manifest.signatures["serving_default"]
    assert signature.defaults["by"] == to_view(torch.tensor([3.0]))
    assert list(signature.features) == ["pixels"]
    assert list(manifest.signatures["plain"].inputs) == ["x"]
    assert manifest.entry["concurrency"] == 4


def test_a_modules_code_is_taken_from_another_file(tmp_path: Path) -> None:
    """A configuration for the server takes the place of the author's."""
    base = str(tmp_path / "base")
    other = tmp_path / "other.py"
    code = Path(for_command_line.__file__).read_text(encoding="utf-8")
    other.write_text(code.replace("x / 2", "x * 0.5"))
    spec = "tests.models.for_command_line"
    assert packaged(f"{spec}:net", "--out", base, f"--source={spec}={other}") == 0
    with zipfile.ZipFile(f"{base}/1/model.pt") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("for_command_line.py")]
        assert b"x * 0.5" in archive.read(name)


def test_explain_shows_the_tree_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status tells whether something is left to decide."""
    assert packaged("tests.models.for_command_line:net", "--explain") == 0
    assert "interned: your own code" in capsys.readouterr().out
    assert packaged("tests.models.with_libraries:Plotting", "--explain") == 1
    assert 'mock=["hypothesis.**"]' in capsys.readouterr().out


def test_python_file_is_packaged(tmp_path: Path) -> None:
    """A class in a file needs no more than its signatures."""
    assert packaged(str(SORTING), "--out", str(tmp_path)) == 0
    assert read_manifest(str(tmp_path / "1")).platform == "python"


def test_python_file_is_tried_on_the_example(tmp_path: Path) -> None:
    """Its version brings the example, which a server measures it with."""
    spec = "tests.models.for_command_line:sorting_inputs"
    assert packaged(str(SORTING), "--example", spec, "--out", str(tmp_path)) == 0
    manifest = read_manifest(str(tmp_path / "1"))
    assert set(manifest.signatures["serving_default"].examples) == {"numbers", "names"}


def test_table_is_packaged_under_its_served_name(tmp_path: Path) -> None:
    """Whatever the file was called, the version holds table.csv."""
    (tmp_path / "prices.csv").write_text("item,price\na,1\n")
    base = tmp_path / "base"
    assert packaged(str(tmp_path / "prices.csv"), "--out", str(base)) == 0
    manifest = read_manifest(str(base / "1"))
    assert (manifest.platform, list(manifest.files)) == ("hashmap", ["table.csv"])


def test_edited_package_is_published_again(tmp_path: Path) -> None:
    """Unzip, edit, zip: the signatures stay, the digests are new."""
    path = Path(save(AddsOne(), torch.ones(2, 3), tmp_path / "base"))
    edited = tmp_path / "edited"
    shutil.copytree(path, edited)
    with (
        zipfile.ZipFile(path / "model.pt") as old,
        zipfile.ZipFile(edited / "model.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info).replace(b"x + 1", b"x + 5"))
    assert packaged(str(edited), "--out", str(tmp_path / "base")) == 0
    before, after = (read_manifest(str(tmp_path / "base" / n)) for n in "12")
    assert before.signatures == after.signatures
    assert before.files["model.pt"] != after.files["model.pt"]


def test_edit_that_breaks_the_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing mistake in the edited source shows before the version does."""
    path = Path(save(AddsOne(), torch.ones(2, 3), tmp_path / "base"))
    edited = tmp_path / "edited"
    shutil.copytree(path, edited)
    with (
        zipfile.ZipFile(path / "model.pt") as old,
        zipfile.ZipFile(edited / "model.pt", "w") as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info).replace(b"x + 1", b"y + 1"))
    assert packaged(str(edited), "--out", str(tmp_path / "base")) == 1
    assert "NameError" in capsys.readouterr().err
    assert not (tmp_path / "base" / "2").exists()


def test_file_in_the_place_of_a_module_is_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has a file at hand types its name; both ways lead on."""
    monkeypatch.chdir(tmp_path)
    Path("own_nets.py").write_text("")
    assert packaged("own_nets.py:net", "--out=base") == 1
    assert "named without .py: own_nets:net" in capsys.readouterr().err
    assert packaged("own_nets.py", "--out=base") == 1
    assert "tfs package MODULE:NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tests.models.for_command_line:net", "--example=mine:inputs"], "mine:inputs"),
        (["mine:inputs"], "mine:inputs"),
    ],
)
def test_what_code_that_is_named_raises_is_told_with_its_place(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last line of it that ran, whatever library raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    file = tmp_path / "mine.py"
    for text, line in (
        ("import json\ndef inputs():\n    return json.loads('{')", 3),
        ("\nopen('absent')", 2),
    ):
        file.write_text(text)
        assert packaged(*words, "--out=base") == 1
        printed = capsys.readouterr().err
        assert printed.startswith(f"tfs package: {told} raises ")
        assert printed.endswith(f" ({file}:{line})\n")
        assert printed.count("\n") == 1
        sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tests.models.for_command_line:net"], "--out"),
        (["nothing", "--out=base"], "no such file or directory"),
        (["tests.models.absent:net", "--out=base"], "No module named"),
        (["tests.models.for_command_line:absent", "--out=base"], "absent"),
        (["tests.models.for_command_line:number", "--out=base"], "no nn.Module"),
        (["tests.models.for_command_line:net", "--explain", "--resource=a"], "NAME="),
        (
            ["tests.models.for_command_line:net", "--out=base", "--dynamic=x=one"],
            "'one' is no number",
        ),
        (
            ["tests.models.for_command_line:net", "--out=base", "--default=x=much"],
            "the default x=much: write a number",
        ),
        (
            [
                "tests.models.for_command_line:net",
                "--out=base",
                "--signature=a=tests.models.for_command_line:number",
            ],
            "is no tfs.export.Signature",
        ),
        (
            [str(SORTING), "--out=base", "--concurrency=2"],
            "--concurrency says nothing about a servable.py",
        ),
        ([str(SORTING), "--explain"], "--explain is about an nn.Module"),
        ([str(SORTING), "--out=base", "--method=classify"], "--method says nothing"),
        (
            ["tests.models.for_command_line:net", "--out=base", "--weights=w.pt"],
            "--weights says nothing about an nn.Module",
        ),
        (["tests.models.for_command_line:net", "--out=/proc/no"], "/proc/no: No such"),
    ],
)
def test_mistake_is_one_line_and_status_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """No traceback for what the person at the keyboard can correct."""
    monkeypatch.chdir(tmp_path)
    assert packaged(*arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("tfs package: ")
    assert message in err
