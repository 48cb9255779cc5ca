"""tfs.server.options."""

from __future__ import annotations

import pytest

from tfs.core.errors import InvalidArgument
from tfs.server.options import ServerOptions, parse_channel_arguments


def test_something_to_serve_is_required() -> None:
    """Without a base path or a config file there is nothing to serve."""
    with pytest.raises(InvalidArgument, match="--model_base_path"):
        ServerOptions()


def test_somewhere_to_listen_is_required() -> None:
    """Port 0 without a socket leaves no door."""
    with pytest.raises(InvalidArgument, match="--port or --grpc_socket_path"):
        ServerOptions(model_base_path="/m", port=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"port": 70000},
        {"num_load_threads": -1},
        {"grpc_socket_path": "relative"},
        {"max_message_bytes": 0},
        {"max_in_flight": 0},
        {"grpc_channel_arguments": "novalue"},
    ],
)
def test_a_bad_option_is_refused_on_creation(fields: dict[str, object]) -> None:
    """An options object that exists is valid."""
    with pytest.raises(InvalidArgument):
        ServerOptions(model_base_path="/m", **fields)  # type: ignore[arg-type]


def test_channel_arguments_keep_numbers_numeric() -> None:
    """As upstream, a numeric value is an int and anything else a string."""
    assert parse_channel_arguments("grpc.a=5,grpc.b=x") == (
        ("grpc.a", 5),
        ("grpc.b", "x"),
    )
