"""How many frames that ask for nothing a connection may send."""

from __future__ import annotations

import pytest

from tfs.frontends.http2.frames import ConnectionFault
from tfs.frontends.http2.nuisances import NuisanceCounter


def _most(counter: NuisanceCounter, now_s: float = 0.0, num_sent: int = 0) -> int:
    """Returns how many of a kind are taken before the connection is closed."""
    for number in range(10_000):
        try:
            counter.count("PING", now_s, num_sent)
        except ConnectionFault:
            return number
    return 10_000


def test_as_many_are_taken_as_a_client_may_have_reason_for() -> None:
    """Giving up a thousand calls at once, at two each, is no flood."""
    assert _most(NuisanceCounter(0.0)) == 2048


@pytest.mark.parametrize(("now_s", "num_sent"), [(10.0, 0), (0.0, 250)])
def test_time_and_messages_make_them_forgotten(now_s: float, num_sent: int) -> None:
    """A hundred in a second, four for each message that the client is sent."""
    counter = NuisanceCounter(0.0)
    counter.count("PING", 0.0, 0, 2048)
    assert _most(counter, now_s, num_sent) == 1000


def test_nothing_is_saved_up() -> None:
    """A connection that was quiet for a day may send no more at once than a new one."""
    counter = NuisanceCounter(0.0)
    assert _most(counter, 86_400.0) == 2048
