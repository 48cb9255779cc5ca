"""The exit statuses with which a worker ends itself; its host knows them."""

from __future__ import annotations

from typing import Final

OUT_OF_MEMORY: Final = 97
"""The model holds more memory than it may add."""
LOST_DEVICE: Final = 98
"""A kernel destroyed the process's context on the model's device."""
