"""Which transport a server's options mean."""

from __future__ import annotations

import math

import pytest

from tfs.core.errors import InvalidArgument
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.grpcio.transport import GrpcioTransport
from tfs.server.options import ServerOptions, TransportKind
from tfs.server.ports.transports import (
    connection_age_s,
    express_options,
    make_transport,
)


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, ExpressTransport),
        ({"grpc_transport": TransportKind.AUTO}, ExpressTransport),
        ({"grpc_transport": TransportKind.EXPRESS}, ExpressTransport),
        ({"grpc_transport": TransportKind.GRPCIO}, GrpcioTransport),
        ({"ssl_config_file": "/etc/ssl.config"}, ExpressTransport),
        (
            {"grpc_channel_arguments": "grpc.max_connection_age_ms=1000"},
            ExpressTransport,
        ),
    ],
)
def test_auto_is_express(options: dict[str, object], made: type) -> None:
    """Whatever else was asked for; whoever names a transport gets it, not started yet."""
    given = ServerOptions(model_base_path="/m", **options)  # type: ignore[arg-type]
    assert isinstance(make_transport(given, ServingLoop(), Stats()), made)


def _with_arguments(arguments: str) -> ServerOptions:
    return ServerOptions(model_base_path="/m", grpc_channel_arguments=arguments)


def test_express_takes_the_channel_arguments_that_mean_something_to_it() -> None:
    """Each of the six sets what it sets in gRPC; nothing is warned of."""
    made = express_options(
        _with_arguments(
            "grpc.max_connection_age_ms=60000,grpc.max_connection_age_grace_ms=5000,"
            "grpc.max_concurrent_streams=10,grpc.keepalive_time_ms=20000,"
            "grpc.max_metadata_size=8192,grpc.max_receive_message_length=1000000"
        )
    )
    assert (made.max_connection_age_s, made.max_connection_age_grace_s) == (60, 5)
    assert made.keepalive_time_s == 20
    assert made.limits.max_concurrent_streams == 10
    assert made.limits.max_header_list_bytes == 8192
    assert made.limits.max_request_bytes == 1_000_000


@pytest.mark.parametrize(
    ("age_s", "arguments", "both_s"),
    [
        (0, "", 0),
        (9, "", 9),
        (0, "grpc.max_connection_age_ms=2500", 2.5),
        (9, "grpc.max_connection_age_ms=2500", 2.5),
    ],
)
def test_the_argument_for_the_age_of_connections_holds_for_http_too(
    age_s: float, arguments: str, both_s: float
) -> None:
    """What grpc calls it goes before the flag, for both protocols."""
    options = ServerOptions(
        model_base_path="/m",
        max_connection_age_s=age_s,
        grpc_channel_arguments=arguments,
    )
    assert connection_age_s(options) == both_s
    assert express_options(options).max_connection_age_s == (both_s or math.inf)


def test_other_channel_arguments_are_named_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They do nothing here, and the start script that has them goes on working."""
    express_options(
        _with_arguments("grpc.so_reuseport=1,grpc.max_metadata_size=9000,grpc.x=y")
    )
    (told,) = [each for each in caplog.messages if "channel_arguments" in each]
    assert "names=grpc.so_reuseport,grpc.x" in told


@pytest.mark.parametrize("value", ["soon", "0", "-1"])
def test_a_channel_argument_that_is_no_number_is_refused(value: str) -> None:
    """The message names the argument, before anything is opened."""
    with pytest.raises(InvalidArgument, match=r"grpc\.keepalive_time_ms must be"):
        express_options(_with_arguments(f"grpc.keepalive_time_ms={value}"))


def test_the_receive_budget_has_a_least_size() -> None:
    """Too small a budget would let nobody send anything."""
    with pytest.raises(InvalidArgument, match="--max_receive_bytes"):
        ServerOptions(model_base_path="/m", max_receive_bytes=1000)
