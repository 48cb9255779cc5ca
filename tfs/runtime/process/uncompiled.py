"""Keeps torch from compiling what models say it should, where they are served.

A decorator in a model's file would have every process of it run a C++ compiler at its
first call, and again for each new number of rows, while clients wait; where there is
none, every call fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNCOMPILED: Final[Mapping[str, str]] = {"TORCHDYNAMO_DISABLE": "1"}
"""Environment variables that have to be set before torch's compiler is imported; a 0
there leaves the compiler on."""
