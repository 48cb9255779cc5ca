"""Receive windows come out of one budget, which always adds up."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import parse_frames
from tfs.frontends.rpc.express.http2.flow_control import (
    LEAST_GRANT,
    ReceiveBudget,
    ReceiveWindow,
)
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    ConnectionFault,
    ErrorCode,
    unpack_uint32,
)

MIB = 1 << 20


def increment(data: bytes) -> int:
    return sum(int(unpack_uint32(sent.payload)[0]) for sent in parse_frames(data))


def use_half(window: ReceiveWindow, budget: ReceiveBudget) -> bytes:
    """Receives half of what may come, has it done with, and refills."""
    num_bytes = window.size // 2 + 1
    window.receive(num_bytes)
    budget.release(num_bytes)
    return window.refill()


def grown(budget: ReceiveBudget, preferred: int = MIB) -> ReceiveWindow:
    """Returns a window that has grown as far as it does."""
    window = ReceiveWindow(budget, preferred)
    for _ in range(6):
        use_half(window, budget)
    return window


def test_a_window_grows_with_its_use_to_what_is_preferred() -> None:
    """Whoever only connects is granted nothing; after half a window comes four."""
    budget = ReceiveBudget(200 * MIB)
    window = ReceiveWindow(budget, MIB)
    assert window.refill() == b""
    assert budget.used_bytes == DEFAULT_WINDOW
    sizes = []
    for _ in range(4):
        use_half(window, budget)
        sizes.append(window.size)
    assert sizes == [4 * DEFAULT_WINDOW, 16 * DEFAULT_WINDOW, MIB, MIB]


def test_a_thousand_idle_connections_leave_an_upload_its_window() -> None:
    """What they were granted could not be taken back from them."""
    budget = ReceiveBudget(256 * MIB)
    idle = [ReceiveWindow(budget, 8 * MIB) for _ in range(1500)]
    assert all(window.refill() == b"" for window in idle)
    assert grown(budget, 8 * MIB).size > MIB - 65_536


def test_a_connection_takes_no_large_share_of_what_is_left() -> None:
    """Many connections shrink each other's windows, not below HTTP/2's own."""
    budget = ReceiveBudget(MIB)
    windows = [grown(budget) for _ in range(20)]
    for window in windows:
        assert DEFAULT_WINDOW <= window.target <= MIB // 8
    assert budget.used_bytes == sum(window.size for window in windows)


def test_arriving_bytes_move_from_window_to_held() -> None:
    """Receiving changes nothing in the budget; releasing does."""
    budget = ReceiveBudget(100 * MIB)
    window = ReceiveWindow(budget, MIB)
    used = budget.used_bytes
    window.receive(1000)
    assert budget.used_bytes == used
    budget.release(1000)
    assert budget.used_bytes == used - 1000


def test_refills_come_in_large_pieces() -> None:
    """Only when half of the window is used up."""
    window = grown(ReceiveBudget(160 * MIB))
    window.receive(MIB // 2 - 1)
    assert window.refill() == b""
    window.receive(1)
    assert increment(window.refill()) == MIB // 2


def test_an_empty_budget_grants_nothing() -> None:
    """Bytes that nobody gave back are not lent again."""
    budget = ReceiveBudget(300_000)
    window = ReceiveWindow(budget, MIB)
    window.receive(DEFAULT_WINDOW)
    assert window.refill() == b""
    assert window.is_starved
    budget.release(DEFAULT_WINDOW)
    assert increment(window.refill()) == DEFAULT_WINDOW
    assert not window.is_starved


@pytest.mark.parametrize("num_greedy", [0, 50])
def test_idle_connections_leave_room_for_an_upload(num_greedy: int) -> None:
    """Five thousand clients that may ask something some day are no reason to refuse it.

    Neither are those that came first, and got all there was.
    """
    budget = ReceiveBudget(16 * MIB)
    windows = [grown(budget) for _ in range(num_greedy)]
    windows += [ReceiveWindow(budget, MIB) for _ in range(5000)]
    assert budget.used_bytes > 16 * budget.limit_bytes
    assert (budget.free_to_all_bytes < LEAST_GRANT) is bool(num_greedy)
    upload = ReceiveWindow(budget, MIB)
    upload.reserve_bytes = 1 << 30
    received = 0
    while received < 16 * MIB:  # and what arrives is done with
        upload.refill()
        assert upload.size >= DEFAULT_WINDOW
        received += upload.size
        budget.release(upload.size)
        upload.receive(upload.size)
    assert budget.free_bytes >= budget.limit_bytes // 4 - MIB
    for window in (upload, *windows, *windows):
        window.close()
    assert budget.num_windows == budget.used_bytes == 0
    assert budget.free_bytes == budget.limit_bytes


def test_the_reserve_is_for_the_favoured_only() -> None:
    """A quarter of the budget, for one connection to finish what it began."""
    budget = ReceiveBudget(100_000)
    window = ReceiveWindow(budget, MIB)
    window.receive(DEFAULT_WINDOW)
    assert window.refill() == b""
    window.reserve_bytes = MIB
    assert increment(window.refill()) == 100_000 - DEFAULT_WINDOW
    assert budget.used_bytes == budget.limit_bytes


def test_more_than_the_window_is_a_fault() -> None:
    """The client was told how much it may send."""
    window = ReceiveWindow(ReceiveBudget(MIB), MIB)
    with pytest.raises(ConnectionFault) as caught:
        window.receive(DEFAULT_WINDOW + 1)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_a_closed_window_leaves_no_trace() -> None:
    """Whatever was granted and not used is free again."""
    budget = ReceiveBudget(100 * MIB)
    window = ReceiveWindow(budget, MIB)
    window.refill()
    window.receive(5000)
    budget.release(5000)
    window.close()
    assert budget.used_bytes == 0
    window.close()
    assert budget.used_bytes == 0


def test_a_budget_below_one_window_is_refused() -> None:
    """It could not serve a single connection."""
    with pytest.raises(ValueError, match="budget"):
        ReceiveBudget(1000)


def test_small_requests_need_nobody_s_room() -> None:
    """Whatever others hold, a window is full again once its requests are done with."""
    budget = ReceiveBudget(MIB)
    budget.used_bytes = 2 * MIB
    window = ReceiveWindow(budget, MIB)
    window.receive(60_000)
    assert window.refill() == b""
    assert window.is_starved
    assert window.refill_own(held_bytes=60_000) == b""
    assert increment(window.refill_own(held_bytes=1000)) == 59_000
    assert window.size == DEFAULT_WINDOW - 1000
    assert not window.is_starved


def test_unread_answers_leave_less_to_requests() -> None:
    """Together they take what is open; where answers take it all, nobody gets more."""
    budget = ReceiveBudget(64 * MIB)
    assert budget.free_to_all_bytes == 8 * MIB
    budget.headroom.unread_bytes = 3 * MIB
    assert budget.free_to_all_bytes == 5 * MIB
    assert budget.free_to_favoured_bytes == 64 * MIB
    budget.headroom.waiting_bytes = 5 * MIB
    assert budget.free_to_favoured_bytes == 0


def test_what_clients_are_told_of_streams_changes_rarely() -> None:
    """One that comes and goes does not make the others' limits swing."""
    budget = ReceiveBudget(1 << 20)
    told = []
    for num_more in [32, 1, -1, 1, 31, 1, -21, -2, -42]:
        budget.count_windows(num_more)
        told.append(budget.told_streams_each)
        assert told[-1] <= budget.max_streams_each
    assert told == [512, 256, 256, 256, 256, 128, 128, 256, 16_384]
