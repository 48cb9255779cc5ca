"""How commands find a server, and their own checks."""

from __future__ import annotations

import argparse
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.certificates import Certificates
from tfs.cli import connection
from tfs.cli.connection import (
    add_admin_arguments,
    add_connection_arguments,
    target_of,
)
from tfs.cli.main import main
from tfs.core.errors import InvalidArgument


def parse(*words: str) -> argparse.Namespace:
    """Reads the arguments that say where the server is."""
    parser = argparse.ArgumentParser()
    add_admin_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No socket at the usual place, none in the environment."""
    monkeypatch.setattr(connection, "DEFAULT_SOCKET", str(tmp_path / "admin.sock"))
    monkeypatch.delenv("TFS_ADMIN_SOCKET", raising=False)
    monkeypatch.delenv("TFS_ADDRESS", raising=False)


def test_the_default_is_loopback() -> None:
    """A server started without flags is found."""
    assert target_of(parse()) == "127.0.0.1:8500"


def test_the_admin_socket_is_preferred_when_it_is_there(tmp_path: Path) -> None:
    """The socket at its usual place is preferred; a plain file there is no socket."""
    path = tmp_path / "admin.sock"
    path.touch()
    assert target_of(parse()) == "127.0.0.1:8500"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert target_of(parse()) == f"unix:{path}"
        assert target_of(parse("--address", "h:1")) == "h:1"


def test_the_environment_names_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment can name a socket, for containers and for several servers."""
    monkeypatch.setenv("TFS_ADMIN_SOCKET", "/run/other.sock")
    assert target_of(parse()) == "unix:/run/other.sock"
    assert target_of(parse("--socket", "/run/mine.sock")) == "unix:/run/mine.sock"


def test_the_environment_names_an_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Commands of both kinds ask there, unless something more exact is said."""
    monkeypatch.setenv("TFS_ADDRESS", "h:9")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "admin.sock"))  # at the usual place
        assert target_of(parse()) == "h:9"
    assert target_of(parse("--address=h:1")) == "h:1"
    assert target_of(parse("--socket=/s")) == "unix:/s"
    caller = argparse.ArgumentParser()
    add_connection_arguments(caller)
    monkeypatch.setenv("TFS_ADMIN_SOCKET", "/run/other.sock")
    assert target_of(parse()) == "unix:/run/other.sock"
    assert target_of(caller.parse_args([])) == "h:9"


def test_two_places_are_one_too_many() -> None:
    """Which one was meant is not guessed."""
    with pytest.raises(InvalidArgument):
        target_of(parse("--socket", "/s", "--address", "h:1"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["status", "--socket", "/absent.sock", "--timeout_s", "5"],
            "no server answers at unix:/absent",
        ),
        (["rollback", "m", "1", "--end"], "--end takes no version"),
        (["canary", "m", "1", "--end"], "--end takes no version"),
        (["canary", "m", "--tee=0.1"], "say which VERSION"),
        (["status", "--address", "http://h:8500"], "takes HOST:PORT, no URL"),
        (["status", "--address", "localhost"], "takes HOST:PORT, no URL"),
        (["status", "--timeout_s", "0"], "--timeout_s must be positive"),
        (["status", "--timeout_s", "nan"], "--timeout_s must be positive"),
        (["canary", "m", "--end", "--min_samples=5"], "say which VERSION"),
        (["reload", "/absent.config"], "Failed to read"),
        (["status", "--cert=/c.pem", "--key=/k"], "need --ca"),
        (["status", "--cert", "/c.pem"], "--cert and --key go together"),
        (["status", "--ca", "/absent.pem"], "cannot read /absent.pem"),
        (["config", "validate", "/absent.config"], "Failed to read"),
    ],
)
def test_a_failure_is_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and what is wrong."""
    assert main(words) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_what_is_no_server_of_ours_is_told_from_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A fleet's router, or TensorFlow Serving, has no such service."""
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        assert main(["status", "--address", f"127.0.0.1:{port}"]) == 1
    finally:
        other.stop(0)
    error = capsys.readouterr().err
    assert f"what answers at 127.0.0.1:{port} takes no commands" in error
    assert "tfs hosted status" in error


def test_a_file_is_checked_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Editors and pipelines can check a configuration where no server runs."""
    path = tmp_path / "models.config"
    path.write_text("model_config_list { config { name: 'a' base_path: '/m' } }")
    assert main(["config", "validate", str(path)]) == 0
    assert "1 model(s)" in capsys.readouterr().out
    path.write_text("model_config_list { config { name: 'a' base_path: 'm' } }")
    assert main(["config", "validate", str(path)]) == 1
    assert "absolute path" in capsys.readouterr().err
    model = "name: 'a' base_path: '/m' model_platform: 'onnx'"
    other = "name: 'b' base_path: '/m' model_platform: 'caffe'"
    both = f"config {{ {model} }} config {{ {other} }}"
    path.write_text(f"model_config_list {{ {both} }}")
    assert main(["config", "validate", str(path)]) == 1
    error = capsys.readouterr().err
    assert "Model a requests unsupported platform onnx; known: hashmap" in error
    assert "Model b requests unsupported platform caffe; known: hashmap" in error


def test_what_leads_nowhere_on_this_machine_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is valid all the same: it may be for a server elsewhere."""
    (tmp_path / "m" / "2").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    label = 'version_labels { key: "stable" value: 1 }'
    models = {"a": "m", "b": "empty", "c": "gone"}
    text = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / path}" {label} }}'
        for name, path in models.items()
    )
    far = 'config { name: "far" base_path: "s3://bucket/m" }'
    trial = "traffic { primary: 4 canary { version: 5 tee_fraction: 0.1 } }"
    policy = "model_version_policy { specific { versions: 2 versions: 6 } }"
    text += (
        f'config {{ name: "d" base_path: "{tmp_path / "m"}" {trial} }}'
        f'config {{ name: "e" base_path: "{tmp_path / "m"}" {policy} }}'
    )
    path = tmp_path / "models.config"
    path.write_text(f"model_config_list {{ {text} {far} }}")
    assert main(["config", "validate", str(path)]) == 0
    valid, *notes = capsys.readouterr().out.splitlines()
    assert valid.endswith("6 model(s)")
    where = f"which is not in {tmp_path / 'm'}; there: 2"
    assert notes == [
        f"note: a: label stable is for version 1, {where}",
        f"note: b: base path {tmp_path / 'empty'} holds no version",
        f"note: c: base path {tmp_path / 'gone'}: No such file or directory",
        f"note: d: the primary is version 4, {where}",
        f"note: d: the canary is version 5, {where}",
        f"note: e: the policy asks for version 6, {where}",
    ]


def test_a_port_without_tls_is_told_from_one_that_is_not_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other certificate would help; both kinds of command say what does."""
    authority = tmp_path / "ca.pem"
    authority.write_bytes(Certificates().authority)
    other = grpc.server(ThreadPoolExecutor(1))
    where = f"--address=127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    try:
        for words in (["status"], ["predict", "m", "--input", "x=1"]):
            assert main([*words, where, f"--ca={authority}"]) == 1
            told = capsys.readouterr().err
            assert "speaks no TLS" in told
    finally:
        other.stop(0)
