"""How grpcio is set up."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import (
    InvalidArgument,
)

_MAX_MESSAGE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GrpcioOptions:
    """How grpcio is set up.

    Attributes:
        max_message_bytes: Largest request and reply.
        max_queued_messages: How many messages of one stream may wait for a slow reader.
        channel_arguments: grpcio's own arguments, which override ours
            (``--grpc_channel_arguments``).

    """

    max_message_bytes: int = _MAX_MESSAGE_BYTES
    max_queued_messages: int = 128
    channel_arguments: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.max_message_bytes <= _MAX_MESSAGE_BYTES:
            raise InvalidArgument(
                f"max_message_bytes must be in 1..{_MAX_MESSAGE_BYTES}, "
                f"got {self.max_message_bytes}"
            )
        if self.max_queued_messages < 1:
            raise InvalidArgument("max_queued_messages must be positive")
