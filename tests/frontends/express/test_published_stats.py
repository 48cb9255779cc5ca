"""What express counts is there to read, by name and label."""

from __future__ import annotations

from pathlib import Path

from tests.certificates import Certificates
from tests.frontends.express.rig import FAIL, HOLD, head, running
from tests.frontends.express.wire import HELLO, data_frame, prefixed, request
from tfs.core import stat_names
from tfs.core.stats import Stats
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import ErrorCode


def read(stats: Stats) -> dict[str, float]:
    """Returns the values that are not 0, as "name label"."""
    return {
        " ".join([name, *(value for _, value in labels)]): value
        for name, labels, value in stats.counters()
        if value and name != stat_names.RPC_RECEIVE_BYTES
    }


def test_connections_and_calls_are_counted(tmp_path: Path) -> None:
    """Open ones, what became of the others, and both in the totals."""
    with running(tmp_path, ExpressOptions(max_connections=2)) as rig:
        client = rig.connect()
        client.send(request(1) + request(3) + head(5, HOLD) + head(7, HOLD))
        client.send(frames.rst_stream(7, ErrorCode.CANCEL))
        client.send(head(9, FAIL) + data_frame(9, prefixed(b"x")))
        rig.settle()
        assert read(rig.stats) == {
            "rpc_connections open": 1,
            "rpc_connection_events accepted": 1,
            "rpc_streams": 1,
            "rpc_call_events answered": 3,
            "rpc_call_events reset": 1,
            "rpc_call_events cut_off": 1,
            "rpc_call_events handler_failure": 1,
            "rpc_heads decoded": 3,
        }
        flood = rig.connect()
        rig.connect()
        flood.send(frames.ping(b"12345678") * 1100)
        rig.settle()
        client.close()
        rig.settle()
        found = read(rig.stats)
    assert found["rpc_connection_events flood"] == 1
    assert found["rpc_connection_events fault"] == 1
    assert found["rpc_connection_events refused"] == 1
    assert found["rpc_call_events answered"] == 3
    assert found["rpc_call_events reset"] == 1
    assert found["rpc_heads decoded"] == 3
    assert "rpc_connections open" not in found
    assert "rpc_streams" not in found


def test_cached_heads_are_told_from_decoded_ones(tmp_path: Path) -> None:
    """Equal header blocks are decoded once a connection."""
    with running(tmp_path) as rig:
        client = rig.connect()
        client.send(b"".join(map(request, range(1, 41, 2))))
        rig.settle()
        assert read(rig.stats)["rpc_heads decoded"] == 1
        assert read(rig.stats)["rpc_heads cached"] == 19


def test_handshakes_are_counted(tmp_path: Path) -> None:
    """Those under way, and those that failed."""
    with running(tmp_path, tls=Certificates().tls()) as rig:
        rig.connect(b"\x16\x03\x01")
        rig.connect(HELLO)
        rig.settle()
        found = read(rig.stats)
    assert found["rpc_connections handshake"] == 1
    assert found["rpc_connection_events failed_handshake"] == 1
