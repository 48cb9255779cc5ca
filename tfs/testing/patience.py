"""How long a test waits, in real time, for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 80.0
"""The limit for waits that take a second at most. Only a test that fails waits that
long. Forty were too few where twenty other programs computed on two cores."""
