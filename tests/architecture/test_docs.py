"""Links of the documentation, and the files that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, tracked_files

PAGES = [ROOT / page for page in tracked_files("*.md")]
MODULES = [f"/{path.as_posix()}" for path in tracked_files("*.py")]


def by_name(page: Path) -> str:
    return page.name


def anchors_of(page: Path) -> set[str]:
    """Returns what links may name of a page: its headings, as GitHub spells them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^a-z0-9 -]", "", head.lower()) for head in heads]
    return {head.strip().replace(" ", "-") for head in plain}


def python_examples_of(page: Path) -> list[str]:
    """Returns the examples of a page, but for doctests, which are run elsewhere."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^( *)```python[^\n]*\n(.*?)^ *```$", text, re.M | re.S)
    return [
        re.sub(f"^{indent}", "", code, flags=re.M)
        for indent, code in found
        if not code.startswith(">>> ")
    ]


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    """A link leads to a file of the tree, and to a heading that this file has."""
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text):
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_of(other), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_named_modules_exist(page: Path) -> None:
    """Pages name them whole, or by the end of their path."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+(?:/\w+)+\.py)`", text):
        assert any(file.endswith(f"/{name}") for file in MODULES), (
            f"{page.name} names {name}"
        )


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_python_examples_are_python(page: Path) -> None:
    """Every example compiles, also those that stand for a reader's own code."""
    for code in python_examples_of(page):
        compile(code, page.name, "exec")


def test_python_examples_are_found() -> None:
    """Else a fence that is written another way would have nothing compiled."""
    pages = {page.name for page in PAGES if python_examples_of(page)}
    assert pages >= {"README.md", "quickstart.md", "client.md", "exporting.md"}


def test_what_docstrings_refer_to_exists() -> None:
    """A reference like :class:`tfs.core.call.Call` leads to a module that has the name."""
    broken = []
    for path in tracked_files("*.py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(
            r":\w+:`~?((?:tfs|sources|managers|batching)[.\w]*)`", text
        ):
            parts = name.split(".")
            depth = len(parts)
            while not (file := _module_at(parts[:depth])):
                depth -= 1
            source = file.read_text(encoding="utf-8")
            if not all(re.search(rf"\b{part}\b", source) for part in parts[depth:]):
                broken.append(f"{path} refers to {name}")
    assert broken == []


def _module_at(parts: list[str]) -> Path | None:
    folder = ROOT.joinpath(*parts)
    files = (folder.with_suffix(".py"), folder / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def test_every_room_has_a_row_in_the_architecture() -> None:
    """A package that the page does not name is one that nobody decided about."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE))
    packages = {f"tfs/{path.parts[1]}" for path in tracked_files("tfs/*/*.py")}
    assert rows == packages | {"sources", "managers", "batching"}


def test_the_readme_leads_to_every_page() -> None:
    """Nobody looks for a page in a folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert pages == set(re.findall(r"\]\(docs/([\w-]+\.md)", text))
