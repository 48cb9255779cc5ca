"""Asks a server by `tfs page` where its page is, with its key."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.warm_python import ROOT
from tfs.testing.patience import PATIENCE_S


def page_url(address: str) -> str:
    """Returns the URL that the command prints."""
    command = [sys.executable, "-m", "tfs", "page", f"--address={address}"]
    printed = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return printed.stdout.strip()
