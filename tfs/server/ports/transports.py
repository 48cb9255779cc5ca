"""Chooses the transport that speaks gRPC, and sets it up from the server's options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tfs.core.call import Transport
from tfs.core.errors import InvalidArgument
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.express.client_state import ExpressOptions
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.http2.state import ConnectionLimits
from tfs.server.options import ServerOptions, TransportKind, parse_channel_arguments

log = logging.getLogger(__name__)

EXPRESS_ARGUMENTS: Final = (
    "grpc.max_connection_age_ms",
    "grpc.max_connection_age_grace_ms",
    "grpc.max_concurrent_streams",
    "grpc.keepalive_time_ms",
    "grpc.max_metadata_size",
    "grpc.max_receive_message_length",
)
"""The channel arguments that mean something to express."""


def make_transport(
    options: ServerOptions,
    loop: ServingLoop,
    stats: Stats,
    on_large_message: Callable[[], None] = lambda: None,
    budget: MemoryBudget | None = None,
) -> Transport:
    """Returns the transport, not started.

    Args:
        options: The options of the server.
        loop: Handles the calls.
        stats: Gets the transport's counters.
        on_large_message: Called on the loop after messages that leave free memory
            behind, if the transport can tell.
        budget: The memory that clients can make the server take, shared with HTTP.

    Raises:
        InvalidArgument: A channel argument that express takes is no positive number.

    """
    if options.grpc_transport is not TransportKind.GRPCIO:
        return ExpressTransport(
            loop,
            express_options(options),
            stats=stats,
            on_large_message=on_large_message,
            budget=budget,
        )
    # Importing grpcio takes a tenth of a second, which a server with express saves.
    from tfs.frontends.grpcio.transport import GrpcioOptions, GrpcioTransport

    return GrpcioTransport(
        loop,
        GrpcioOptions(
            max_message_bytes=options.max_message_bytes,
            channel_arguments=parse_channel_arguments(options.grpc_channel_arguments),
        ),
        stats,
    )


def express_options(options: ServerOptions) -> ExpressOptions:
    """Returns how express is set up; warns of channel arguments that it has no use for.

    Raises:
        InvalidArgument: A channel argument that express takes is no positive number.

    """
    given: dict[str, int] = {}
    unused: list[str] = []
    for name, value in parse_channel_arguments(options.grpc_channel_arguments):
        if name not in EXPRESS_ARGUMENTS:
            unused.append(name)
        elif isinstance(value, str) or value < 1:
            raise InvalidArgument(
                f"--grpc_channel_arguments: {name} must be a positive number, got "
                f"{value}"
            )
        else:
            given[name] = value
    if unused:
        log.warning(
            "event=channel_arguments_unused names=%s note=%r",
            ",".join(unused),
            "express has no such settings; --grpc_transport=grpcio has",
        )
    usual, limits = ExpressOptions(), ConnectionLimits()

    def number(name: str, default: int) -> int:
        return given.get(f"grpc.{name}", default)

    def seconds(name: str, default_s: float) -> float:
        found = given.get(f"grpc.{name}")
        return default_s if found is None else found / 1000

    return ExpressOptions(
        limits=ConnectionLimits(
            max_concurrent_streams=number(
                "max_concurrent_streams", limits.max_concurrent_streams
            ),
            max_message_bytes=options.max_message_bytes,
            max_request_bytes=number(
                "max_receive_message_length", options.max_message_bytes
            ),
            max_header_list_bytes=number(
                "max_metadata_size", limits.max_header_list_bytes
            ),
        ),
        max_receive_bytes=options.max_receive_bytes,
        max_connection_age_s=connection_age_s(options) or usual.max_connection_age_s,
        max_connection_age_grace_s=seconds(
            "max_connection_age_grace_ms", usual.max_connection_age_grace_s
        ),
        keepalive_time_s=seconds("keepalive_time_ms", usual.keepalive_time_s),
    )


def connection_age_s(options: ServerOptions) -> float:
    """Returns after how long connections are drained, those of HTTP too; 0 is never."""
    arguments = dict(parse_channel_arguments(options.grpc_channel_arguments))
    age_ms = arguments.get("grpc.max_connection_age_ms")
    if isinstance(age_ms, int) and age_ms > 0:
        return age_ms / 1000
    return options.max_connection_age_s
