"""The loop looks for the next request of a client that sends one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frontends.express.rig import HOLD, STREAM, RawClient, Rig, head, running
from tests.frontends.express.wire import data_frame, prefixed, request
from tfs.core.spin_backoff import SpinBackoff
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.lone_caller import NUM_BEFORE
from tfs.frontends.rpc.express.options import ExpressOptions

LOOK_S = 60e-6


class Looks:
    """What the loop was asked: seconds to look for, 0 to stop."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rig = rig
        self.wanted_s: list[float] = []
        monkeypatch.setattr(rig.loop, "look_until", self._look_until)

    def _look_until(self, when_s: float, backoff: SpinBackoff) -> None:
        self.wanted_s.append(when_s and round(when_s - self._rig.clock.now(), 9))

    def take(self) -> list[float]:
        """Returns what was asked since the last time."""
        wanted_s, self.wanted_s = self.wanted_s, []
        return wanted_s


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path, ExpressOptions(look_s=LOOK_S)) as rig:
        yield rig


@pytest.fixture
def looks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(rig, monkeypatch)


def ask_one_by_one(rig: Rig, client: RawClient, num: int, first: int = 1) -> int:
    """Sends requests, each after the answer to the one before; returns the next id."""
    for stream_id in range(first, first + 2 * num, 2):
        client.send(request(stream_id))
        rig.step()
        assert client.answer(stream_id).status == "0"
    return first + 2 * num


def test_the_next_request_is_looked_for_after_some_one_by_one(
    rig: Rig, looks: Looks
) -> None:
    """It takes a habit, and then every answer is followed by a look."""
    client = rig.connect()
    after = ask_one_by_one(rig, client, NUM_BEFORE - 1)
    assert looks.take() == []
    ask_one_by_one(rig, client, 3, after)
    assert looks.take() == [LOOK_S] * 3


def test_requests_that_come_together_are_not_looked_for(rig: Rig, looks: Looks) -> None:
    """Two in a round end the habit, and the look that was wanted."""
    client = rig.connect()
    after = ask_one_by_one(rig, client, NUM_BEFORE)
    assert looks.take() == [LOOK_S]
    client.send(request(after) + request(after + 2))
    rig.step()
    assert looks.take() == [0.0]
    after = ask_one_by_one(rig, client, NUM_BEFORE - 1, after + 4)
    assert looks.take() == []
    ask_one_by_one(rig, client, 1, after)
    assert looks.take() == [LOOK_S]


def test_nothing_is_looked_for_while_something_is_in_flight(
    rig: Rig, looks: Looks
) -> None:
    """A client with another request under way is not waiting for us."""
    client = rig.connect()
    after = ask_one_by_one(rig, client, NUM_BEFORE)
    client.send(head(after, HOLD) + data_frame(after, prefixed(b"held")))
    rig.step()
    looks.take()
    ask_one_by_one(rig, client, 2 * NUM_BEFORE, after + 2)
    assert LOOK_S not in looks.take()


@pytest.mark.parametrize(("num_streams", "is_lone"), [(1, True), (2, True), (5, False)])
def test_a_stream_that_stays_open_is_no_request_in_flight(
    rig: Rig, looks: Looks, num_streams: int, is_lone: bool
) -> None:
    """A client may watch the health service on the connection it calls on."""
    client = rig.connect()
    after = 1
    for _ in range(num_streams):
        client.send(head(after, STREAM) + data_frame(after, prefixed(b"watch")))
        after += 2
    rig.step()
    ask_one_by_one(rig, client, NUM_BEFORE, after)
    assert (LOOK_S in looks.take()) is is_lone


def test_an_answer_of_a_later_round_counts_as_well(rig: Rig, looks: Looks) -> None:
    """Where a model takes longer than a round its lone caller is one nevertheless."""
    client = rig.connect()
    for stream_id in range(1, 2 * NUM_BEFORE, 2):
        client.send(head(stream_id, HOLD) + data_frame(stream_id, prefixed(b"held")))
        rig.step()
        assert looks.take() == []
        rig.held.pop().reply(b"late")
        rig.step()
    assert looks.take() == [LOOK_S]


def test_what_a_client_says_beside_requests_does_not_count(
    rig: Rig, looks: Looks
) -> None:
    """PINGs, and requests that come in parts, leave the habit as it is."""
    client = rig.connect()
    for stream_id in range(1, 2 * NUM_BEFORE, 2):
        client.send(head(stream_id))
        rig.step()
        client.send(data_frame(stream_id, prefixed(b"later")))
        rig.step()
        client.send(frames.ping(b"measured"))
        rig.step()
    assert looks.take() == [LOOK_S]


def test_callers_that_take_turns_are_not_lone(rig: Rig, looks: Looks) -> None:
    """Two clients' requests one by one bring no look: whose is next is not known."""
    first, second = rig.connect(), rig.connect()
    for stream_id in range(1, 4 * NUM_BEFORE, 2):
        for client in (first, second):
            client.send(request(stream_id))
            rig.step()
    assert looks.take() == []


def test_nothing_is_looked_for_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a spin time of 0 the loop never looks for the next request."""
    with running(tmp_path) as rig:
        looks = Looks(rig, monkeypatch)
        ask_one_by_one(rig, rig.connect(), 2 * NUM_BEFORE)
        assert looks.take() == []
