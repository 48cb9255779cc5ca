"""What grpcio gets of a client's headers says what the client said, or nothing."""

from __future__ import annotations

import random

import hpack
import pytest

from tests.frontends.express.wire import LITERALS, grpc_headers
from tfs.frontends.rpc.frames import ConnectionFault, ErrorCode
from tfs.frontends.rpc.grpcio.client_heads import ClientHeads, HeadLimits, RefusedHead
from tfs.frontends.rpc.heads.hpack_decoder import encode_literal

PLAIN = grpc_headers()


def read_back(block: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the headers in a block that neither uses nor changes a table."""
    decoder = hpack.Decoder()
    headers = decoder.decode(block, raw=True)
    assert not decoder.header_table.dynamic_entries
    return [(bytes(name), bytes(value)) for name, value in headers]


def raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


def literals(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(encode_literal(name, value) for name, value in headers)


def test_grpcio_gets_the_same_headers_however_they_were_compressed() -> None:
    """Literals alone; a deadline comes last, whatever stood behind it."""
    rng = random.Random(3)
    encoder = hpack.Encoder()
    heads = ClientHeads(HeadLimits())
    for index in range(500):
        extra = [("x-a", f"{rng.randrange(9)}" * rng.randrange(200))]
        if rng.randrange(2):
            extra.append(("grpc-timeout", f"{index}m"))
        if rng.randrange(2):
            extra.append(("x-b", f"{index % 7}"))
        headers = grpc_headers(*extra)
        passed = heads.read(encoder.encode(headers))
        assert sorted(read_back(passed.block)) == sorted(raw(headers))
        assert passed.num_bytes == sum(len(n) + len(v) + 32 for n, v in headers)


def test_a_repeated_block_is_read_once() -> None:
    """What grpcio gets of it is the same object."""
    heads = ClientHeads(HeadLimits())
    assert heads.read(LITERALS) is heads.read(LITERALS)
    assert heads.read(LITERALS).block == LITERALS


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("grpc-timeout", "1S")],
        grpc_headers(path="/\xff"),
        grpc_headers(path=""),
        grpc_headers((":path", "/b")),
        grpc_headers((":authority", "late")),
        grpc_headers(("X", "a")),
        grpc_headers(("", "a")),
        grpc_headers(("a b", "c")),
        grpc_headers(("x", "\0")),
        grpc_headers(("x", "a\r\nb")),
        grpc_headers(("grpc-timeout", "1S"), ("grpc-timeout", "2S")),
        grpc_headers(("grpc-timeout", "\0")),
        grpc_headers(("te", "gzip")),
        grpc_headers(("connection", "close")),
    ],
    ids=str,
)
def test_a_malformed_head_is_refused(headers: list[tuple[str, str]]) -> None:
    """Also behind a good one that differs only in that; the next good one is passed."""
    heads = ClientHeads(HeadLimits())
    for _ in range(2):
        with pytest.raises(RefusedHead) as raised:
            heads.read(literals(raw(headers)))
        assert raised.value.code is ErrorCode.PROTOCOL_ERROR
        assert heads.read(LITERALS).block == LITERALS


def test_a_refused_head_changes_the_table_all_the_same() -> None:
    """Later requests are compressed by what it said."""
    encoder = hpack.Encoder()
    heads = ClientHeads(HeadLimits())
    with pytest.raises(RefusedHead):
        heads.read(encoder.encode(grpc_headers(("x-a", "b"), path="")))
    heads.skip(encoder.encode(grpc_headers(("x-c", "d"))))
    headers = grpc_headers(("x-a", "b"), ("x-c", "d"))
    assert read_back(heads.read(encoder.encode(headers)).block) == raw(headers)


def test_binary_values_pass_as_they_are() -> None:
    """grpcio allows its clients to send them without base64, behind a NUL."""
    headers = [*raw(PLAIN), (b"x-bin", b"\0\xff\0"), (b"y-bin", b"AA")]
    assert read_back(ClientHeads(HeadLimits()).read(literals(headers)).block) == headers


def test_headers_too_long_for_grpcio_are_refused() -> None:
    """By what they stand for; an operator may allow more."""
    block = LITERALS + encode_literal(b"x", b"y" * 16_384)
    with pytest.raises(RefusedHead) as raised:
        ClientHeads(HeadLimits()).read(block)
    assert raised.value.code is ErrorCode.ENHANCE_YOUR_CALM
    heads = ClientHeads(HeadLimits(max_list_bytes=20_000))
    assert heads.read(block).block == block


def test_a_table_is_as_large_as_grpcio_allows() -> None:
    """It begins with 4 KB, and grows when the client says so."""
    update = b"\x3f\xe1\x3f"  # 8192 bytes
    with pytest.raises(ConnectionFault):
        ClientHeads(HeadLimits()).read(update + LITERALS)
    heads = ClientHeads(HeadLimits(max_table_bytes=8192))
    insert = b"\x40" + encode_literal(b"x", b"y" * 5000)[1:]
    heads.read(LITERALS + insert)
    with pytest.raises(ConnectionFault):
        heads.read(LITERALS + b"\xbe")
    heads = ClientHeads(HeadLimits(max_table_bytes=8192))
    heads.read(update + LITERALS + insert)
    assert len(heads.read(LITERALS + b"\xbe").block) > 5000


def test_trailers_are_checked_and_read() -> None:
    """They may be compressed, and what follows may be compressed by them."""
    heads = ClientHeads(HeadLimits())
    heads.read(LITERALS)
    heads.read_trailers(b"\x40\x01a\x01b")
    assert read_back(heads.read(LITERALS + b"\xbe").block)[-1] == (b"a", b"b")
    with pytest.raises(RefusedHead):
        heads.read_trailers(LITERALS)
