"""Runs a command that sets something up."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 900.0


def run_command(command: Sequence[str], folder: Path | None = None) -> str:
    """Returns what a command printed, run in ``folder``; its errors are not shown.

    Raises:
        RuntimeError: It failed, with its last words, or took too long.
    """
    name = " ".join(command[:4])
    try:
        result = subprocess.run(
            list(command),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"{name} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} took more than {TIMEOUT_S:g} s") from None
    if result.returncode != 0:
        last = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise RuntimeError(f"{name} failed: {last}")
    return result.stdout
