"""A server behind TLS: who may operate it, and certificates renewed while it serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.e2e.serving import Serving, run_command, write_whole
from tfs.client import Client
from tfs.core.errors import ServingError

X = [[1.0, 2.0]]


def write_pems(made: Certificates, folder: Path) -> list[str]:
    """Writes what a client needs; returns the flags that name it."""
    contents = (made.authority, *made.client_pem())
    flags = []
    for name, content in zip(("ca", "key", "cert"), contents, strict=True):
        (folder / name).write_bytes(content)
        flags.append(f"--{name}={folder / name}")
    return flags


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_a_verified_client_operates_the_server(
    scale: Path, tmp_path: Path, transport: str
) -> None:
    """--admin_from=mtls: the certificate counts, not where the call comes from."""
    made = Certificates()
    pems = write_pems(made, tmp_path)
    socket = tmp_path / "tfs.sock"
    with Serving(
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--ssl_config_file={made.write_config(tmp_path, mutual=True)}",
        f"--grpc_socket_path={socket}",
        f"--grpc_transport={transport}",
        "--admin_from=mtls",
    ) as server:
        server.wait_for("scale/2 is available")
        code, output = run_command("status", f"--address={server.address}", *pems)
        assert code == 0, output
        assert "SERVING" in output
        code, output = run_command("status", f"--socket={socket}")
        assert code == 1
        assert "PERMISSION_DENIED" in output
        code, output = run_command(
            "status", f"--address={server.address}", pems[0], "--timeout_s=3"
        )
        assert code == 1
        assert "--cert with --key shows a certificate" in output
        code, output = run_command(
            "status", f"--address={server.address}", "--timeout_s=3"
        )
        assert code == 1
        assert "--ca speaks TLS" in output


@pytest.mark.parametrize("transport", ["grpcio", "express"])
def test_certificates_are_renewed_while_the_server_runs(
    scale: Path, tmp_path: Path, transport: str
) -> None:
    """New connections get the new one, a broken file changes nothing, old ones stay."""
    old, new = Certificates(), Certificates()
    config = old.write_config(tmp_path)
    with Serving(
        "--model_name=scale",
        f"--model_base_path={scale}",
        f"--ssl_config_file={config}",
        f"--grpc_transport={transport}",
    ) as server:
        server.wait_for("scale/2 is available")

        def client(made: Certificates) -> Client:
            credentials = made.client_credentials()
            return Client(server.address, timeout_s=10.0, credentials=credentials)

        with client(old) as lasting:
            lasting.predict("scale", {"x": X})
            write_whole(config, 'server_key: "half a fi')
            with client(old) as another:
                another.predict("scale", {"x": X})
            server.wait_for("event=certificates_kept")
            write_whole(config, new.config_text())
            with client(new) as another:
                another.predict("scale", {"x": X})
            server.wait_for("event=certificates_renewed")
            with client(old) as stranger, pytest.raises(ServingError):
                stranger.predict("scale", {"x": X}, timeout_s=2.0)
            lasting.predict("scale", {"x": X})
