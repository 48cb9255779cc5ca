"""docs/flags.md says what tfs.server.options says."""

from __future__ import annotations

from tests.cli.flags_page import PAGE, page


def test_the_page_is_what_the_table_says() -> None:
    """After a change of the flags: python -m tests.cli.flags_page."""
    assert PAGE.read_text(encoding="utf-8") == page()
