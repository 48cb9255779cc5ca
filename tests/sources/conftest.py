"""What tests of base paths behind URLs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def store() -> Iterator[Any]:
    """fsspec's memory store is one per process: emptied around every test."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    _empty(memory)
    yield memory
    _empty(memory)


def _empty(memory: Any) -> None:
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
