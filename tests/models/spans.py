"""Classes of arguments, which the file of their model does not import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Span(NamedTuple):
    """From where to where."""

    low: Tensor
    high: Tensor


@dataclass
class Query:
    """A span, and settings."""

    span: Span
    weight: Tensor | None = None
    factor: float = 2.0
