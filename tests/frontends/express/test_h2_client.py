"""The h2 package as a client: a strict reader of all we send, polite or hostile."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import pytest

from tests.frontends.express.wire import Wire, grpc_headers, prefixed
from tfs.core.errors import InvalidArgument
from tfs.frontends.http2.frames import ErrorCode
from tfs.frontends.http2.request_head import HttpRefusal
from tfs.frontends.http2.response import OK_TRAILERS_BLOCK
from tfs.frontends.http2.state import ConnectionLimits


class H2Client:
    """An h2 connection wired to one of ours, without sockets."""

    def __init__(
        self, limits: ConnectionLimits | None = None, echo: bool = True
    ) -> None:
        self.wire = Wire(limits, echo=echo, hello=False)
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.h2.initiate_connection()
        self.bodies: dict[int, bytes] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.resets: dict[int, int] = {}
        self.ended: set[int] = set()
        self.goaway: int | None = None
        self.acknowledges = True
        self.exchange()

    def exchange(self) -> None:
        """Carries bytes both ways until neither side has any."""
        connection = self.wire.connection
        while True:
            data = self.h2.data_to_send()
            has_more = self.wire.feed(data)
            while has_more:
                has_more = self.wire.feed(b"")
            connection.sender.fill(1 << 20)
            out = b"".join(connection.sender.out)
            connection.sender.out.clear()
            if not out:
                break
            # Any breach of the protocol on our side raises here.
            for event in self.h2.receive_data(out):
                self._on_event(event)

    def request(self, body: bytes = b"ping", ends: bool = True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, grpc_headers())
        self.send(stream_id, prefixed(body), ends)
        return stream_id

    def send(self, stream_id: int, data: bytes, ends: bool = True) -> None:
        """Sends within the windows, waiting for more of them as often as needed."""
        while data:
            size = min(
                len(data),
                self.h2.local_flow_control_window(stream_id),
                self.h2.max_outbound_frame_size,
            )
            assert size > 0, "no window, and none comes"
            self.h2.send_data(stream_id, data[:size])
            data = data[size:]
            self.exchange()
        if ends:
            self.h2.end_stream(stream_id)
        self.exchange()

    def _on_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            body = self.bodies.get(event.stream_id, b"")
            self.bodies[event.stream_id] = body + event.data
            if self.acknowledges and event.flow_controlled_length:
                self.h2.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            trailers = self.trailers.setdefault(event.stream_id, {})
            trailers.update({str(n): str(v) for n, v in event.headers})
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = int(event.error_code or 0)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = int(event.error_code or 0)


def test_h2_reads_our_answers() -> None:
    """Settings, headers, data and trailers, by the letter of the RFC."""
    client = H2Client()
    for index in range(20):
        stream_id = client.request(b"x" * index * 100)
        assert client.bodies[stream_id] == prefixed(b"x" * index * 100)
        assert client.trailers[stream_id]["grpc-status"] == "0"
        assert stream_id in client.ended


@pytest.mark.parametrize("size", [65_530, 65_531, 1_000_000, 10_000_000])
def test_large_messages_pass_within_the_windows_of_both(size: int) -> None:
    """Both sides' flow control is checked by h2."""
    client = H2Client()
    body = bytes(size)
    stream_id = client.request(body)
    assert client.bodies[stream_id] == prefixed(body)
    assert stream_id in client.ended


@pytest.mark.parametrize("table_sizes", [[0], [100], [4096, 0, 4096, 10], [8192, 0]])
@pytest.mark.parametrize("size", [4, 20_000, 100_000])
def test_a_smaller_header_table_is_acknowledged_in_the_next_block(
    table_sizes: list[int], size: int
) -> None:
    """h2 ends the connection unless that begins with an update of the table's size."""
    client = H2Client()
    for table_size in table_sizes:
        code = h2.settings.SettingCodes.HEADER_TABLE_SIZE
        client.h2.update_settings({code: table_size})
        client.exchange()
        for _ in range(2):
            stream_id = client.request(b"x" * size)
            assert client.bodies[stream_id] == prefixed(b"x" * size)
            assert client.trailers[stream_id]["grpc-status"] == "0"


@pytest.mark.parametrize("how", ["error", "refusal", "messages", "burst"])
def test_whatever_block_is_next_acknowledges_a_smaller_header_table(how: str) -> None:
    """Errors, plain HTTP and streams begin with header blocks as well."""
    client = H2Client(echo=False)
    client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    client.exchange()
    connection = client.wire.connection
    stream_ids = [client.request() for _ in range(2)]
    streams = [client.wire.recorder.opened[stream_id] for stream_id in stream_ids]
    if how == "burst":
        connection.sender.send_replies(streams, [b"a", b"b"])
    for stream in streams if how != "burst" else ():
        if how == "error":
            connection.sender.send_error(stream, InvalidArgument("no"))
        elif how == "refusal":
            connection.sender.send_refusal(stream, HttpRefusal(415, "no"))
        else:
            connection.sender.send_message(stream, b"a")
            connection.sender.send_end(stream, OK_TRAILERS_BLOCK)
    client.exchange()
    assert client.ended == set(stream_ids)


def test_window_updates_of_one_byte_do_not_buy_a_frame_each_forever() -> None:
    """A window game: the connection is closed before it costs much."""
    client = H2Client(echo=False)
    client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.exchange()
    stream_id = client.request()
    client.acknowledges = False
    client.wire.connection.sender.send_reply(
        client.wire.recorder.opened[stream_id], b"y" * 200_000
    )
    for _ in range(5000):
        client.h2.increment_flow_control_window(1, stream_id)
        client.exchange()
        if client.goaway is not None:
            break
    assert client.goaway == ErrorCode.ENHANCE_YOUR_CALM
    assert len(client.bodies[stream_id]) < 2500
