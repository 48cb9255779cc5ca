"""A server's collections of garbage visit what came after its start only."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from tfs.server.system.garbage import freeze_imported
from tfs.server.system.interpreter_lock import SWITCH_INTERVAL_S


class Node:
    """Something that can hold itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_made_before_and_after_are_handled_apart() -> None:
    """Garbage is not frozen with the rest, and later garbage is still collected."""
    before = weakref.ref(Node())
    try:
        freeze_imported()
        assert before() is None
        after = weakref.ref(Node())
        gc.collect()
        assert after() is None
    finally:
        gc.unfreeze()


_SCRIPT = """
import gc, sys
from tfs.server import process

def counts(self, *args):
    print("torch" in sys.modules, gc.get_freeze_count(), len(gc.get_objects()),
          sys.getswitchinterval())

prepare = process.ModelServer.prepare
process.ModelServer.start = lambda self, config: counts(self) or []
process.ModelServer.prepare = lambda self: (prepare(self), counts(self), sys.exit())
from tfs.cli.main import main
main(["serve", "--any_port", "--model_base_path=/nowhere"])
"""


def test_a_server_leaves_its_imports_to_no_collection() -> None:
    """Nearly all objects are frozen before the first port opens; torch, which takes a
    second, is imported after that, and frozen in its turn. By then threads that compute in
    Python hand the lock over sooner than Python does.
    """
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=200
    )
    lines = [line.split() for line in result.stdout.splitlines()]
    found = [line for line in lines if line[0] in ("True", "False")]
    assert [has_torch for has_torch, *_ in found] == ["False", "True"], result.stderr
    for _, num_frozen, num_others, interval_s in found:
        assert int(num_frozen) > 20 * int(num_others)
        assert float(interval_s) == pytest.approx(SWITCH_INTERVAL_S, abs=1e-6)
