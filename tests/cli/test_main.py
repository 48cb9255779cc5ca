"""tfs.cli.main."""

from __future__ import annotations

import re

import pytest

from tfs.cli.main import COMMANDS, main, make_parser


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """``tfs --version`` names the versions that a bug report needs."""
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["TFS", "torch", "grpcio", "protobuf"]


def test_each_command_is_in_the_module_that_the_table_names() -> None:
    """Only that module is imported for it; ``--help`` shows what all of them add."""
    listed = re.findall(r"^    (\S+)", make_parser().format_help(), re.MULTILINE)
    assert listed == list(COMMANDS)
    for command in COMMANDS:
        assert f"\n    {command}" in make_parser(command).format_help()


def test_without_a_command_the_help_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``tfs`` alone lists the commands and fails."""
    assert main([]) == 2
    assert "serve models" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--nosuch=1", ""),
        ("model", ""),
        ("--model_base_pat=/models", "did you mean --model_base_path? "),
        ("--prot=8500", "did you mean --port? "),
        ("-port=8500", "did you mean --port? "),
        ("--enable-batching", "did you mean --enable_batching? "),
        ("--rest_api_prot=8501", "did you mean --rest_api_port? "),
        ("-", ""),
    ],
)
def test_an_unknown_argument_is_one_line(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped or abbreviated flag is named, not buried under a page of usage."""
    assert main(["serve", word]) == 2
    assert capsys.readouterr().err == (
        f"tfs serve: unknown argument {word}; {hint}tfs serve --help lists all\n"
    )


def test_a_flag_without_its_value_is_two_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The usage of every flag would hide which one it is."""
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--port"])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "argument --port: expected one argument" in lines[1]


@pytest.mark.parametrize(
    "words",
    [
        ["canary", "m", "99999999999999999999"],
        ["canary", "m", "1", "--min_samples=99999999999999999999"],
        ["canary", "m", "1", "--min_samples=0"],
        ["promote", "m", "9223372036854775808"],
        ["rollback", "m", "-3"],
        ["rollback", "m", "x"],
        ["predict", "m", "--version=9223372036854775808", "--input", "x=[1]"],
        ["metadata", "m", "--version=-1"],
        ["replay", "log", "--version=1.5"],
        ["package", "model.py", "--out=/m", "--version=-1"],
    ],
)
def test_a_number_that_no_message_has_room_for_is_a_wrong_command_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is told with what would do, and not by a traceback."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "is a whole number from" in capsys.readouterr().err
