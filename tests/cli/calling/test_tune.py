from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.adds_one import AddsOne
from tfs.cli import main
from tfs.cli.calling import tune
from tfs.cli.calling.tune import add_parser
from tfs.core.errors import FailedPrecondition, NotFound
from tfs.export import Packaging, save
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.placing.batcher import (
    read_batching_file,
    read_batching_parameters,
)

EXAMPLE = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
QUICK = ("--budget_s=0", "--max_batch_size=4")


def tuned(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["tune", *arguments])
    status: int = args.run(args)
    return status


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save(AddsOne(), EXAMPLE, tmp_path / "adds_one", 9)
    save(AddsOne(), EXAMPLE, tmp_path / "adds_one", 10)
    return tmp_path / "adds_one"


@pytest.mark.parametrize(
    "words", ["--max_batch_size=0", "--budget_s=-1", "--intra_op_threads=0"]
)
def test_a_number_out_of_range_is_a_wrong_command_line(
    capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """The line names the flag, as with other commands."""
    with pytest.raises(SystemExit):
        tuned("model", words)
    assert f"argument {words.partition('=')[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("which", ["", "9"])
def test_parameters_are_printed_with_their_numbers(
    base: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    """A model's highest version is tuned, or the named one; the output is a file."""
    assert tuned(str(base / which), *QUICK) == 0
    out, err = capsys.readouterr()
    assert err == "" or "a larger --max_batch_size may be" in err
    options = read_batching_parameters(out, "printed")
    assert 1 <= options.queue.max_batch_rows <= 4
    comments = [line for line in out.splitlines() if line.startswith("#")]
    assert "serving_default, example inputs, cpu, threads per call: 1" in comments[0]
    first = [[*line.split(), "", ""][1] for line in comments]
    assert [each for each in first if each.isdecimal()] == ["1", "2", "3", "4"]
    assert sum("best" in line for line in comments) == 1


def test_parameters_are_written_for_a_server(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written is a file that a server reads as it stands."""
    out = tmp_path / "tuned"
    assert tuned(str(base), *QUICK, "--out", str(out)) == 0
    written = capsys.readouterr().out.rstrip()
    assert written == str(out / "batching_params.pbtxt")
    assert read_batching_file(written).queue.timeout_s == 0


def test_parameters_that_a_version_was_published_with_are_not_overwritten(
    tmp_path: Path,
) -> None:
    """Its manifest promises them; the version would not load any more."""
    path = save(
        AddsOne(),
        EXAMPLE,
        tmp_path,
        packaging=Packaging(batching_parameters="max_batch_size { value: 4 }"),
    )
    before = Path(path, "batching_params.pbtxt").read_text()
    with pytest.raises(FailedPrecondition, match="tfs package"):
        tuned(path, *QUICK, "--out", path)
    assert Path(path, "batching_params.pbtxt").read_text() == before


def test_a_version_without_parameters_gets_them_and_still_loads(base: Path) -> None:
    """Files that a manifest does not list do not matter to it."""
    path = str(base / "10")
    assert tuned(path, *QUICK, "--out", path) == 0
    assert tuned(path, *QUICK) == 0


def test_a_mistake_is_one_line_and_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for what the person at the keyboard can correct."""
    with pytest.raises(NotFound):
        tuned(str(tmp_path / "absent"))
    assert main.main(["tune", str(tmp_path / "absent")]) == 1
    assert capsys.readouterr().err.startswith("tfs: ")


def served(version: int | None, path: str, device: str = "cpu") -> Any:
    """Returns what a server says of one model, instead of asking one."""

    def ask(args: object, method: str, request: object, reply: object) -> object:
        response = pb.ListModelsResponse()
        model = response.models.add(name="m", base_path="/models/m")
        for number, place in ((3, "elsewhere"), (9, path)):
            report = model.versions.add(version=number, path=place)
            report.placement.device = device
        if version is not None:
            model.primary = version
        return response

    return ask


def test_the_name_of_a_served_model_is_its_primary_version(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is taken from where the server says, on the device it runs on."""
    monkeypatch.setattr(tune, "ask", served(9, str(base / "9")))
    assert tuned("m", *QUICK) == 0
    assert "cpu, threads per call: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (served(None, "x"), "no version of m answers"),
        (served(9, "/nowhere/9"), "/nowhere/9, which is no directory of this machine"),
        (served(9, ""), "/models/m, which is no directory of this machine"),
    ],
)
def test_a_served_model_that_is_not_at_hand_is_not_tuned(
    answer: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says where it would have to be done."""
    monkeypatch.setattr(tune, "ask", answer)
    with pytest.raises(FailedPrecondition, match=words):
        tuned("m", *QUICK)


def test_what_is_neither_directory_nor_served_is_not_found(tmp_path: Path) -> None:
    """The message names both things that the argument may have meant."""
    with pytest.raises(NotFound, match="no such directory: m; and for a model"):
        tuned("m", f"--socket={tmp_path}/none", *QUICK)
