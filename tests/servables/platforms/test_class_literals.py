"""tfs.servables.platforms.python_model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs.core.errors import InvalidArgument
from tfs.servables.platforms.python_model import class_literal
from tfs.servables.reach.source_reach import MAX_SOURCE_BYTES

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
        ("class A:\n  x = {\n", "line 2: .* was never closed"),
        ("class A:\n  x = 'open\n", "line 2: unterminated"),
        ("class A:\n    y = 1\n  x = 2\n", "unindent"),
        ("class A:\n  x = = 1\n", "invalid syntax"),
        ("class A:\n  x = 1\ndef f(:\n", "line 3: invalid syntax"),
        ("class A:\n  x = " + "[" * 300 + "]" * 300 + "\n", "too many nested"),
        ("class A:\n  x = " + "-" * 20_000 + "1\n", "nested too deep"),
        # Which of the two depends on Python's recursion limit, which test tools raise.
        (
            "class A:\n  x = " + "1 if 1 else " * 3_000 + "1\n",
            "nested too deep|not a plain literal",
        ),
        ("class A:\n  x = open('/etc/passwd')\n", "A.x is not a plain literal"),
        ("class A:\n  x = {[]: 1}\n", "A.x is not a plain literal"),
        ("class A:\n  x = " + "9" * 5_000 + "\n", "digits"),
        ("class A:\n  x = '" + "\\'" * 100_000 + "\n", "unterminated"),
        ("#" * (MAX_SOURCE_BYTES + 1), "too many"),
    ],
    ids=range(15),
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    """Whatever the file is, it costs its own version only."""
    with pytest.raises(InvalidArgument, match=words):
        class_literal(source(tmp_path, text), "x")
