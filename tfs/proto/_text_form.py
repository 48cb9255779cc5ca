"""Reads messages in the text form that people write.

Every fault of a text is a ``ParseError`` here. The library's parser also raises
``ValueError``, for a number that does not fit an enum's 32 bits, and
``RecursionError``, for an ``Any`` inside hundreds of others.
"""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.message import Message

from tfs.proto._pool import POOL

__all__ = ["ParseError", "read_text"]

ParseError = text_format.ParseError


def read_text(text: str, message: Message) -> None:
    """Reads a text into a message, beside the fields that are set already.

    Raises:
        ParseError: A syntax error, an unknown field or a value that does not fit; with
            line and column where they are known.

    """
    try:
        text_format.Parse(text, message, descriptor_pool=POOL)
    except (ValueError, RecursionError) as error:
        raise ParseError(str(error)) from error
