"""tfs.server.options."""

from __future__ import annotations

import math
import re

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
    ("fields", "words"),
    [
        ({"port": 70000}, "--port must be in 0..65535: 70000"),
        ({"num_load_threads": -1}, "--num_load_threads must be at least 0: -1"),
        ({"grpc_socket_path": "a"}, "--grpc_socket_path must be absolute: a"),
        ({"max_message_bytes": 0}, "--max_message_bytes must be in 1..2147483647: 0"),
        ({"max_in_flight": 0}, "--max_in_flight must be at least 1: 0"),
        ({"drain_timeout_s": math.nan}, "--drain_timeout_s must be at least 0: nan"),
        (
            {"load_retry_interval_s": math.nan},
            "--load_retry_interval_micros must be at least 0: nan",
        ),
        ({"intra_op_parallelism": -1}, "--tensorflow_intra_op_parallelism must be"),
        ({"session_parallelism": 200_000}, "--tensorflow_session_parallelism must be"),
        ({"num_interpreters": 5000}, "--num_interpreters must be in 0..1024: 5000"),
        (
            {"model_config_file_poll_wait_s": 0},
            "--model_config_file_poll_wait_seconds must be positive: 0",
        ),
        (
            {"file_system_poll_wait_s": math.nan},
            "--file_system_poll_wait_seconds must be at least 0: nan",
        ),
        (
            {"load_probe_budget_s": math.inf},
            "--load_probe_budget_s must be in 0..600: inf",
        ),
        ({"grpc_channel_arguments": "novalue"}, "bad item 'novalue'"),
    ],
)
def test_a_bad_option_is_refused_on_creation(
    fields: dict[str, object], words: str
) -> None:
    """An options object that exists is valid; the message names the flag."""
    with pytest.raises(InvalidArgument, match=re.escape(words)):
        ServerOptions(model_base_path="/m", **fields)  # type: ignore[arg-type]


def test_channel_arguments_keep_numbers_numeric() -> None:
    """As upstream, a numeric value is an int and anything else a string."""
    assert parse_channel_arguments("grpc.a=5,grpc.b=x") == (
        ("grpc.a", 5),
        ("grpc.b", "x"),
    )
