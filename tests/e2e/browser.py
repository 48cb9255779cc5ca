"""A headless Chromium for tests of the page; skipped where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = "/usr/bin/chromium"
_ARGUMENTS: Final = (
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Runs a browser. Skips the test without one; fails it where engines are required."""
    problem = (
        "" if Path(CHROMIUM).exists() else f"no {CHROMIUM}; .ci/engines installs it"
    )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        problem = "no playwright; it is in the extra engines"
    if problem:
        if os.environ.get("TFS_ENGINES") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()
