"""What a worker is asked for off the request path, as far as both sides must know."""

from __future__ import annotations

from typing import Final

RUN_CODE: Final = frozenset({"load", "scale", "rehearse", "session"})
"""Requests that run code of a model; on the control thread, unless in the background.
"""
