"""Prints docs/errors.md from tfs.core.errors: python -m tests.core.errors_page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tfs.core.errors import BY_CODE, WHEN, Code

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "errors.md"

_HEAD = """\
# What errors mean

Every failure a client sees carries one of gRPC's canonical codes and a message that says what
is wrong. Where TensorFlow Serving has a message for it, the words are its own; others also say
which model it is, and what to do. The code comes from where the fault was found, not
from the transport. In Python, `tfs.client` raises the class of the code (`tfs.core.errors`).

Messages are cut at 1,024 characters and then end in `...TRUNCATED`. TensorFlow Serving cuts
at 1,024 bytes, so it never shows more. A Chinese or Japanese character is sent as nine bytes,
an emoji as twelve, and gRPC clients take about 8 KB of headers. So a message is also cut at
7 KB as it is sent, or at 4 KB if it has a RetryInfo, in which it is sent a second time.

## What happened, and which code that is

| situation | code | comes with |
|---|---|---|
"""

_MIDDLE = """
**RetryInfo** is `google.rpc.RetryInfo` in the trailer `grpc-status-details-bin`: the call
did not run, and is worth repeating after that pause. `tfs.client` does so by itself within
the deadline. A call that failed with UNAVAILABLE and without the hint may have run.

## What a client should do

| code | what it means here | repeat it? |
|---|---|---|
"""

_REPEAT: Final = {
    Code.CANCELLED: "no",
    Code.UNKNOWN: "no: read the message",
    Code.INVALID_ARGUMENT: "no: the request is wrong",
    Code.DEADLINE_EXCEEDED: "with more time, or when there is less load",
    Code.NOT_FOUND: "when the model is loaded: ask GetModelStatus why it is not",
    Code.ALREADY_EXISTS: "no",
    Code.PERMISSION_DENIED: "no",
    Code.RESOURCE_EXHAUSTED: "smaller, or not at all",
    Code.FAILED_PRECONDITION: "after the state it names has changed",
    Code.ABORTED: "yes, from the start",
    Code.OUT_OF_RANGE: "no",
    Code.UNIMPLEMENTED: "no",
    Code.INTERNAL: "if it may run twice: another interpreter may answer",
    Code.UNAVAILABLE: "after the pause it names; without one, if it may run twice",
    Code.DATA_LOSS: "no: the version must be written again",
    Code.UNAUTHENTICATED: "no",
}

_TAIL = """
This page is printed by `python -m tests.core.errors_page`.
"""


def page() -> str:
    """Returns docs/errors.md."""
    situations = "".join(
        f"| {what} | {kind.code.name} | {extra} |\n" for what, kind, extra in WHEN
    )
    codes = "".join(
        f"| {code.name} ({code.value}) | {(kind.__doc__ or '').strip()} "
        f"| {_REPEAT[code]} |\n"
        for code, kind in BY_CODE.items()
    )
    return _HEAD + situations + _MIDDLE + codes + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
