"""tfs.cli.serving.serve: what happens before the server itself runs."""

from __future__ import annotations

import faulthandler
import signal

import pytest

from tfs.cli.main import main
from tfs.cli.serving import serve


def test_sigterm_while_the_server_starts_ends_it_well(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A supervisor that changes its mind sees no failure; the signal means what it did."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        serve, "apply_settings", lambda: signal.raise_signal(signal.SIGTERM)
    )
    assert main(["serve", "--model_base_path=/models/m"]) == 0
    assert "ended before anything was served" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_crashes_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the server's process may crash it; then its lines are on stderr."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    monkeypatch.setattr(
        serve, "apply_settings", lambda: signal.raise_signal(signal.SIGTERM)
    )
    try:
        main(["serve", "--model_base_path=/models/m"])
        assert faulthandler.is_enabled()
    finally:
        if not was_enabled:
            faulthandler.disable()
