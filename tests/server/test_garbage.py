"""A server's collections of garbage visit what came after its start only."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

from tfs.server.garbage import freeze_imported


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


def test_a_server_leaves_its_imports_to_no_collection() -> None:
    """Nearly all objects are frozen before the first port opens."""
    script = (
        "import gc, sys\n"
        "from tfs.server import process\n"
        "def start(*args): print(gc.get_freeze_count(), len(gc.get_objects())); "
        "raise SystemExit\n"
        "process.ModelServer.start = start\n"
        "from tfs.cli.main import main\n"
        "main(['serve', '--any_port', '--model_base_path=/nowhere'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    num_frozen, num_others = map(int, result.stdout.split())
    assert num_frozen > 100 * num_others, result.stderr
