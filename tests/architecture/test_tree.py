"""Where files lie and what every one of them must have."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.architecture.tree import ROOT, is_generated, tracked_files

PYTHON_HOMES = {
    "protos",
    "tfs",
    "sources",
    "managers",
    "batching",
    "tests",
    "deploy",
    "docs",
}

# Spelled so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z])/(?:work|farm|root|home/[a-z]+)" + "/")


def test_python_files_lie_in_their_homes_only() -> None:
    """No Python file lies at the root or in a folder that is not named for it."""
    strays = [
        str(path)
        for path in tracked_files("*.py")
        if len(path.parts) == 1 or path.parts[0] not in PYTHON_HOMES
    ]
    assert strays == []


def test_tfs_init_holds_a_docstring_only() -> None:
    """A re-export in tfs/__init__.py would run before everything, and cycle."""
    body = ast.parse((ROOT / "tfs/__init__.py").read_text()).body
    assert [type(node).__name__ for node in body] == ["Expr"]


def test_packages_ship_their_types() -> None:
    """Without py.typed a type checker treats an installed package as unknown."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [each for each in packages if not (ROOT / each / "py.typed").is_file()] == []


def test_folders_of_tests_are_packages() -> None:
    """Without __init__.py, tests/sources and the package sources get confused."""
    folders = {
        parent
        for path in tracked_files("tests/*.py")
        for parent in path.parents
        if parent != Path()
    }
    missing = [
        str(folder)
        for folder in sorted(folders)
        if not (ROOT / folder / "__init__.py").is_file()
    ]
    assert missing == []


def test_no_committed_file_names_a_path_of_somebodys_machine() -> None:
    """A path that exists on one machine only breaks everywhere else."""
    found = []
    for path in tracked_files():
        try:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path}:{number}"
            for number, line in enumerate(lines, start=1)
            if MACHINE_PATH.search(line)
        ]
    assert found == []


def test_every_test_states_the_rule_it_protects() -> None:
    """Each test function's docstring is a sentence, so a failure says what broke."""
    silent = []
    for path in tracked_files("tests/*.py"):
        if is_generated(path):
            continue
        for node in ast.parse((ROOT / path).read_text()).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            docstring = ast.get_docstring(node) or ""
            # Fewer words name a case or a section, and not what must hold.
            if not docstring.endswith((".", "?", "!")) or docstring.count(" ") < 4:
                silent.append(f"{path}:{node.lineno} {node.name}")
    assert silent == []


def test_what_tests_share_lies_in_no_test() -> None:
    """A module with tests in it is imported by none: helpers have modules of their own."""
    # A look at the text: to parse all tests took a hundred times as long.
    found = [
        (str(path), module)
        for path in tracked_files("tests/*.py")
        for module in re.findall(
            r"^ *(?:from|import) (tests\.(?:\w+\.)*test_\w+)",
            (ROOT / path).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert found == []


def test_no_file_outgrows_what_a_reader_takes_in() -> None:
    """A file of more than a thousand lines holds several nouns; each gets its own."""
    long = [
        str(path)
        for path in tracked_files("*.py")
        if not is_generated(path)
        and (ROOT / path).read_text(encoding="utf-8").count("\n") > 1000
    ]
    assert long == []
