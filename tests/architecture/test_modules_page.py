"""docs/modules.md says what the modules say."""

from __future__ import annotations

from tests.architecture.modules_page import PAGE, page


def test_page_has_every_module_as_it_describes_itself() -> None:
    """After a new module, or another first sentence of one: make pages."""
    assert PAGE.read_text(encoding="utf-8") == page()
