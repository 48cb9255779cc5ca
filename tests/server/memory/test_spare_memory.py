"""tfs.server.memory.spare_memory: what large messages took is returned after them."""

from __future__ import annotations

from tfs.core.executor import InlineExecutor
from tfs.core.serving_loop import ServingLoop
from tfs.server.memory.spare_memory import QUIET_S, SpareMemory
from tfs.testing.fake_clock import FakeClock


class Server:
    """A loop under a fake clock, and how often the heap was trimmed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock, name="spare")
        self.executor = InlineExecutor()
        self.num_trims = 0
        self.memory = SpareMemory(self.loop, self.executor, self._trim)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.step()

    def _trim(self) -> None:
        self.num_trims += 1


def test_the_heap_is_trimmed_once_when_a_burst_is_over() -> None:
    """Not while large messages come, and not again before the next of them."""
    server = Server()
    for _ in range(4):
        server.memory.note_large_message()
        server.pass_time(QUIET_S * 0.75)
        assert server.num_trims == 0
    server.pass_time(QUIET_S * 0.25)
    assert server.num_trims == 1
    server.pass_time(QUIET_S * 10)
    assert server.num_trims == 1
    server.memory.note_large_message()
    server.pass_time(QUIET_S)
    assert server.num_trims == 2


def test_a_closing_server_is_not_trimmed() -> None:
    """Its threads take nothing any more, and that is no failure of the loop."""
    server = Server()
    server.memory.note_large_message()
    server.executor.close()
    server.pass_time(QUIET_S)
    assert server.num_trims == 0
