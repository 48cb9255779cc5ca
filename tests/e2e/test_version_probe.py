"""A server tries out a version that it does not serve, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.serving import Serving
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.testing.patience import PATIENCE_S

MIB = 1 << 20

TEXTS = {
    "sound": """
import torch
class Servable:
    def load(self, version):
        self.weights = torch.ones(1024, 1024)      # 4 MiB
    def predict(self, x):
        wide = x.repeat(1, 1 << 18)                # 1 MiB for each row
        return wide[:, :2] * self.weights[0, 0]
""",
    "fails": """
class Servable:
    def load(self, version):
        raise ValueError("no such vocabulary")
    def predict(self, x):
        return x
""",
    "dies_at_load": """
import signal
class Servable:
    def load(self, version):
        signal.raise_signal(signal.SIGSEGV)
    def predict(self, x):
        return x
""",
    "dies_at_call": """
import signal
class Servable:
    def load(self, version):
        pass
    def predict(self, x):
        signal.raise_signal(signal.SIGSEGV)
""",
}

_TENSOR = {"dtype": "float32", "shape": [-1, 1]}


def write(base_path: Path, kind: str, version: int = 1) -> Path:
    """Writes a version of a kind; returns its base path."""
    folder = base_path / str(version)
    folder.mkdir(parents=True)
    (folder / "servable.py").write_text(TEXTS[kind])
    signature = {
        "method": "predict",
        "inputs": {"x": _TENSOR},
        "outputs": {"y": {"dtype": "float32", "shape": [-1, -1]}},
    }
    form = json.dumps({"serving_default": signature})
    (folder / "signatures.json").write_text(form)
    return base_path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    state_dir = tmp_path_factory.mktemp("state")
    with Serving("--source=rpc", f"--state_dir={state_dir}", measures=True) as serving:
        yield serving


def probe(server: Serving, base_path: Path, version: int = 1) -> pb.ProbeResponse:
    """Asks what a version takes."""
    request = pb.ProbeRequest(version=version)
    request.config.name, request.config.base_path = base_path.name, str(base_path)
    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary("/tfs.v1.AdminService/Probe", None, None)
        reply = call(request.SerializeToString(), timeout=PATIENCE_S)
    return pb.ProbeResponse.FromString(reply)


def test_a_version_is_measured_with_its_largest_batch(
    server: Serving, tmp_path: Path
) -> None:
    """Thirty-two rows of one MiB each are seen, and nothing of it is served."""
    found = probe(server, write(tmp_path / "m", "sound"))
    assert found.outcome == pb.ProbeResponse.OK, found
    assert found.load_peak_bytes >= 4 * MIB
    assert 36 * MIB <= found.work_peak_bytes < 200 * MIB


@pytest.mark.parametrize(
    ("kind", "outcome", "why"),
    [
        ("fails", pb.ProbeResponse.REFUSED, "no such vocabulary"),
        ("dies_at_load", pb.ProbeResponse.CRASHED, "SIGSEGV"),
        ("dies_at_call", pb.ProbeResponse.CRASHED, "SIGSEGV"),
    ],
)
def test_what_cannot_serve_says_so_and_harms_no_one(
    server: Serving, tmp_path: Path, kind: str, outcome: int, why: str
) -> None:
    """The server goes on and takes the next."""
    found = probe(server, write(tmp_path / "m", kind))
    assert found.outcome == outcome, found
    assert why in found.reason
    assert probe(server, write(tmp_path / "n", "sound")).outcome == pb.ProbeResponse.OK
    assert server.process.poll() is None
