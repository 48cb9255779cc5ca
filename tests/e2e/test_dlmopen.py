"""Models in private CPythons of a real server process, asked for by flag or by model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.serving import Serving, export_scale, run_tfs
from tests.runtime.dlmopen_host import needs_dlmopen
from tfs.client import Client
from tfs.testing.patience import PATIENCE_S

X = [[1.0, 2.0]]

# A private CPython takes a second to start, and many on a busy machine.
LONG_S = 180.0
NO_ROOM = "glibc.rtld.nns=1:glibc.rtld.optional_static_tls=0"

pytestmark = pytest.mark.timeout(600)


def test_a_server_of_private_pythons_swaps_versions(tmp_path: Path) -> None:
    """Loading, answering, swapping and ending are as with every backend."""
    needs_dlmopen()
    export_scale(tmp_path / "scale", 1)
    with (
        Serving(
            "--model_name=scale",
            f"--model_base_path={tmp_path / 'scale'}",
            "--file_system_poll_wait_seconds=1",
            "--interpreter_backend=dlmopen",
            "--num_interpreters=1",  # each takes seconds twice, to try and to start
            measures=True,
            is_fresh=True,  # whose static TLS is as large as an operator's
            patience_s=LONG_S,
        ) as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("event=dlmopen_probed num_interpreters=1")
        server.wait_for("event=placed servable=scale/1 note='runs in dlmopen")
        server.wait_for("scale/1 is available")
        assert client.predict("scale", {"x": X}).outputs["y"].tolist() == [[1, 2]]
        export_scale(tmp_path / "scale", 2)
        server.wait_for("scale/2 is available")
        server.wait_for("servable_end servable=scale/1")
        assert client.predict("scale", {"x": X}).outputs["y"].tolist() == [[2, 4]]
        assert server.stop() == 0


def test_a_host_that_has_no_room_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the flag, what is missing and what to do; nothing listens."""
    needs_dlmopen()
    monkeypatch.setenv("GLIBC_TUNABLES", NO_ROOM)
    code, output = run_tfs(
        "serve",
        "--any_port",
        "--model_name=m",
        f"--model_base_path={tmp_path}",
        "--interpreter_backend=dlmopen",
        "--num_interpreters=1",
        patience_s=LONG_S,
    )
    assert code == 1
    assert "--interpreter_backend=dlmopen" in output
    assert "static TLS" in output
    assert "GLIBC_TUNABLES=glibc.rtld.nns=16" in output
    assert "listening" not in output
