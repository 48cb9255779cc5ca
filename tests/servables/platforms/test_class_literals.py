"""tfs.servables.platforms.python_model."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tfs.core.errors import InvalidArgument
from tfs.servables.platforms.python_model import class_literal

SOURCE = '''"""signatures = {"not": "this"}"""
import signatures

signatures = {"nor": "this"}

def helper():
    signatures = {"nor": "that"}

class First:
    """Says nothing: signatures = 1."""

    limit: int = 3

    @signatures.register
    def signatures(self):
        class Inner:
            signatures = {"too": "deep"}

class Second(First):
    text = """
signatures = 2
"""
    other = signatures
    if signatures == other or helper(signatures=1):
        pass
    # signatures = 3
    a = signatures = {
        "serving_default": ["x", (1, -2.5)],  # with a comment
    }; concurrency: int = 4

class Third:
    signatures = "late"
'''


def source(folder: Path, text: str | bytes) -> str:
    """Writes a source file; returns its path."""
    path = folder / "servable.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_the_first_class_that_says_it_counts(tmp_path: Path) -> None:
    """What stands elsewhere, in words, functions, inner classes, is not meant."""
    path = source(tmp_path, SOURCE)
    assert class_literal(path, "signatures") == (
        "Second",
        {"serving_default": ["x", (1, -2.5)]},
    )
    assert class_literal(path, "concurrency") == ("Second", 4)
    assert class_literal(path, "limit") == ("First", 3)
    assert class_literal(path, "absent") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"class A:\n x = 1\0\n", "null byte"),
        (b"class A:\n x = '\xff'\n", "utf-8"),
        ("class A:\n  x = {\n", "line 3: EOF"),
        ("class A:\n  x = 'open\n", "line 2 is not Python"),
        ("class A:\n    y = 1\n  x = 2\n", "unindent"),
        ("class A:\n  x = = 1\n", "invalid syntax"),
        ("class A:\n  x = " + "[" * 60 + "]" * 60 + "\n", "nested too deep"),
        ("class A:\n  x = " + "-" * 20_000 + "1\n", "nested too deep"),
        # Which of the two depends on Python's recursion limit, which test tools raise.
        (
            "class A:\n  x = " + "1 if 1 else " * 3_000 + "1\n",
            "nested too deep|not a plain literal",
        ),
        ("class A:\n  x = [" + "1," * 40_000 + "]\n", "characters"),
        ("class A:\n  x = open('/etc/passwd')\n", "A.x is not a plain literal"),
        ("class A:\n  x = {[]: 1}\n", "A.x is not a plain literal"),
        ("class A:\n  x = " + "9" * 5_000 + "\n", "digits"),
        ("#" * (2 << 20), "too many"),
    ],
    ids=range(14),
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    """Whatever the file is, it costs its own version only."""
    with pytest.raises(InvalidArgument, match=words):
        class_literal(source(tmp_path, text), "x")


def test_only_the_statement_asked_for_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing holds up every other thread: seconds for a megabyte."""
    parsed: list[str] = []
    parse = ast.parse

    def parse_noted(text: str) -> ast.Module:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", parse_noted)
    text = "table = [1, 2, 3]\n" * 10_000 + "class A:\n  x = {'a': 1}\n"
    assert class_literal(source(tmp_path, text), "x") == ("A", {"a": 1})
    assert parsed == ["x = {'a': 1}"]


def test_every_line_of_a_hostile_quote_is_not_tried_anew(tmp_path: Path) -> None:
    """An open quote ends the reading at once, or each character would start it again."""
    path = source(tmp_path, "class A:\n  x = '" + "\\'" * 400_000 + "\n")
    with pytest.raises(InvalidArgument, match="not Python"):
        class_literal(path, "x")
