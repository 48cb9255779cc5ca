"""Runs a command to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

TIMEOUT_S = 900.0


def run_command(
    command: Sequence[str],
    folder: Path | None = None,
    *,
    stdin: str = "",
    timeout_s: float = TIMEOUT_S,
    good_codes: Collection[int] = (0,),
) -> str:
    """Returns what a command printed, run in ``folder``; its errors are not shown.

    Raises:
        RuntimeError: It exited with another code than those, with its last words, or
            took too long.
    """
    name = " ".join(command[:4])
    try:
        result = subprocess.run(
            list(command),
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise RuntimeError(f"{name} cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} took more than {timeout_s:g} s") from None
    if result.returncode not in good_codes:
        last = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise RuntimeError(f"{name} failed with {result.returncode}: {last}")
    return result.stdout
