"""docs/errors.md knows the errors of tfs.core.errors."""

from __future__ import annotations

from pathlib import Path

from tfs.core.errors import BY_CODE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def test_the_page_says_of_each_code_what_it_means() -> None:
    """In the words of its error, and whether to repeat the call."""
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    for code, kind in BY_CODE.items():
        beginning = f"| {code.name} ({code.value}) | {(kind.__doc__ or '').strip()} | "
        assert any(row.startswith(beginning) for row in rows), beginning
