"""What end-to-end tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import export_scale


@pytest.fixture(scope="session")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base path of a model with versions 1 and 2, which nobody changes."""
    base_path = tmp_path_factory.mktemp("models") / "scale"
    export_scale(base_path, 1)
    export_scale(base_path, 2)
    return base_path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets below it."""
    with tempfile.TemporaryDirectory(prefix="tfs") as folder:
        yield Path(folder)
