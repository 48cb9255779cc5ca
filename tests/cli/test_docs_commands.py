"""The commands, flags and text files that the documentation shows."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, tracked_files
from tfs.cli.main import make_parser
from tfs.cli.serving.serve_arguments import REFUSED, WITHOUT_MEANING
from tfs.server.config.server_config import read_config_text
from tfs.server.options import FLAGS
from tfs.server.placing.batcher import read_batching_parameters

PAGES = [ROOT / page for page in tracked_files("*.md")]
_FENCED = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.M | re.S)
_CODE = re.compile(r"`([^`\n]+)`")

FOREIGN = {
    "--cpus",  # docker's
    "--find-links",  # pip's
    "--flag",  # any flag
    "--health-cmd",  # docker's
    "--init",  # docker's
    "--model-control-mode",  # Triton's
    "--model-repository",  # Triton's
    "--models",  # TorchServe's
    "--noflag",
    "--pids-limit",  # docker's
    "--timeout",  # MOSEC's
}
"""Flags of programs that are not ours."""


def by_name(page: Path) -> str:
    return page.name


def fenced(page: Path) -> Iterator[str]:
    """Yields what stands between fences, without comments on what language it is."""
    for _, text in _FENCED.findall(page.read_text(encoding="utf-8")):
        yield text


def commands(page: Path) -> list[str]:
    """Returns the ``tfs`` commands between fences, prompts and comments left out."""
    lines = "\n".join(fenced(page)).replace("\\\n", " ").splitlines()
    bare = [line.strip().removeprefix("$ ") for line in lines]
    return [line for line in bare if line.startswith("tfs ")]


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, `config validate` and its like as well."""
    found: dict[str, argparse.ArgumentParser] = {}

    def look(parser: argparse.ArgumentParser, words: str) -> None:
        found[words] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    look(each, f"{words} {name}")

    look(make_parser(), "tfs")
    return found


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_commands_are_parsed(page: Path) -> None:
    """Whoever copies a command has no flag refused; nothing is run."""
    for line in commands(page):
        words = shlex.split(line.partition(" > ")[0], comments=True)
        try:
            _, unknown = make_parser().parse_known_args(words[1:])
        except SystemExit:
            pytest.fail(f"{page.name}: {line}")
        assert unknown == [], f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_commands_named_in_the_text_exist(page: Path) -> None:
    """Commands in the text exist, and have the flags that are written with them."""
    known = parsers()
    for code in _CODE.findall(page.read_text(encoding="utf-8")):
        if not code.startswith("tfs "):
            continue
        words = code.split()
        name = " ".join(words[:3])
        name = name if name in known else " ".join(words[:2])
        assert name in known, f"{page.name}: {code}"
        for word in re.findall(r"(?<!\S)--\w+", code):
            assert word in flags_of(known[name]), f"{page.name}: {code}"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_flags_exist(page: Path) -> None:
    """A flag that was renamed is renamed wherever it is spoken of."""
    known = {f"--{flag.name}" for flag in FLAGS}
    known |= {f"--{name}" for name in (*REFUSED, *WITHOUT_MEANING)}
    known = known.union(FOREIGN, *map(flags_of, parsers().values()))
    for code in _CODE.findall(page.read_text(encoding="utf-8")):
        for word in re.findall(r"(?<!\S)--[a-zA-Z][\w-]*", code):
            assert word in known, f"{page.name}: {code}"


def test_the_servers_text_files_are_read() -> None:
    """Config files and batching parameters between fences are taken as they stand."""
    read = []
    for page in PAGES:
        for text in fenced(page):
            if text.startswith("config {"):
                text = f"model_config_list {{\n{text}}}\n"
            if text.startswith("model_config_list {"):
                read_config_text(text, page.name)
            elif text.startswith("max_batch_size {"):
                read_batching_parameters(text, page.name)
            else:
                continue
            read.append(page.name)
    assert {"README.md", "configuration.md", "batching.md", "warmup-and-logs.md"} <= {
        *read
    }
