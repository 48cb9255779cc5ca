"""How long a test waits, in real time, for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 80.0
"""For what takes a second at most. Only a test that fails waits that long: where twenty
others compute on two cores, forty were too short."""
