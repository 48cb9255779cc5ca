"""What end-to-end tests share."""

from __future__ import annotations

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
