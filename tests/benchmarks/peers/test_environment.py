"""How a peer's environment comes about, without installing anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.peers.area import PEERS
from tests.benchmarks.peers.environment import (
    REQUIREMENTS,
    MissingError,
    install_commands,
    prepare,
)
from tests.benchmarks.peers.mosec import Mosec
from tests.benchmarks.peers.torchserve import TorchServe


def installer(
    commands: list[list[str]], fault: str = ""
) -> Callable[[Sequence[str]], None]:
    """Returns what notes commands; the one that makes an environment makes a folder."""

    def run(command: Sequence[str]) -> None:
        commands.append(list(command))
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        elif fault:
            raise RuntimeError(fault)

    return run


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    """The second run finds it; other requirements than those it has make it anew."""
    commands: list[list[str]] = []
    run = installer(commands)
    python = prepare(Mosec(), environments=tmp_path, run=run)
    num_commands = len(commands)
    assert num_commands >= 2
    assert prepare(Mosec(), environments=tmp_path, run=run) == python
    assert len(commands) == num_commands
    (tmp_path / "mosec" / "made-of.sha256").write_text("older")
    prepare(Mosec(), environments=tmp_path, run=run)
    assert len(commands) == 2 * num_commands


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    """Without a JDK nothing is downloaded for TorchServe, and the reader knows why."""
    commands: list[list[str]] = []
    with pytest.raises(MissingError, match=r"torchserve needs java: apt-get install"):
        prepare(
            TorchServe(),
            environments=tmp_path,
            run=installer(commands),
            is_there=lambda what: False,
        )
    assert commands == []


def test_a_failed_installation_says_what_to_run_and_is_tried_again(
    tmp_path: Path,
) -> None:
    """The command by hand is the one that failed; half an environment is none."""
    with pytest.raises(MissingError, match=r"no network.*pip install.*mosec\.txt"):
        prepare(Mosec(), environments=tmp_path, run=installer([], "no network"))
    commands: list[list[str]] = []
    prepare(Mosec(), environments=tmp_path, run=installer(commands))
    assert commands


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_requirements_are_complete_and_pinned(peer: Mosec) -> None:
    """Each line is one version of one package: nothing else can get in."""
    lines = [
        line
        for line in (REQUIREMENTS / f"{peer.name}.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if line.startswith("nvidia-cu")]


def test_torch_comes_from_an_index_of_cpu_builds_where_one_is_given() -> None:
    """torch is installed first, as in the Makefile, so that the rest finds it."""
    requirements = REQUIREMENTS / "mosec.txt"
    first, second = install_commands(Path("python"), requirements, "https://cpu")
    assert first[-2:] == ["--index-url=https://cpu", "torch==2.13.0"]
    assert {"--no-deps", f"--requirement={requirements}"} <= set(second)
    assert install_commands(Path("python"), requirements, "") == [second]
