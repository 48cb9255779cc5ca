"""How slowly a client may take its answers, or send a large request."""

from __future__ import annotations

from typing import Final

LEAST_PACE_BYTES_PER_S: Final = 16_384
"""A client that is slower than this is treated as if it had stopped."""
