"""A real server whose models are loaded by their first request, whichever way that comes."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.e2e.rest import Rest
from tests.e2e.serving import Serving, free_port
from tfs.cli.main import main
from tfs.client import Client
from tfs.testing.patience import PATIENCE_S

NAMES = (
    *("by_grpc", "by_rest", "by_oip"),
    *("by_metadata", "by_oip_metadata", "by_openapi", "by_nobody"),
)


def tfs(*words: str) -> str:
    """Returns what a command prints; it must succeed."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words]) == 0
    return said.getvalue()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name in NAMES:
        (folder := tmp_path / name / "1").mkdir(parents=True)
        (folder / "table.csv").write_text("key,price\na,3\n")
    path = tmp_path / "models"
    models = " ".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" residency: ON_DEMAND }}'
        for name in NAMES
    )
    path.write_text(f"model_config_list {{ {models} }}")
    return path


def test_a_first_request_of_any_kind_waits_for_its_model(config: Path) -> None:
    """gRPC, REST, OIP, metadata and OpenAPI: each loads what it asks for, and nothing else."""
    port = free_port()
    flags = (f"--model_config_file={config}", f"--rest_api_port={port}")
    key = {"key": ["a"]}
    with Serving(*flags) as server:
        rest = Rest(port)
        for name in NAMES:  # until their base paths have been looked at
            while rest.ask(f"/v1/models/{name}")[0] == 404:
                pass
        with Client(server.address) as client:
            answer = client.predict("by_grpc", key, timeout_s=PATIENCE_S)
            assert list(answer.outputs["price"]) == [3]
            assert client.metadata("by_metadata", timeout_s=PATIENCE_S)
        status, body, _ = rest.ask("/v1/models/by_rest:predict", {"inputs": key})
        assert status == 200, body
        assert body["outputs"]["price"] == [3]
        status, body, _ = rest.ask("/v2/models/by_oip_metadata")
        assert status == 200, body
        assert body["versions"] == ["1"]
        status, body, _ = rest.ask("/v1/models/by_openapi/openapi.json")
        assert status == 200, body
        assert "/v1/models/by_openapi:predict" in body["paths"]
        tensor = {"name": "key", "shape": [1], "datatype": "BYTES", "data": ["a"]}
        status, body, _ = rest.ask("/v2/models/by_oip/infer", {"inputs": [tensor]})
        assert status == 200, body
        _, body, _ = rest.ask("/v1/models/by_nobody")
        (state,) = body["model_version_status"]
        assert state["state"] == "START"
        _, page, _ = rest.ask("/models/by_nobody")
        assert "answers: a request for the model loads it" in re.sub(
            "<[^>]+>", "", page
        )
        assert "registered" in page
        said = tfs("models", "--address", server.address)
        assert [
            line.split()[0] for line in said.splitlines() if "registered" in line
        ] == ["by_nobody"]
        assert server.stop() == 0
