"""What the queries of the board and of the alerts ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from tests.architecture.tree import ROOT

MONITORING = ROOT / "deploy/monitoring"

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
_METRIC = re.compile(r"(?<![\w$:])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*\(|[\w:])")
_MATCHER = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_WORDS = {"by", "on", "without", "or", "and", "unless", "le"}


def queries() -> Iterator[str]:
    """Yields every query of the board and every condition of an alert."""
    board = json.loads((MONITORING / "grafana/board.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    text = (MONITORING / "alerts.yaml").read_text()
    for block in re.findall(r"expr: (.*(?:\n {10}.*)*)", text):
        yield " ".join(block.removeprefix(">-").split())


def asked_of(query: str) -> Mapping[str, frozenset[str]]:
    """Returns the labels that a query expects, by each metric that it names."""
    groups: set[str] = set()
    for found in _GROUPING.findall(query):
        groups |= {label.strip() for label in found.split(",")}
    rest = re.sub(r"\[[^\]]*\]", "", _GROUPING.sub(" ", query))
    asked: dict[str, frozenset[str]] = {}
    for name, braces in _METRIC.findall(_STRING.sub('""', rest)):
        if name not in _WORDS:
            asked[name] = frozenset(_MATCHER.findall(braces)) | groups
    return asked
