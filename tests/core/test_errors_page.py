"""docs/errors.md says what tfs.core.errors says."""

from __future__ import annotations

from tests.core.errors_page import PAGE, page


def test_the_page_is_what_the_table_says() -> None:
    """After a change of the table: python -m tests.core.errors_page."""
    assert PAGE.read_text(encoding="utf-8") == page()
