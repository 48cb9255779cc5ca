"""tfs.cli.main."""

from __future__ import annotations

import pytest

from tfs.cli.main import main


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """``tfs --version`` names the versions that a bug report needs."""
    assert main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["TFS", "torch", "grpcio", "protobuf"]


def test_without_a_command_the_help_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``tfs`` alone lists the commands and fails."""
    assert main([]) == 2
    assert "serve models" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--nosuch=1", "--model_base_pat=/models"])
def test_an_unknown_argument_is_one_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped or abbreviated flag is named, not buried under a page of usage."""
    assert main(["serve", word]) == 2
    assert capsys.readouterr().err == (
        f"tfs serve: unknown argument {word}; tfs serve --help lists all\n"
    )
