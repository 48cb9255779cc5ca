"""predict, warmup record, request logs and replay, against real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.certificates import Certificates
from tests.e2e.serving import Serving, config_text, export_scale
from tfs.cli.main import main
from tfs.client import Client
from tfs.testing.patience import PATIENCE_S

X = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Serving]:
    """Versions 1 and 2 of the scale, warmed up, every request of it logged."""
    base_path = folder / "scale"
    for version in (1, 2):
        path = export_scale(base_path, version)
        assert main(["warmup", "record", str(path), "--input", "x=[[1, 2]]"]) == 0
    config = folder / "models.config"
    config.write_text(
        config_text(
            "scale",
            base_path,
            "model_version_policy { all {} } logging_config { log_collector_config "
            f'{{ filename_prefix: "{folder}/logs/scale" }} '
            "sampling_config { sampling_rate: 1 } }",
        )
    )
    with Serving(f"--model_config_file={config}") as server:
        server.wait_for_each("scale/1 is available", "scale/2 is available")
        yield server


def test_versions_are_warmed_up_before_they_are_available(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was recorded is replayed as part of the load, and its status says so."""
    lines = "\n".join(serving.lines)
    for version in (1, 2):
        warmed = lines.index(f"event=servable_warmed_up servable=scale/{version}")
        assert warmed < lines.index(f"scale/{version} is available")
    assert main(["models", "--json", f"--address={serving.address}"]) == 0
    assert capsys.readouterr().out.count('"num_warmup_requests": 1') == 2


def test_predict_prints_json(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """One object, for scripts; JSON input takes the signature's dtype."""
    words = ["predict", "scale", "--input", "x=[[1, 2]]", "--json"]
    assert main([*words, "--version=1", f"--address={serving.address}"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "model": "scale",
        "version": 1,
        "signature": "serving_default",
        "outputs": {"y": [[1.0, 2.0]]},
    }


def test_metadata_prints_what_a_model_takes(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each input and output; JSON with the same for scripts."""
    words = ["metadata", "scale", f"--address={serving.address}", "--version=1"]
    assert main(words) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "scale/1"
    assert [line.split() for line in lines] == [
        ["serving_default", "predict", "input", "x", "float32", "[-1,", "2]"],
        ["serving_default", "predict", "output", "y", "float32", "[-1,", "2]"],
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == 1
    assert found["signatures"]["serving_default"]["inputs"] == {
        "x": {"dtype": "float32", "shape": [-1, 2]}
    }
    assert main(["metadata", "typo", f"--address={serving.address}"]) == 1
    assert "NOT_FOUND" in capsys.readouterr().err


def test_predict_prints_arrays(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who answered, then each output with dtype and shape."""
    np.save(tmp_path / "x.npy", X)
    words = ["predict", "scale", f"--input=x={tmp_path}/x.npy"]
    assert main([*words, f"--address={serving.address}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["scale/2 serving_default", "y: float32 [2, 2]"]


def test_predict_tells_what_is_wrong(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server's refusal is one line and exit code 1."""
    words = ["predict", "other", "--input", "x=[[1, 2]]"]
    assert main([*words, f"--address={serving.address}"]) == 1
    told = capsys.readouterr().err
    assert "tfs: NOT_FOUND: Servable not found" in told
    assert told.endswith("says what is served, or why it is not\n")


def test_a_log_is_replayed_and_answers_are_compared(
    serving: Serving, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same version answers the same; another one is found out."""
    config = folder / "models.config"
    logs = folder / "replayed"
    text = config.read_text().replace(f"{folder}/logs/", f"{logs}/")
    other = folder / "other.config"
    other.write_text(text)
    with Serving(f"--model_config_file={other}") as server:
        server.wait_for("scale/2 is available")
        with Client(server.address, timeout_s=PATIENCE_S) as client:
            for _ in range(3):
                client.predict("scale", {"x": X}, version=2)
        assert server.stop() == 0  # which writes the log to its end
    files = [str(path) for path in logs.iterdir()]
    assert len(files) == 1
    address = f"--address={serving.address}"
    assert main(["replay", *files, address]) == 0
    assert capsys.readouterr().out == "3 sent, 3 same, 0 not\n"
    assert main(["replay", *files, address, "--version=1"]) == 1
    printed = capsys.readouterr().out
    assert "record 0: y: 4 of 4 elements differ, first at [0, 0]: 1.0" in printed
    assert main(["replay", *files, address, "--version=1", "--rtol=2"]) == 0
    whole = Path(files[0]).read_bytes()
    cut = folder / "cut.tfrecord"
    cut.write_bytes(whole[:-1])
    capsys.readouterr()
    assert main(["replay", str(cut), *files, address]) == 1
    told = capsys.readouterr()
    assert told.out == "5 sent, 5 same, 0 not\n"
    assert f"DATA_LOSS: {cut}: truncated record" in told.err


def test_a_tls_port_and_a_unix_socket_are_served_side_by_side(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--ssl_config_file secures the port; the socket stays plain, as upstream's."""
    made = Certificates()
    authority, key, cert = (tmp_path / name for name in ("ca", "key", "cert"))
    authority.write_bytes(made.authority)
    for path, pem in zip((key, cert), made.client_pem(), strict=True):
        path.write_bytes(pem)
    base_path = tmp_path / "scale"
    export_scale(base_path, 1)
    socket = tmp_path / "tfs.sock"
    with Serving(
        "--model_name=scale",
        f"--model_base_path={base_path}",
        f"--ssl_config_file={made.write_config(tmp_path, mutual=True)}",
        f"--grpc_socket_path={socket}",
    ) as server:
        server.wait_for("scale/1 is available")
        words = ["predict", "scale", "--input", "x=[[1, 2]]", "--json"]
        tls = [f"--ca_file={authority}", f"--cert_file={cert}", f"--key_file={key}"]
        assert main([*words, f"--address={server.address}", *tls]) == 0
        assert main([*words, f"--address=unix:{socket}"]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert json.loads(first) == json.loads(second)
        plain = [*words, f"--address={server.address}", "--timeout_s=3"]
        assert main(plain) == 1
        told = capsys.readouterr().err
        assert f"what listens at {server.address} hung up" in told
        assert "--ca speaks TLS" in told
        authority.write_bytes(Certificates().authority)
        assert main([*words, f"--address={server.address}", *tls]) == 1
        told = capsys.readouterr().err
        assert f"what listens at {server.address} is not trusted" in told
        assert server.stop() == 0
