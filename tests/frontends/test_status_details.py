"""What clients read of an error, the same through every transport."""

from __future__ import annotations

import urllib.parse

import pytest

from tfs.core.errors import InvalidArgument, NotFound, Unavailable
from tfs.frontends.status_details import (
    MAX_MESSAGE_BYTES,
    TRUNCATED,
    handler_error,
    percent_encode,
    status_details,
    wire_message,
)


def test_a_message_is_cut_at_1024_characters_and_says_so() -> None:
    """A longer message is cut at 1,024 characters, and one that fits is left alone."""
    assert wire_message(InvalidArgument("x" * 1024)) == "x" * 1024
    assert wire_message(InvalidArgument("x" * 1025)) == "x" * 1024 + TRUNCATED


@pytest.mark.parametrize("char", ["%", "ä", "я"])
def test_letters_that_are_not_ascii_are_counted_not_their_bytes(char: str) -> None:
    """1,024 letters arrive, even if each is sent as six bytes."""
    message = char * 1025
    assert wire_message(InvalidArgument(message)) == message[:1024] + TRUNCATED


def test_an_error_with_a_hint_fits_what_clients_take() -> None:
    """The message fits twice: in grpc-message, and in the status beside the hint."""
    error = Unavailable("ä" * 2000, retry_after_s=1)
    details = status_details(error)
    assert details is not None
    assert len(percent_encode(wire_message(error))) + len(details) * 4 / 3 < 7500


@pytest.mark.parametrize("char", ["%", "ä", "日", "\U0001f600"])
def test_a_message_that_grows_on_the_wire_is_cut_between_characters(char: str) -> None:
    """No character is cut, because clients would read its bytes as Latin-1."""
    message = wire_message(InvalidArgument(char * 1024))
    encoded = percent_encode(message)
    assert len(encoded) <= MAX_MESSAGE_BYTES + len(TRUNCATED)
    assert urllib.parse.unquote(encoded.decode(), errors="strict") == message


@pytest.mark.parametrize("char", ["x", "%", "ä", "日", "\U0001f600"])
@pytest.mark.parametrize("retry_after_s", [None, 1.0])
def test_no_message_is_cut_before_tensorflow_serving_would(
    char: str, retry_after_s: float | None
) -> None:
    """At least the 1,024 bytes arrive that TensorFlow Serving would send."""
    error = Unavailable(char * 2000, retry_after_s=retry_after_s)
    kept = wire_message(error).removesuffix(TRUNCATED)
    assert len(kept.encode()) >= 1024
    assert len(kept) == 1024 or len(percent_encode(kept)) > 4000


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("a\nb\tc", "a\nb\tc"), ("a\0\x7f", "a??"), ("\ud800", "\\ud800"), ("", "")],
)
def test_what_terminals_choke_on_is_replaced(raw: str, shown: str) -> None:
    """Control characters but line feed and tab are replaced; surrogates are spelled."""
    assert wire_message(InvalidArgument(raw)) == shown


def test_a_handlers_own_errors_pass_and_others_stay_in_the_log() -> None:
    """An exception's text may quote what is not the client's to know."""
    ours = NotFound("no such model")
    assert handler_error(ours, "/a/B") is ours
    assert "secret" not in handler_error(ValueError("secret"), "/a/B").message
