"""The names of requests on the control channel, which both sides must know."""

from __future__ import annotations

from typing import Final

RUN_CODE: Final = frozenset({"load", "scale", "rehearse", "session"})
"""Requests that run code of a model, on the control thread unless in the background.
"""
