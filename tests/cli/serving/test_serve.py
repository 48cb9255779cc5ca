"""tfs.cli.serving.serve: what happens before the server itself runs."""

from __future__ import annotations

import faulthandler

import pytest

from tfs.cli.main import main
from tfs.cli.serving import serve
from tfs.core.errors import FailedPrecondition


def test_a_server_that_crashes_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the server's process may crash it; then its lines are on stderr."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()

    def end() -> None:
        raise FailedPrecondition("that is far enough")

    monkeypatch.setattr(serve, "apply_settings", end)
    try:
        assert main(["serve", "--model_base_path=/models/m"]) == 1
        assert faulthandler.is_enabled()
    finally:
        if not was_enabled:
            faulthandler.disable()
