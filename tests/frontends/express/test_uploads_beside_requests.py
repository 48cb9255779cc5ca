"""A large upload shares its connection with small requests while room is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontends.express.rig import RawClient, head, running
from tests.frontends.express.wire import WIDE_HELLO, data_frame, prefixed
from tfs.frontends.rpc.express.options import ExpressOptions

SHORT_OF_ROOM = ExpressOptions(max_receive_bytes=64 << 20, least_open_bytes=1 << 20)


def _ask(client: RawClient, stream_id: int, message: bytes) -> bool:
    """Sends a small request if the connection's window takes it now."""
    client.read()
    framed = prefixed(message)
    if client.window < len(framed):
        return False
    client.send(head(stream_id) + data_frame(stream_id, framed))
    client.window -= len(framed)
    return True


@pytest.mark.parametrize("share_bytes", [4_000, 16_000])
def test_an_upload_ends_beside_small_requests_of_its_connection(
    tmp_path: Path, share_bytes: int
) -> None:
    """What they take of the room that it was lent is lent again, while it goes on."""
    with running(tmp_path, SHORT_OF_ROOM) as rig:
        client = rig.connect(WIDE_HELLO)
        client.send(head(1))
        left = prefixed(bytes(8 << 20))
        stream_id = 3
        num_idle = 0
        while left and num_idle < 10:
            before = len(left)
            left = client.upload(1, left, 16_384)
            num_idle = num_idle + 1 if len(left) == before else 0
            if _ask(client, stream_id, bytes(share_bytes)):
                stream_id += 2
            rig.settle()
        assert not left
        for _ in range(200):
            rig.settle()
            client.read()
        num_answered = sum(len(each.messages) for each in client.answers.values())
        assert len(client.answer(1).messages[0]) == 8 << 20
        assert num_answered == (stream_id - 1) // 2
