from __future__ import annotations

import argparse
import socket

import pytest

from tfs.cli.connection import add_connection_arguments, connect
from tfs.core.errors import NotFound, Unavailable


def test_server_that_is_elsewhere_is_asked_for_by_flag() -> None:
    """Whoever forgot the address reads where was looked, and how to say another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        parser = argparse.ArgumentParser()
        add_connection_arguments(parser)
        arguments = parser.parse_args([f"--address={address}", "--timeout_s=20"])
        with (
            pytest.raises(Unavailable, match=f"answers at {address}.*--address"),
            connect(arguments) as client,
        ):
            client.status("digits")


def test_a_model_that_is_not_found_is_looked_for_where_that_is_told() -> None:
    """Whoever mistyped a name reads which command lists them."""
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    with (
        pytest.raises(
            NotFound, match="tfs status, or of a fleet tfs hosted status, says"
        ),
        connect(parser.parse_args([])),
    ):
        raise NotFound("Servable not found for request: Latest(digits)")
