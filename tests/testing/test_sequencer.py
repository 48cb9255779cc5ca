"""Points that order threads."""

from __future__ import annotations

import threading

from tfs.testing.sequencer import Sequencer


def test_thread_waits_until_its_point_is_opened() -> None:
    """A reached point holds; an open one does not."""
    sequencer = Sequencer()
    passed = threading.Event()

    def work() -> None:
        sequencer.reach("a")
        passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    sequencer.wait_reached("a")
    assert not passed.is_set()
    sequencer.open("a")
    thread.join()
    assert passed.is_set()
    sequencer.reach("a")
    assert sequencer.num_reached("a") == 2
    assert sequencer.num_reached("b") == 0
