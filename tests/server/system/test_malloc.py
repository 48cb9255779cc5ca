"""malloc's thresholds: what is set, what an operator's word is worth, what returns."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tfs.server.system.malloc import (
    PLENTY_SETTINGS,
    SCARCE_SETTINGS,
    SETTINGS,
    apply_settings,
)

ROOT = Path(__file__).resolve().parents[3]
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs glibc"
)

UNLOAD = """
import re
from pathlib import Path
import torch
from tfs.core.process_memory import release_to_system
from tfs.server.system.malloc import SETTINGS, apply_settings

assert apply_settings() == SETTINGS

def resident_kb():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s*(\\d+)", status)[1])

torch.zeros(1) + 1
before_kb = resident_kb()
# A model's weights, smaller and larger than any setting, with small things that
# stay in between, as loading leaves them.
kept, weights = [], []
for size_kb in [64, 512, 4096, 20480] * 10 + [65536]:
    weights.append(torch.ones(size_kb << 8))
    kept.append(bytearray(3000))
loaded_kb = resident_kb() - before_kb
weights.clear()
release_to_system()
left_kb = resident_kb() - before_kb
print(loaded_kb, left_kb)
"""

LARGE = """
import resource
from tfs.server.system.malloc import apply_settings
import sys

if sys.argv[1] == "set":
    apply_settings()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    requests = [b"x" * (10 << 20) for _ in range(6)]
    del requests
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


THREADS = """
import re, sys, threading
from pathlib import Path
from tfs.core.process_memory import trim_heap
from tfs.server.system.malloc import apply_settings

if sys.argv[1] == "set":
    apply_settings()

def resident_kb():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s*(\\d+)", status)[1])

before_kb = resident_kb()
waiting, enough = threading.Semaphore(0), threading.Event()

def work():
    b"x" * (20 << 20)  # and lets go of it
    waiting.release()
    enough.wait()

for _ in range(4):
    threading.Thread(target=work).start()
    waiting.acquire()
trim_heap()
print((resident_kb() - before_kb) >> 10)
enough.set()
"""


def run(script: str, *arguments: str) -> list[int]:
    """Runs `script` in a process of its own; returns the numbers it printed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))
    }
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [int(word) for word in result.stdout.split()]


class Mallopt:
    """Records what is set; refuses nothing, or everything."""

    def __init__(self, answer: int = 1) -> None:
        self._answer = answer
        self.settings: dict[int, int] = {}

    def __call__(self, parameter: int, value: int) -> int:
        self.settings[parameter] = value
        return self._answer


def test_every_threshold_is_set() -> None:
    """Mapped from 32 MiB, trimmed from 256 MiB, grown by 64 MiB."""
    mallopt = Mallopt()
    assert apply_settings(mallopt, {}) == SETTINGS
    assert mallopt.settings == {-3: 32 << 20, -1: 256 << 20, -2: 1 << 20, -8: 1}


def test_scarcity_and_its_end_are_about_the_same_thresholds() -> None:
    """Mapped from 1 MiB, trimmed from 4 MiB; those that are set back to what they were."""
    mallopt = Mallopt()
    assert apply_settings(mallopt, {}, SCARCE_SETTINGS) == SCARCE_SETTINGS
    assert mallopt.settings == {-3: 1 << 20, -1: 4 << 20}
    assert apply_settings(mallopt, {}, PLENTY_SETTINGS) == PLENTY_SETTINGS
    assert mallopt.settings == {-3: 32 << 20, -1: 256 << 20}


@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TOP_PAD_": "0"},
        {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.top_pad=0"},
    ],
)
def test_what_the_operator_set_stays(environment: dict[str, str]) -> None:
    """The environment comes first, each setting by itself."""
    mallopt = Mallopt()
    apply_settings(mallopt, environment)
    assert mallopt.settings == {-3: 32 << 20, -1: 256 << 20, -8: 1}


def test_a_refusal_is_reported() -> None:
    """What glibc did not take is not among what is in force."""
    assert apply_settings(Mallopt(answer=0), {}) == ()


@needs_glibc
def test_what_a_thread_let_go_of_is_returned() -> None:
    """20 MB at the end of a heap of each thread's own stay there, whoever trims."""
    (left_mb,) = run(THREADS, "set")
    assert left_mb < 20


@needs_glibc
def test_large_blocks_are_not_mapped_again_and_again() -> None:
    """Six messages of 10 MB cost their page faults once, not every time."""
    (given_back,) = run(LARGE, "unset")
    (kept,) = run(LARGE, "set")
    assert kept < given_back / 4


@needs_glibc
def test_unloading_returns_the_memory() -> None:
    """At least 95 % of the memory of a model's weights go back to the system."""
    loaded_kb, left_kb = run(UNLOAD)
    assert loaded_kb > 250_000
    assert left_kb <= 0.05 * loaded_kb
