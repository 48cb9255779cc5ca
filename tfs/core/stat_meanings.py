"""What each stat counts, in words: the texts below the names in ``stat_names``.

They stand there once, for whoever reads the source; docs/metrics.md and the help of
metrics print them.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tfs.core import stat_names

_TEXT: Final = re.compile(
    r"(?P<kind>Counter|Gauge|Histogram)(?:, (?P<where>\w+))?: (?P<meaning>.+)"
)


@dataclass(frozen=True, slots=True)
class StatMeaning:
    """What a stat counts. Immutable.

    Attributes:
        kind: Counter, Gauge or Histogram.
        where: The transport that has it; "" if the server has it anyway.
        text: What is counted, and the labels, in one line.

    """

    kind: str
    where: str
    text: str


@functools.cache
def stat_meanings() -> Mapping[str, StatMeaning]:
    """Returns the meaning of every stat; nothing where the source is not installed."""
    try:
        body = ast.parse(inspect.getsource(stat_names)).body
    except OSError:
        return {}
    found = {}
    for definition, text in itertools.pairwise(body):
        match definition, text:
            case (
                ast.AnnAssign(value=ast.Constant(value=str(name))),
                ast.Expr(value=ast.Constant(value=str(told))),
            ):
                parts = _TEXT.fullmatch(" ".join(told.replace("``", "`").split()))
                if parts is not None:
                    found[name] = StatMeaning(
                        parts["kind"], parts["where"] or "", parts["meaning"]
                    )
    return MappingProxyType(found)
