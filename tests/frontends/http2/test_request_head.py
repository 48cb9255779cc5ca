"""Request headers are accepted, refused or malformed by the rules of gRPC and HTTP."""

from __future__ import annotations

import pytest

from tests.frontends.express.wire import grpc_headers
from tfs.core.errors import Code, ResourceExhausted, ServingError
from tfs.frontends.http2.request_head import (
    LONGEST_TIMEOUT_S,
    HttpRefusal,
    MalformedHead,
    RequestHead,
    parse_head,
    parse_timeout,
)
from tfs.frontends.inflation import Encoding


def parse(headers: list[tuple[str, str]]) -> RequestHead:
    return parse_head([(n.encode(), v.encode("latin-1")) for n, v in headers])


def test_an_ordinary_head_is_taken() -> None:
    """Path, and no refusal; HTTP's and gRPC's own headers are not metadata."""
    head = parse(grpc_headers(("user-agent", "x"), ("grpc-timeout", "2S")))
    assert head.path == "/tfs.test.Echo/Say"
    assert head.refusal is None
    assert head.timeout_s == 2.0
    assert head.metadata == (("user-agent", "x"),)


def test_binary_metadata_is_decoded() -> None:
    """Base64 with and without padding is read, and several values in one header."""
    head = parse(grpc_headers(("k-bin", "AAE"), ("k-bin", "AQ==,Ag"), ("k", "AAE")))
    assert head.metadata == (
        ("k-bin", b"\x00\x01"),
        ("k-bin", b"\x01"),
        ("k-bin", b"\x02"),
        ("k", "AAE"),
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"500m", 0.5),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
        (b"0S", 0.0),
        (b"000S", 0.0),
        (b"500000000n", 0.5),
        (b"00000000500m", 0.5),
        (b"100000000S", 1e8),
        (b"9" * 5000 + b"n", LONGEST_TIMEOUT_S),
        (b"9999999999999999999S", LONGEST_TIMEOUT_S),
    ],
)
def test_a_timeout_is_read_in_its_unit(text: bytes, seconds: float) -> None:
    """Each of gRPC's six units, with as many digits as its own servers take."""
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"1s", b"1.5S"])
def test_a_malformed_timeout_is_refused(text: bytes) -> None:
    """A timeout is digits and a unit; anything else is refused."""
    with pytest.raises(ValueError, match="grpc-timeout"):
        parse_timeout(text)


@pytest.mark.parametrize(
    "headers",
    [
        grpc_headers((":path", "/again/x")),
        grpc_headers(("Upper", "x")),
        grpc_headers(("connection", "close")),
        grpc_headers(("transfer-encoding", "chunked")),
        grpc_headers((":status", "200")),
        grpc_headers(("bad name", "x")),
        grpc_headers(("", "x")),
        grpc_headers(("x", "a\nb")),
        grpc_headers(("x", "a\0b")),
        grpc_headers(("content-length", "-1")),
        grpc_headers(("content-length", "1"), ("content-length", "2")),
        grpc_headers(te="gzip"),
        grpc_headers(path=""),
        grpc_headers(path="/caf\xe9/x"),
        [("te", "trailers"), *grpc_headers()],
        [header for header in grpc_headers() if header[0] != ":method"],
        [header for header in grpc_headers() if header[0] != ":scheme"],
        [header for header in grpc_headers() if header[0] != ":path"],
        [],
    ],
    ids=str,
)
def test_what_http2_forbids_is_malformed(headers: list[tuple[str, str]]) -> None:
    """RFC 9113 section 8: duplicates, order, case, HTTP/1 headers, bad characters."""
    with pytest.raises(MalformedHead):
        parse(headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (grpc_headers(method="GET"), 405),
        (grpc_headers(method="HEAD"), 405),
        ([(":method", "CONNECT"), (":authority", "x:1")], 405),
        (grpc_headers(content_type="application/json"), 415),
        (grpc_headers(content_type="application/grpcfoo"), 415),
        (grpc_headers(content_type="application/grpc+json"), 415),
        ([h for h in grpc_headers() if h[0] != "content-type"], 415),
        ([h for h in grpc_headers() if h[0] != "te"], 400),
    ],
)
def test_what_is_not_grpc_gets_an_http_status(
    headers: list[tuple[str, str]], status: int
) -> None:
    """A browser or a health checker learns what it did wrong."""
    refusal = parse(headers).refusal
    assert isinstance(refusal, HttpRefusal)
    assert refusal.status == status


@pytest.mark.parametrize(
    "content_type",
    ["application/grpc", "application/grpc+proto", "application/grpc; charset=utf-8"],
)
def test_the_types_of_grpc_are_taken(content_type: str) -> None:
    """The bare type, the protobuf one, and parameters."""
    assert parse(grpc_headers(content_type=content_type)).refusal is None


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (("grpc-timeout", "soon"), Code.INTERNAL),
        (("grpc-encoding", "snappy"), Code.UNIMPLEMENTED),
        (("k-bin", "!!!"), Code.INVALID_ARGUMENT),
    ],
)
def test_what_grpc_cannot_read_fails_the_call(
    extra: tuple[str, str], code: Code
) -> None:
    """A gRPC client gets a gRPC status."""
    refusal = parse(grpc_headers(extra)).refusal
    assert isinstance(refusal, ServingError)
    assert refusal.code is code


@pytest.mark.parametrize("path", ["no-slash", "/", "/method", "*"])
def test_a_path_without_service_and_method_is_unimplemented(path: str) -> None:
    """No handler could have such a path."""
    refusal = parse(grpc_headers(path=path)).refusal
    assert isinstance(refusal, ServingError)
    assert refusal.code is Code.UNIMPLEMENTED


def test_what_else_grpc_keeps_to_itself_may_repeat() -> None:
    """Proxies and tracers add such headers; they are not ours to judge."""
    head = parse(grpc_headers(("grpc-trace", "1"), ("grpc-trace", "2")))
    assert head.refusal is None
    assert head.metadata == ()
    with pytest.raises(MalformedHead):
        parse(grpc_headers(("grpc-timeout", "1S"), ("grpc-timeout", "2S")))


@pytest.mark.parametrize("encoding", list(Encoding))
def test_the_encoding_is_noted(encoding: Encoding) -> None:
    """It applies to messages that carry the flag."""
    head = parse(grpc_headers(("grpc-encoding", encoding.value)))
    assert head.encoding is encoding
    assert head.refusal is None


def test_a_list_that_was_cut_is_resource_exhausted() -> None:
    """The client learns that its metadata is too large."""
    headers = [(n.encode(), v.encode()) for n, v in grpc_headers()]
    refusal = parse_head(headers[:2], was_cut=True).refusal
    assert isinstance(refusal, ServingError)
    assert refusal.code is Code.RESOURCE_EXHAUSTED


def test_many_values_in_one_header_are_too_many_headers() -> None:
    """A comma is a byte on the wire, the value behind it an object."""
    few = parse(grpc_headers(("a-bin", "," * 500)))
    assert few.refusal is None
    assert len(few.metadata) == 501
    many = parse(grpc_headers(("a-bin", "," * 300), ("b-bin", "," * 300)))
    assert isinstance(many.refusal, ResourceExhausted)
    assert len(many.metadata) < 512
