"""docs/metrics.md says what tfs.core.stat_names says."""

from __future__ import annotations

from tests.core.metrics_page import PAGE, page
from tfs.core import stat_names


def test_the_page_is_what_the_names_say() -> None:
    """After a change of a name or its meaning: python -m tests.core.metrics_page."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_name_has_a_meaning() -> None:
    """An operator reads the page, not the source."""
    names = (
        value
        for name, value in vars(stat_names).items()
        if name.isupper() and isinstance(value, str)
    )
    assert all(f"| `{name}` | `tfs_" in page() for name in names)
