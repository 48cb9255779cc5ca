"""tfs.servables.platforms.python_model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs.core.errors import InvalidArgument
from tfs.servables.platforms.python_model import PythonModel
from tfs.servables.source_reach import MAX_SOURCE_BYTES
from tfs.servables.version_files import VersionDescription

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
        "serving_default": {  # with a comment
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
        },
    }; concurrency: int = 4

class Third:
    signatures = "late"
'''


def described(folder: Path, text: str | bytes) -> VersionDescription:
    """Writes a source file; returns what it says of the version."""
    path = folder / "servable.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return PythonModel().describe(str(folder))


def test_the_first_class_that_says_it_counts(tmp_path: Path) -> None:
    """What stands elsewhere, in words, functions, inner classes, is not meant."""
    description = described(tmp_path, SOURCE)
    assert list(description.signatures) == ["serving_default"]
    assert description.entry == {"concurrency": 4}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"class A:\n concurrency = 1\0\n", "null byte"),
        (b"class A:\n concurrency = '\xff'\n", "utf-8"),
        ("class A:\n  concurrency = {\n", "line 2: .* was never closed"),
        ("class A:\n  concurrency = 'open\n", "line 2: unterminated"),
        ("class A:\n    y = 1\n  concurrency = 2\n", "unindent"),
        ("class A:\n  concurrency = = 1\n", "invalid syntax"),
        ("class A:\n  concurrency = 1\ndef f(:\n", "line 3: invalid syntax"),
        (
            "class A:\n  concurrency = " + "[" * 300 + "]" * 300 + "\n",
            "too many nested",
        ),
        ("class A:\n  concurrency = " + "-" * 20_000 + "1\n", "nested too deep"),
        # Which of the two depends on Python's recursion limit, which test tools raise.
        (
            "class A:\n  concurrency = " + "1 if 1 else " * 3_000 + "1\n",
            "nested too deep|not a plain literal",
        ),
        (
            "class A:\n  concurrency = open('/etc/passwd')\n",
            "A.concurrency is not a plain literal",
        ),
        ("class A:\n  concurrency = {[]: 1}\n", "A.concurrency is not a plain literal"),
        ("class A:\n  concurrency = " + "9" * 5_000 + "\n", "digits"),
        ("class A:\n  concurrency = '" + "\\'" * 100_000 + "\n", "unterminated"),
        ("#" * (MAX_SOURCE_BYTES + 1), "too many"),
    ],
    ids=range(15),
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    """Whatever the file is, it costs its own version only."""
    with pytest.raises(InvalidArgument, match=words):
        described(tmp_path, text)
