"""A virtual environment for each peer, below the ignored `.tools/peers/`.

Requirements are complete and pinned, and installed without dependencies: a package that
asked for an older numpy, or for CUDA, changes nothing. An environment is made anew when
its requirements or this Python change. `PIP_*` variables and pip's configuration hold
as everywhere, `TORCH_INDEX` is an index of torch's CPU builds, as in the Makefile.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks.command import run_command
from tests.benchmarks.peers.peer import ROOT, Need, Peer

ENVIRONMENTS = ROOT / ".tools" / "peers"
REQUIREMENTS = Path(__file__).with_name("requirements")

Run = Callable[[Sequence[str]], object]
"""Runs a command; RuntimeError with its last words if it failed."""


class MissingError(Exception):
    """A peer cannot run here; says what is missing and which command installs it."""


def missing(
    needs: Sequence[Need], is_there: Callable[[str], bool] | None = None
) -> list[Need]:
    """Returns what is not installed."""
    return [need for need in needs if not (is_there or _is_there)(need.what)]


def prepare(
    peer: Peer,
    *,
    environments: Path = ENVIRONMENTS,
    run: Run | None = None,
    is_there: Callable[[str], bool] | None = None,
) -> Path:
    """Returns the Python of a peer's environment; makes it so.

    Raises:
        MissingError: Something is not installed here, or cannot be.
    """
    absent = missing(peer.needs, is_there)
    if absent:
        raise MissingError(
            "; ".join(
                f"{peer.name} needs {need.what}: {need.command}" for need in absent
            )
        )
    requirements = REQUIREMENTS / f"{peer.name}.txt"
    folder = environments / peer.name
    stamp = folder / "made-of.sha256"
    made_of = sys.version.encode() + requirements.read_bytes()
    digest = hashlib.sha256(made_of).hexdigest()
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    print(f"==> setting up {peer.name} in {folder}", flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    install = install_commands(python, requirements, os.environ.get("TORCH_INDEX", ""))
    try:
        (run or run_command)([sys.executable, "-m", "venv", str(folder)])
        for command in install:
            (run or run_command)(command)
    except RuntimeError as error:
        by_hand = " && ".join(" ".join(command) for command in install)
        raise MissingError(
            f"{peer.name} cannot be installed ({error}); by hand: {by_hand}"
        ) from error
    stamp.write_text(digest)
    return python


def install_commands(
    python: Path, requirements: Path, torch_index: str
) -> list[list[str]]:
    """Returns the commands that fill an environment."""
    pip = [*(str(python), "-m", "pip", "install"), "--quiet", "--no-deps"]
    pip.append("--disable-pip-version-check")
    all_of_it = [*pip, f"--requirement={requirements}"]
    if not torch_index:
        return [all_of_it]
    torch = next(
        line
        for line in requirements.read_text().splitlines()
        if line.startswith("torch==")
    )
    return [[*pip, f"--index-url={torch_index}", torch], all_of_it]


def _is_there(what: str) -> bool:
    if ".so" not in what:
        return shutil.which(what) is not None
    try:
        ctypes.CDLL(what)
    except OSError:
        return False
    return True
