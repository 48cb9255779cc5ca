"""tfs.server.system.spare_memory: what large messages took is returned after them."""

from __future__ import annotations

from tfs.core.executor import InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.server.system.spare_memory import (
    LOOK_S,
    MUCH_BYTES,
    QUIET_S,
    RETURNED_BYTES_PER_S,
    SpareMemory,
)
from tfs.testing.fake_clock import FakeClock


class Server:
    """A loop under a fake clock, and how often the heap was trimmed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock, name="spare")
        self.executor = InlineExecutor()
        self.num_trims = 0
        self.resident_bytes = 300 << 20
        self.kept_bytes = 0  # what no trim returns
        self.scarcities: list[bool] = []
        self.memory = SpareMemory(
            self.loop,
            self.executor,
            self._trim,
            lambda: self.resident_bytes,
            self.scarcities.append,
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.step()

    def _trim(self) -> None:
        self.num_trims += 1
        self.resident_bytes = (300 << 20) + self.kept_bytes


def test_the_heap_is_trimmed_once_when_a_burst_is_over() -> None:
    """The heap is trimmed after the last large message, and then not again."""
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


def test_growth_is_returned_while_large_messages_go_on() -> None:
    """What each large message adds to the heap is returned before the last of them."""
    server = Server()
    for number in range(1, 4):
        server.resident_bytes += MUCH_BYTES
        server.memory.note_large_message()
        assert server.num_trims == number
        server.pass_time(max(LOOK_S, MUCH_BYTES / RETURNED_BYTES_PER_S))


def test_many_large_messages_do_not_have_the_heap_trimmed_each_time() -> None:
    """The system is asked for what was returned again, so much is returned rarely."""
    server = Server()
    returned_bytes = 10 * RETURNED_BYTES_PER_S
    for number in (1, 2):
        for _ in range(10):
            server.resident_bytes = (300 << 20) + returned_bytes
            server.memory.note_large_message()
            assert server.num_trims == number
            server.pass_time(1.0)


def test_a_heap_that_does_not_grow_is_not_trimmed_between_large_messages() -> None:
    """Large messages that fit into what is there cost nothing."""
    server = Server()
    server.resident_bytes += MUCH_BYTES - 1
    for _ in range(10):
        server.memory.note_large_message()
        server.pass_time(LOOK_S)
    assert server.num_trims == 0


def test_a_closing_server_is_not_trimmed() -> None:
    """Its threads take nothing any more, and that is no failure of the loop."""
    server = Server()
    server.memory.note_large_message()
    server.executor.close()
    server.pass_time(QUIET_S)
    assert server.num_trims == 0


def test_growth_is_returned_each_second_while_memory_is_scarce() -> None:
    """While memory is scarce, growth is returned every second if there is much of it."""
    server = Server()
    server.memory.note_scarcity()
    server.resident_bytes += MUCH_BYTES - 1
    server.pass_time(LOOK_S)
    assert server.num_trims == 0
    for number in (1, 2):
        server.resident_bytes += MUCH_BYTES
        server.memory.note_scarcity()
        server.pass_time(LOOK_S)
        assert server.num_trims == number
    server.kept_bytes = 2 * MUCH_BYTES
    server.resident_bytes += server.kept_bytes
    for _ in range(3):
        server.memory.note_scarcity()
        server.pass_time(LOOK_S)
        assert server.num_trims == 3


def test_large_blocks_come_from_elsewhere_until_memory_was_not_scarce_for_a_while() -> (
    None
):
    """Large blocks return to the heap some time after the last note of scarcity."""
    server = Server()
    server.pass_time(QUIET_S)
    assert server.scarcities == []
    for _ in range(5):
        server.memory.note_scarcity()
        server.pass_time(QUIET_S * 0.75)
        assert server.scarcities == [True]
    server.memory.note_large_message()
    server.pass_time(QUIET_S * 0.25)
    assert server.scarcities == [True, False]
    server.memory.note_scarcity()
    assert server.scarcities == [True, False, True]
