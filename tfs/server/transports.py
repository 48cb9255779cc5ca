"""Chooses the transport that speaks gRPC, and sets it up from the server's options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tfs.core.call import Transport
from tfs.core.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.rpc.answer_sizes import AnswerSizes
from tfs.frontends.rpc.express.http2.connection_limits import ConnectionLimits
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.transport import ExpressTransport
from tfs.server.options import ServerOptions, TransportKind, parse_channel_arguments

log = logging.getLogger(__name__)


def chosen_transport(options: ServerOptions) -> TransportKind:
    """Returns the transport that ``auto`` stands for, or the one asked for.

    ``auto`` is express, except if arguments for grpcio's channels were given, which
    only grpcio understands.
    """
    if options.grpc_transport is not TransportKind.AUTO:
        return options.grpc_transport
    if options.grpc_channel_arguments:
        return TransportKind.GRPCIO
    return TransportKind.EXPRESS


# Because answers may be far longer than requests.
_LEAST_BACKLOG_BYTES: Final = 64 << 20


def make_transport(
    options: ServerOptions,
    loop: ServingLoop,
    stats: Stats,
    on_large_message: Callable[[], None] = lambda: None,
    on_scarcity: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
    answer_sizes: AnswerSizes | None = None,
) -> Transport:
    """Returns the transport, not started.

    Args:
        options: The options of the server.
        loop: Handles the calls.
        stats: Gets the transport's counters.
        on_large_message: Called on the loop after messages that leave free memory
            behind, if the transport can tell.
        on_scarcity: Called on the loop while requests wait for memory, at once and then
            about once a second, if the transport can tell.
        on_look: Called on the loop once a second, and more often while requests wait
            for memory, if the transport cannot tell.
        answer_sizes: What is known of models' answers before anybody asked.

    """
    if chosen_transport(options) is TransportKind.EXPRESS:
        limits = ConnectionLimits(max_message_bytes=options.max_message_bytes)
        return ExpressTransport(
            loop,
            ExpressOptions(
                limits,
                options.max_receive_bytes,
                max_backlog_bytes=max(options.max_receive_bytes, _LEAST_BACKLOG_BYTES),
                look_s=options.loop_spin_us / 1e6,
            ),
            stats=stats,
            on_large_message=on_large_message,
            on_scarcity=on_scarcity,
            answer_sizes=answer_sizes,
        )
    if options.grpc_transport is TransportKind.AUTO:
        log.warning(
            "event=grpcio_chosen why='it alone takes --grpc_channel_arguments; without "
            "them express speaks gRPC, for a fraction of the processor time'"
        )
    # Importing grpcio takes a tenth of a second, which a server with express saves.
    from tfs.frontends.rpc.grpcio.options import GrpcioOptions
    from tfs.frontends.rpc.grpcio.transport import GrpcioTransport

    return GrpcioTransport(
        loop,
        GrpcioOptions(
            max_message_bytes=options.max_message_bytes,
            channel_arguments=parse_channel_arguments(options.grpc_channel_arguments),
        ),
        stats,
        on_look=on_look,
        on_large_message=on_large_message,
        answer_sizes=answer_sizes,
    )
