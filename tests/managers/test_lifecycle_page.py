"""docs/lifecycle.md says what the tables say."""

from __future__ import annotations

from managers.versions.harness_state import HarnessState
from tests.managers.lifecycle_page import MEANINGS, PAGE, PUBLISHED, lifecycle_page
from tfs.core.servable_state import ManagerState


def test_page_is_fresh() -> None:
    """After a change of a table: python -m tests.managers.lifecycle_page."""
    assert PAGE.read_text() == lifecycle_page()


def test_every_state_is_explained() -> None:
    """A new state gets a line."""
    assert MEANINGS.keys() == set(HarnessState)
    assert PUBLISHED.keys() == set(ManagerState)
