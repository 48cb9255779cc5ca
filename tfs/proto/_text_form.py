"""Reads messages in the text form that people write.

What is wrong with a text is one kind of error here. The library's parser has three: a
number that is none of an enum's 32 bits is a ``ValueError`` there, and an ``Any`` inside
hundreds of others a ``RecursionError``.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import Message

from tfs.proto._pool import POOL

__all__ = ["ParseError", "read_text"]

ParseError = text_format.ParseError


def read_text(text: str, message: Message) -> None:
    """Adds what a text says to a message of ours.

    Raises:
        ParseError: A syntax error, an unknown field or a value that does not fit; with
            line and column where they are known.

    """
    try:
        text_format.Parse(text, message, descriptor_pool=POOL)
    except (ValueError, RecursionError) as error:
        raise ParseError(str(error)) from error
