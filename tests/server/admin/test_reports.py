from __future__ import annotations

import pytest

from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.admin.reports import version_report


@pytest.mark.parametrize(
    ("state", "is_told"), [(ManagerState.AVAILABLE, True), (ManagerState.END, False)]
)
def test_memory_is_told_of_what_is_loaded(state: ManagerState, is_told: bool) -> None:
    """What a version took counts no more once it has given it back."""
    seen = ServableState(ServableId("digits", 1), state, resident_bytes=1 << 20)
    assert version_report(seen).memory.HasField("resident_bytes") is is_told
