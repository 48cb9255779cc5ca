"""Versions are tried in a process of their own, before a fleet serves them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.serving import Serving, fork_tfs, run_command
from tfs.client import Client
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
    "kills_once": """
import os, pathlib, signal
class Servable:
    def load(self, version):
        if not pathlib.Path("@/killed").exists():
            pathlib.Path("@/killed").touch()
            os.kill(os.getppid(), signal.SIGKILL)
    def predict(self, x):
        return x
""",
    "kills": """
import os, signal
class Servable:
    def load(self, version):
        os.kill(os.getppid(), signal.SIGKILL)
    def predict(self, x):
        return x
""",
    "small_is_large": """
class Servable:
    def load(self, version):
        pass
    def predict(self, x):
        if len(x) <= 4:
            bytearray(60 << 20)
        return x
""",
    "dies_of_batches": """
import signal
class Servable:
    def load(self, version):
        pass
    def predict(self, x):
        if len(x) > 4:
            signal.raise_signal(signal.SIGSEGV)
        return x
    methods = {"strict": "strict"}
    def strict(self, x):
        raise ValueError("made up")
""",
    "hangs": """
import time
class Servable:
    def load(self, version):
        pass
    def predict(self, x):
        time.sleep(3600)
    methods = {"strict": "strict"}
    strict = predict
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

TEXTS["killed_of_batches"] = TEXTS["dies_of_batches"].replace("SIGSEGV", "SIGKILL")

_TENSOR = {"dtype": "float32", "shape": [-1, 1]}


def write(base_path: Path, kind: str, version: int = 1) -> Path:
    """Writes a version of a kind; returns its base path."""
    folder = base_path / str(version)
    folder.mkdir(parents=True)
    (folder / "servable.py").write_text(TEXTS[kind].replace("@", str(folder)))
    signature = {
        "method": "predict",
        "inputs": {"x": _TENSOR},
        "outputs": {"y": {"dtype": "float32", "shape": [-1, -1]}},
    }
    names = [*(["strict"] if "strict" in TEXTS[kind] else []), "serving_default"]
    form = json.dumps(dict.fromkeys(names, signature))
    (folder / "signatures.json").write_text(form)
    return base_path


LONGEST_CALL_S = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    state_dir = tmp_path_factory.mktemp("state")
    flags = ("--source=rpc", f"--state_dir={state_dir}")
    longest = f"--interpreter_call_timeout_s={LONGEST_CALL_S}"
    with Serving(*flags, longest, measures=True) as serving:
        yield serving


def probe(server: Serving, base_path: Path | str, version: int = 1) -> pb.ProbeResponse:
    """Asks what a version takes."""
    request = pb.ProbeRequest(version=version)
    request.config.name = Path(base_path).name
    request.config.base_path = str(base_path)
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
    assert 30 * MIB <= found.work_peak_bytes < 200 * MIB


def test_whatever_a_version_takes_while_it_is_measured_counts(
    server: Serving, tmp_path: Path
) -> None:
    """A server has to hold that when it loads the version, whichever call it was."""
    found = probe(server, write(tmp_path / "m", "small_is_large"))
    assert found.outcome == pb.ProbeResponse.OK, found
    assert 60 * MIB <= found.work_peak_bytes < 200 * MIB


@pytest.mark.parametrize(
    ("kind", "outcome", "why"),
    [
        ("fails", pb.ProbeResponse.REFUSED, "no such vocabulary"),
        ("dies_at_load", pb.ProbeResponse.CRASHED, "SIGSEGV"),
        ("dies_at_call", pb.ProbeResponse.CRASHED, "SIGSEGV"),
        ("dies_of_batches", pb.ProbeResponse.CRASHED, "_default was called (rows: 32)"),
        ("killed_of_batches", pb.ProbeResponse.CRASHED, "SIGKILL"),
        (
            "hangs",
            pb.ProbeResponse.CRASHED,
            f"a call took over {LONGEST_CALL_S} s (--interpreter_call_timeout_s)",
        ),
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


def test_a_server_that_measures_nothing_refuses_what_is_no_version(
    tmp_path: Path,
) -> None:
    """It says what is missing; of a version it says that it does not try it."""
    base_path = write(tmp_path / "m", "sound")
    (base_path / "2").mkdir()
    state_dir = f"--state_dir={tmp_path / 'state'}"
    with Serving("--source=rpc", state_dir) as server:
        found = probe(server, base_path, 2)
        assert found.outcome == pb.ProbeResponse.REFUSED
        assert "a version holds one of model.pt" in found.reason
        with pytest.raises(grpc.RpcError, match="measures nothing"):
            probe(server, base_path, 1)
        server.stop()


def test_a_server_that_measures_nothing_copies_nothing(tmp_path: Path) -> None:
    """A fleet asks one server after the other, and each would copy the whole version."""
    base_path = f"simplecache::file://{write(tmp_path / 'm', 'sound')}"
    cache = tmp_path / "cache"
    flags = (f"--state_dir={tmp_path / 'state'}", f"--remote_cache_dir={cache}")
    with Serving("--source=rpc", *flags) as server:
        with pytest.raises(grpc.RpcError, match="measures nothing"):
            probe(server, base_path, 1)
        found = probe(server, base_path, 2)
        assert found.reason == f"version 2 is not in {base_path}"
        assert not list(cache.rglob("*.py"))


@pytest.mark.parametrize(
    ("kind", "told", "answers"),
    [
        ("dies_at_call", "attempt_failed servable=m/2 .*SIGSEGV.* was called", 1),
        ("dies_of_batches", "m/2 is available", 2),
    ],
)
def test_a_version_that_ends_its_process_at_each_call_takes_over_from_none(
    tmp_path: Path, kind: str, told: str, answers: int
) -> None:
    """One of which a signature dies at some sizes and another only fails does take over."""
    base_path = write(tmp_path / "m", "sound")
    flags = ("--model_name=m", f"--model_base_path={base_path}")
    often = "--file_system_poll_wait_seconds=1"
    with Serving(*flags, often, measures=True) as server:
        server.wait_for("m/1 is available")
        write(base_path, kind, 2)
        server.wait_for(told)
        with Client(server.address, timeout_s=PATIENCE_S) as client:
            answer = client.predict("m", {"x": np.ones((1, 1), np.float32)})
        assert answer.version == answers


@pytest.fixture
def fleet(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Serving]:
    """A fleet without servers, where commands find it."""
    control = f"unix:{short_folder}/control.sock"
    monkeypatch.setenv("TFS_HOSTED_CONTROLLER", control)
    flags = (
        *("--listen=127.0.0.1:0", "--down_after_s=3", f"--control={control}"),
        f"--store={tmp_path / 'fleet.db'}",
    )
    made = Serving.of(fork_tfs("hosted", "run", *flags))
    try:
        made.wait_for("listening on unix")
        yield made
    finally:
        made.close()


def test_a_server_that_dies_in_a_probe_is_no_answer_and_two_that_do_are(
    fleet: Serving, tmp_path: Path
) -> None:
    """Another is asked when the version took the first with it; then it is quarantined."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Serving("--source=rpc", f"--state_dir={tmp_path / each}", measures=True)
            )
            for each in "abc"
        ]

        def num_dead() -> int:
            return sum(each.process.poll() is not None for each in servers)

        for each in servers:
            run_command("hosted", "add-job", each.address, "--memory=1G")
        base_path = write(tmp_path / "m", "sound")
        code, printed = run_command("hosted", "add-model", "m", str(base_path))
        assert code == 0, printed
        write(base_path, "kills_once", 2)
        code, printed = run_command("hosted", "add-version", "m", "2")
        assert (code, num_dead()) == (0, 1), printed
        write(base_path, "kills", 3)
        code, printed = run_command("hosted", "add-version", "m", "3")
        assert code == 1, printed
        for each in servers:  # the system closes a port before its process has ended
            each.process.wait(PATIENCE_S)
        assert "ended while they tried it" in printed


def test_a_version_that_crashes_is_told_to_no_server_of_a_fleet(
    fleet: Serving, server: Serving, tmp_path: Path
) -> None:
    """The one before goes on; mended and added again, it answers."""
    address = fleet.wait_for(r"listening on (127\S+)")
    base_path = write(tmp_path / "m", "sound")
    for words in (
        ("add-job", server.address, "--memory=1G"),
        ("add-model", "m", str(base_path), "--replicas=1"),
    ):
        code, printed = run_command("hosted", *words)
        assert code == 0, printed
    write(base_path, "dies_at_call", 2)
    code, printed = run_command("hosted", "add-version", "m", "2")
    assert code == 1, printed
    assert "quarantined" in printed
    x = np.ones((1, 1), np.float32)
    with Client(address, timeout_s=PATIENCE_S) as client:
        assert client.predict("m", {"x": x}).version == 1
        assert "SIGSEGV" in run_command("hosted", "why", "m")[1]
        assert "SIGSEGV" in run_command("hosted", "status")[1]
        (base_path / "2" / "servable.py").write_text(TEXTS["sound"])
        code, printed = run_command("hosted", "add-version", "m", "2")
        assert code == 0, printed
        assert client.predict("m", {"x": x}).version == 2
        assert "quarantined" not in run_command("hosted", "status")[1]
