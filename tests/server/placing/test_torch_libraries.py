"""Torch's libraries are there before torch is imported."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from tfs.server.placing.interpreters import map_torch_libraries
assert map_torch_libraries() == 2
assert "torch" not in sys.modules
assert "libtorch_cpu.so" in open("/proc/self/maps").read()
import torch
assert torch.nn.Linear(3, 2)(torch.ones(4, 3)).shape == (4, 2)
assert map_torch_libraries() == 2
"""


def test_libraries_are_mapped_without_torch_and_torch_works_on_them() -> None:
    """What the import finds mapped is what it would have mapped."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=120)


def test_without_torch_nothing_is_mapped() -> None:
    """The import says what is missing, not this."""
    program = """
import importlib.util
from tfs.server.placing.interpreters import map_torch_libraries
importlib.util.find_spec = lambda name: None
assert map_torch_libraries() == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
