"""Keeps torch from compiling models that are being served.

Because of a decorator in a model's file, each of its processes would run a C++ compiler
at the first call, and again for each new number of rows, while clients wait. On a host
without a compiler every call would fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNCOMPILED: Final[Mapping[str, str]] = {"TORCHDYNAMO_DISABLE": "1"}
"""Environment variables to set before torch's compiler is imported. If the environment
already has a 0 there, the compiler stays on."""
