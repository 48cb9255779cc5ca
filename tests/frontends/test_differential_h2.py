"""The transports compared by one more client, h2.

It cuts its requests into frames as no gRPC library would, with PINGs in between. (Without
padding: grpcio's core takes none on DATA, express takes it as HTTP/2 wants.)
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.conformance.transport import running
from tests.frontends.differential import (
    COMPRESSION,
    ERRORS,
    FAILURES,
    LONG,
    MAKERS,
    MESSAGES,
    METADATA,
    SERVICE,
    SHORT,
    SIZES,
    Handlers,
)
from tfs.testing.patience import PATIENCE_S

Metadata = tuple[tuple[str, str | bytes], ...]


@pytest.fixture(scope="module")
def addresses() -> Iterator[Mapping[str, str]]:
    """Where each transport listens."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, make in MAKERS.items():
            run = stack.enter_context(running(make, Handlers().methods()))
            found[name] = run.addresses[0]
        yield found


@dataclass(frozen=True, slots=True)
class Asked:
    """One unary call. (What fails is replayed from its example, not from its repr.)"""

    method: str
    message: bytes = field(repr=False)
    metadata: Metadata = ()
    compression: grpc.Compression = grpc.Compression.NoCompression


CALLS = st.one_of(
    st.builds(
        Asked, st.sampled_from(["Echo", "Later"]), MESSAGES, METADATA, COMPRESSION
    ),
    st.builds(Asked, st.just("Seen"), st.just(b""), METADATA),
    st.builds(Asked, st.just("Size"), SIZES.map(lambda size: b"%d" % size)),
    st.builds(
        Asked,
        st.just("Fail"),
        ERRORS.map(lambda error: json.dumps(error).encode()),
        METADATA,
    ),
    st.builds(
        Asked, st.just("Raise"), st.sampled_from([name.encode() for name in FAILURES])
    ),
    st.builds(Asked, st.just("Nothing"), MESSAGES),
)


# -- h2 --------------------------------------------------------------------------------


class Cutter:
    """Speaks HTTP/2 by the h2 package, and cuts its requests as chance has it.

    Args:
        address: Where the server listens.
        seed: Of what chance has.
        is_strict: Whether it checks the headers that it is sent. grpcio's are not as
            HTTP/2 asks if a message begins or ends with a space.

    """

    def __init__(self, address: str, seed: int, is_strict: bool) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._rng = random.Random(seed)
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_inbound_headers=is_strict,
            )
        )
        self._h2.initiate_connection()
        self._headers: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self._ended: set[int] = set()

    def close(self) -> None:
        self._socket.close()

    def call(self, asked: Asked) -> object:
        """Returns status, message and body; what is not ours to say is left out."""
        stream = self._h2.get_next_available_stream_id()
        self._headers[stream], self._bodies[stream] = {}, b""
        self._h2.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", SERVICE + asked.method),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ],
        )
        left = struct.pack(">BI", 0, len(asked.message)) + asked.message
        # grpcio's core hangs up on more PINGs than it sent answers.
        can_ping = True
        while left and stream not in self._ended:
            window = self._h2.local_flow_control_window(stream)
            room = min(window, self._h2.max_outbound_frame_size)
            if room <= 0:
                self._receive()
                continue
            size = min(room, self._rng.choice([1, 3, 4, 5, 100, 20_000]), len(left))
            self._h2.send_data(stream, left[:size], end_stream=size == len(left))
            left = left[size:]
            if can_ping and self._rng.random() < 0.02:
                self._h2.ping(b"12345678")
                can_ping = False
            if self._rng.random() < 0.3:
                self._socket.sendall(self._h2.data_to_send())
        while stream not in self._ended:
            self._receive()
        headers = self._headers[stream]
        details = urllib.parse.unquote(headers.get("grpc-message", ""))
        is_ours = asked.method == "Fail"
        return (
            headers.get("grpc-status"),
            details if is_ours else None,
            headers.get("grpc-status-details-bin") if is_ours else None,
            self._bodies[stream],
        )

    def _receive(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
        data = self._socket.recv(1 << 16)
        assert data, "the server closed the connection"
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._bodies[event.stream_id] += event.data
                self._h2.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            elif isinstance(
                event, h2.events.ResponseReceived | h2.events.TrailersReceived
            ):
                self._headers[event.stream_id].update(
                    (str(name, "ascii"), str(value, "ascii"))
                    for name, value in event.headers
                )
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self._ended.add(event.stream_id)


def _compare_cut(
    addresses: Mapping[str, str], calls: Sequence[Asked], seed: int
) -> None:
    outcomes = []
    for name in ("grpcio", "express"):
        cutter = Cutter(addresses[name], seed, is_strict=name == "express")
        with contextlib.closing(cutter) as client:
            outcomes.append([client.call(asked) for asked in calls])
    for asked, reference, outcome in zip(calls, *outcomes, strict=True):
        assert outcome == reference, asked


@given(calls=st.lists(CALLS, min_size=1, max_size=6), seed=st.integers(0, 1 << 32))
@settings(SHORT, max_examples=25)
def test_no_cutting_of_frames_tells_the_transports_apart(
    addresses: Mapping[str, str], calls: list[Asked], seed: int
) -> None:
    """Tiny frames and PINGs change no status and no byte, through either transport."""
    _compare_cut(addresses, calls, seed)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@given(calls=st.lists(CALLS, min_size=1, max_size=20), seed=st.integers(0, 1 << 32))
@settings(LONG, max_examples=1000)
def test_no_cutting_of_frames_tells_the_transports_apart_for_minutes(
    addresses: Mapping[str, str], calls: list[Asked], seed: int
) -> None:
    """The same, longer, and from another place each time."""
    _compare_cut(addresses, calls, seed)
