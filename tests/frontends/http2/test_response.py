"""Response headers and trailers are what gRPC clients expect."""

from __future__ import annotations

import base64
import urllib.parse
from typing import Any

import pytest
from hpack import Decoder

from tests.frontends.express.wire import parse_frames
from tfs.core.errors import BY_CODE, Code, InvalidArgument, ServingError, Unavailable
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.frames import FrameType


def decode(block: bytes) -> dict[str, str]:
    decoder = Decoder()
    headers = {str(n): str(v) for n, v in decoder.decode(block)}
    assert decoder.header_table._current_size == 0
    return headers


def test_a_small_answer_is_three_frames() -> None:
    """Headers, one DATA frame with the prefix, trailers that end the stream."""
    data = response.before_message(9, 4) + b"pong" + response.ok_trailers(9)
    head, body, tail = parse_frames(data)
    assert [sent.stream_id for sent in (head, body, tail)] == [9, 9, 9]
    assert decode(head.payload) == {
        ":status": "200",
        "content-type": "application/grpc",
    }
    assert head.flags == frames.END_HEADERS
    assert (body.frame_type, body.flags) == (FrameType.DATA, 0)
    assert body.payload == b"\0\0\0\0\x04pong"
    assert decode(tail.payload) == {"grpc-status": "0"}
    assert tail.flags == frames.END_HEADERS | frames.END_STREAM


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_code_travels_trailers_only(code: Code) -> None:
    """Status and message stand in the only header block."""
    headers = decode(response.error_block(BY_CODE[code]("what is wrong"), True))
    assert headers[":status"] == "200"
    assert headers["grpc-status"] == str(int(code))
    assert headers["grpc-message"] == "what is wrong"


def test_trailers_after_headers_repeat_no_status() -> None:
    """Only the gRPC fields, once the response headers are out."""
    headers = decode(response.error_block(InvalidArgument("no"), False))
    assert headers == {"grpc-status": "3", "grpc-message": "no"}


@pytest.mark.parametrize("text", ["100%", "naïve\n", "日本", "a\tb"])
def test_messages_are_percent_encoded(text: str) -> None:
    """Every byte but printable ASCII without the percent sign."""
    headers = decode(response.error_block(InvalidArgument(text), False))
    assert headers["grpc-message"].isascii()
    assert urllib.parse.unquote(headers["grpc-message"]) == text


@pytest.mark.parametrize("text", [" led by", "followed by ", " ", "  ", " %", "% "])
def test_a_message_neither_begins_nor_ends_with_a_space_on_the_wire(text: str) -> None:
    """HTTP/2 forbids it of a header's value; clients close the connection for it."""
    message = decode(response.error_block(InvalidArgument(text), False))["grpc-message"]
    assert message == message.strip()
    assert urllib.parse.unquote(message) == text


def test_the_longest_error_fits_into_what_clients_take_as_headers() -> None:
    """With its details, the longest error is below gRPC's soft limit of 8 KB."""
    for text in ("x", "%", "ä", "\U0001f600"):
        long = Unavailable(text * 5000, retry_after_s=1.0)
        assert len(response.error_block(long, True)) < 8000


def test_a_lone_surrogate_does_not_break_the_answer() -> None:
    """Error texts quote what clients sent."""
    headers = decode(response.error_block(InvalidArgument("\ud800"), False))
    assert headers["grpc-message"] == "\\ud800"


def test_retry_info_parses_with_the_real_protobuf() -> None:
    """The hand-written bytes are a google.rpc.Status with a RetryInfo in it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="test_status.proto", package="t", syntax="proto3"
    )
    kind = descriptor_pb2.FieldDescriptorProto
    shapes: dict[str, list[tuple[str, int, Any]]] = {
        "Duration": [("s", 1, kind.TYPE_INT64), ("n", 2, kind.TYPE_INT32)],
        "Any": [("url", 1, kind.TYPE_STRING), ("value", 2, kind.TYPE_BYTES)],
        "Retry": [("delay", 1, ".t.Duration")],
        "Status": [
            ("code", 1, kind.TYPE_INT32),
            ("message", 2, kind.TYPE_STRING),
            ("details", 3, ".t.Any"),
        ],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field_name, number, field_type in fields:
            field = message.field.add(
                name=field_name, number=number, label=kind.LABEL_OPTIONAL
            )
            if isinstance(field_type, str):
                field.type = kind.TYPE_MESSAGE
                field.type_name = field_type
            else:
                field.type = field_type
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes: dict[str, Any] = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in ("Status", "Retry")
    }
    error: ServingError = Unavailable("queue full (128)", retry_after_s=1.25)
    text = decode(response.error_block(error, True))["grpc-status-details-bin"]
    status = classes["Status"].FromString(
        base64.b64decode(text + "=" * (-len(text) % 4))
    )
    assert (status.code, status.message) == (14, "queue full (128)")
    assert status.details.url == "type.googleapis.com/google.rpc.RetryInfo"
    delay = classes["Retry"].FromString(status.details.value).delay
    assert (delay.s, delay.n) == (1, 250_000_000)


def test_no_retry_hint_means_no_details() -> None:
    """Clients take the presence of RetryInfo as leave to retry."""
    assert "grpc-status-details-bin" not in decode(
        response.error_block(Unavailable("no"), True)
    )
