"""Prometheus' text format, version 0.0.4: families of samples as lines. Pure.

Names are given as they appear in the text. Families come in the order of their first
sample, and the samples of each stay together, as the format requires.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

from tfs.core.stats import HistogramSnapshot, Labels

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """A page that is being written. Confined to one thread.

    Args:
        help_texts: What families mean, by name; one without a text gets no help.

    """

    def __init__(self, help_texts: Mapping[str, str] = MappingProxyType({})) -> None:
        self._help_texts = help_texts
        self._families: dict[str, tuple[Kind, list[str]]] = {}

    def add(self, name: str, kind: Kind, labels: Labels, value: float) -> None:
        """Adds one sample."""
        self._lines(name, kind).append(f"{name}{_braced(labels)} {_number(value)}")

    def add_histogram(
        self, name: str, labels: Labels, found: HistogramSnapshot, scale: float = 1.0
    ) -> None:
        """Adds a histogram; ``scale`` brings its values to the unit of the name."""
        lines = self._lines(name, "histogram")
        braced = _braced(labels)
        begin = f"{name}_bucket{braced[:-1]}," if braced else f"{name}_bucket{{"
        seen = 0
        for limit, count in zip(
            _limits(found.bounds, scale), found.counts, strict=True
        ):
            seen += count
            lines.append(f"{begin}{limit} {seen}")
        lines.append(f"{name}_sum{braced} {_number(found.total * scale)}")
        lines.append(f"{name}_count{braced} {seen}")

    def lines(self) -> Iterator[str]:
        """Yields the lines of the page, without line ends."""
        for name, (kind, lines) in self._families.items():
            help_text = self._help_texts.get(name)
            if help_text:
                yield f"# HELP {name} {help_text.translate(_HELP_ESCAPES)}"
            yield f"# TYPE {name} {kind}"
            yield from lines

    def _lines(self, name: str, kind: Kind) -> list[str]:
        return self._families.setdefault(name, (kind, []))[1]


@functools.lru_cache(maxsize=256)
def _limits(bounds: tuple[float, ...], scale: float) -> tuple[str, ...]:
    return tuple(f'le="{_number(bound * scale)}"}}' for bound in (*bounds, math.inf))


@functools.lru_cache(maxsize=4096)
def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels)
    return f"{{{inner}}}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(round(value, 9))
