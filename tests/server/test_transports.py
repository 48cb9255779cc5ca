"""Which transport a server's options mean."""

from __future__ import annotations

import pytest

from tfs.core.errors import InvalidArgument
from tfs.core.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.rpc.express.transport import ExpressTransport
from tfs.frontends.rpc.grpcio.transport import GrpcioTransport
from tfs.server.options import ServerOptions, TransportKind
from tfs.server.transports import chosen_transport, make_transport

AUTO, GRPCIO, EXPRESS = (
    TransportKind.AUTO,
    TransportKind.GRPCIO,
    TransportKind.EXPRESS,
)


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({}, EXPRESS),
        ({"grpc_transport": AUTO}, EXPRESS),
        ({"grpc_transport": EXPRESS}, EXPRESS),
        ({"grpc_transport": GRPCIO}, GRPCIO),
        ({"ssl_config_file": "/etc/ssl.config"}, EXPRESS),
        ({"grpc_channel_arguments": "grpc.max_connection_age_ms=1000"}, GRPCIO),
    ],
)
def test_auto_is_express_unless_only_grpcio_does_what_was_asked_for(
    options: dict[str, object], meant: TransportKind
) -> None:
    """Channel arguments are grpcio's; whoever names a transport gets it."""
    given = ServerOptions(model_base_path="/m", **options)  # type: ignore[arg-type]
    assert chosen_transport(given) is meant


@pytest.mark.parametrize(
    ("kind", "made"), [(EXPRESS, ExpressTransport), (GRPCIO, GrpcioTransport)]
)
def test_the_chosen_transport_is_made(kind: TransportKind, made: type) -> None:
    """The chosen transport is made but not started, so nothing listens yet."""
    options = ServerOptions(model_base_path="/m", grpc_transport=kind)
    assert isinstance(make_transport(options, ServingLoop(), Stats()), made)


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({}, False),
        ({"grpc_transport": GRPCIO}, False),
        ({"grpc_channel_arguments": "grpc.max_connection_age_ms=1000"}, True),
    ],
)
def test_a_start_script_is_told_what_its_channel_arguments_cost(
    caplog: pytest.LogCaptureFixture, options: dict[str, object], is_told: bool
) -> None:
    """They choose the slower transport for somebody who never asked for one."""
    given = ServerOptions(model_base_path="/m", **options)  # type: ignore[arg-type]
    make_transport(given, ServingLoop(), Stats())
    told = [each for each in caplog.messages if "event=grpcio_chosen" in each]
    assert bool(told) is is_told


def test_the_receive_budget_has_a_least_size() -> None:
    """Too small a budget would let nobody send anything."""
    with pytest.raises(InvalidArgument, match="--max_receive_bytes"):
        ServerOptions(model_base_path="/m", max_receive_bytes=1000)


def test_channel_arguments_are_not_ignored() -> None:
    """Whoever names express and arguments of grpcio's learns that they do nothing."""
    with pytest.raises(InvalidArgument, match="mean nothing to --grpc_transport=exp"):
        ServerOptions(
            model_base_path="/m",
            grpc_transport=EXPRESS,
            grpc_channel_arguments="grpc.max_connection_age_ms=1000",
        )
