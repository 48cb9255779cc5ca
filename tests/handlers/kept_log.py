"""A request log that keeps what it is told."""

from __future__ import annotations

from typing import NamedTuple

from tfs.handlers.limits.answered_request import AnsweredRequest


class LogEntry(NamedTuple):
    """One answered request, its bytes as they travelled."""

    method: str
    model: str
    version: int
    signature: str
    request: bytes
    response: bytes


class KeptLog:
    """Samples every request. Confined to the test's thread."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    def __call__(self, answered: AnsweredRequest) -> None:
        request, response = answered.record()
        response = response if isinstance(response, bytes) else b"".join(response)
        self.entries.append(
            LogEntry(
                answered.method,
                answered.model,
                answered.version,
                answered.signature,
                bytes(request),
                response,
            )
        )
