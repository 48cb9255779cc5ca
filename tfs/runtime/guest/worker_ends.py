"""The statuses with which a worker ends itself; its host knows them."""

from __future__ import annotations

from typing import Final

OUT_OF_MEMORY: Final = 97
"""Its model keeps what it was allowed to add."""
LOST_DEVICE: Final = 98
"""A kernel ended its context on the model's device."""
