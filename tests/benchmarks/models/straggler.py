"""A model of which some calls take long, and what they were: source of a Python servable."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tfs.export

SLOW_S: Final = 0.2
_SHARE: Final = 0.02

_SOURCE: Final = """
import os
import random
import time

import numpy as np


class Straggler:
    concurrency = 64
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"key": {"dtype": "string", "shape": [-1]}},
            "outputs": {"price": {"dtype": "int64", "shape": [-1]}},
        }
    }

    def predict(self, key):
        with open("FOLDER/calls", "ab", buffering=0) as calls:
            calls.write(b".")
        if os.path.exists("FOLDER/all-slow") or random.random() < SHARE:
            time.sleep(SLOW_S)
        return {"price": np.ones(len(key), np.int64)}
"""


def write_straggler(folder: Path, base_path: Path) -> None:
    """Writes a version that answers 1, and counts its calls in ``folder``."""
    source = _SOURCE.replace("FOLDER", str(folder))
    source = source.replace("SHARE", str(_SHARE)).replace("SLOW_S", str(SLOW_S))
    file = folder / "straggler.py"
    file.write_text(source)
    tfs.export.save_python(file, base_path)


def num_calls(folder: Path) -> int:
    """Returns how many calls of that version have begun."""
    calls = folder / "calls"
    return calls.stat().st_size if calls.exists() else 0


def make_all_slow(folder: Path) -> None:
    """Has every call take long from now on."""
    (folder / "all-slow").touch()
