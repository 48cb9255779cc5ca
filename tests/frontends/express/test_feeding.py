"""Thousands of clients that wait for memory are looked at a few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.express.rig import RawClient, Rig, head, running
from tests.frontends.express.wire import WIDE_HELLO, prefixed, request
from tfs.frontends.rpc.express.client_uploads import ClientUploads
from tfs.frontends.rpc.express.feeding import FED_PER_ROUND
from tfs.frontends.rpc.express.options import ExpressOptions

_NUM_CLIENTS = 3 * FED_PER_ROUND
_SHORT_OF_ROOM = ExpressOptions(max_receive_bytes=2 << 20)


def _starve(rig: Rig, num_bytes: int) -> dict[RawClient, bytes]:
    """Returns clients that have used up their windows, and what they have yet to send."""
    left = {}
    for _ in range(_NUM_CLIENTS):
        client = rig.connect(WIDE_HELLO)
        client.send(head(1))
        left[client] = client.upload(1, prefixed(bytes(num_bytes)), 65_535)
        rig.step(2)
    assert len(rig.transport._shared.starved) > 2 * FED_PER_ROUND
    return left


def test_a_round_looks_at_a_bounded_number_of_clients_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's requests wait for that; and whoever is looked at has had a turn."""
    with running(tmp_path, _SHORT_OF_ROOM) as rig:
        _starve(rig, 1_000_000)
        other = rig.connect()
        refilled: list[ClientUploads] = []
        asked: list[ClientUploads] = []
        refill = ClientUploads.refill
        wants_favour = vars(ClientUploads)["wants_favour"].fget

        def note_refill(uploads: ClientUploads) -> None:
            refilled.append(uploads)
            refill(uploads)

        def note_asked(uploads: ClientUploads) -> bool:
            asked.append(uploads)
            return bool(wants_favour(uploads))

        monkeypatch.setattr(ClientUploads, "refill", note_refill)
        monkeypatch.setattr(ClientUploads, "wants_favour", property(note_asked))
        most = 0
        for stream_id in range(1, 201, 2):
            other.send(request(stream_id, b"small"))
            num_before = len(refilled)
            rig.step()
            most = max(most, len(refilled) - num_before)
            rig.clock.advance(100e-6)
        assert most <= FED_PER_ROUND + 1
        assert len(asked) < 10 * _NUM_CLIENTS
        assert set(refilled) >= set(rig.transport._shared.starved)
        assert other.answer(199).messages == [b"small"]


def test_uploads_of_a_crowd_all_finish(tmp_path: Path) -> None:
    """What is free is granted to all of them in turn, without a timeout's help."""
    with running(tmp_path, _SHORT_OF_ROOM) as rig:
        left = _starve(rig, 100_000)
        for _ in range(1000):
            for client in [each for each in left if left[each]]:
                left[client] = client.upload(1, left[client])
            rig.advance(0.01)
            if not any(left.values()):
                break
        rig.settle()
        assert len(rig.served) == _NUM_CLIENTS
        assert not rig.transport.counters.timeouts
