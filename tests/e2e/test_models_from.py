"""Where models come from, and where they run, through a real server process."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.serving import Serving, export_scale
from tfs.client import Client
from tfs.core.errors import NotFound
from tfs.testing.patience import PATIENCE_S

X = np.array([[1.0, 2.0]], dtype=np.float32)


def test_a_repository_serves_what_lies_in_it(tmp_path: Path) -> None:
    """Models appear with their directories; another one may join at any time."""
    repository = tmp_path / "models"
    export_scale(repository / "one", 1)
    with (
        Serving(f"--model_repository={repository}") as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("one/1 is available")
        export_scale(repository / "two", 3)
        server.wait_for("two/3 is available")
        assert client.predict("two", {"x": X}).outputs["y"].tolist() == [[3, 6]]
        shutil.rmtree(repository / "one")
        server.wait_for("servable_end servable=one/1")
        with pytest.raises(NotFound):
            client.predict("one", {"x": X})
        assert client.predict("two", {"x": X}).version == 3
        assert server.stop() == 0


def test_a_base_path_may_be_a_url(tmp_path: Path) -> None:
    """Versions behind a URL are copied, verified and served from the copy."""
    export_scale(tmp_path / "scale", 2)
    with (
        Serving(
            "--model_name=scale",
            f"--model_base_path=file://{tmp_path}/scale",
            f"--remote_cache_dir={tmp_path}/cache",
        ) as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        server.wait_for("scale/2 is available")
        assert client.predict("scale", {"x": X}).outputs["y"].tolist() == [[2, 4]]
        assert server.stop() == 0


def test_a_server_without_urls_leaves_no_directory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed leaves no directory, so restarts fill no disk."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    export_scale(tmp_path / "scale", 2)
    with Serving("--model_name=scale", f"--model_base_path={tmp_path}/scale") as server:
        server.wait_for("scale/2 is available")
        server.process.kill()
        server.process.wait(PATIENCE_S)
    assert not list(temporary.iterdir())


def test_a_model_may_say_where_it_runs(tmp_path: Path) -> None:
    """The model's own runtime config comes before the server's measuring."""
    export_scale(tmp_path / "scale", 1)
    wishes = {
        "chosen": ("backend: PROCESS num_interpreters: 1", "process"),
        "isolated": ("isolation: REQUIRED", "process"),
        "threads": ("backend: INLINE intra_op_threads: 2", "inline"),
    }
    configs = [
        f'config {{ name: "{name}" base_path: "{tmp_path}/scale" '
        f"runtime {{ {runtime} }} }}"
        for name, (runtime, _) in wishes.items()
    ]
    config = tmp_path / "models.config"
    config.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    with (
        Serving(
            f"--model_config_file={config}", "--load_probe_budget_s=0", measures=True
        ) as server,
        Client(server.address, timeout_s=PATIENCE_S) as client,
    ):
        for name, (_, place) in wishes.items():
            server.wait_for(f"event=placed servable={name}/1 note='runs in {place}")
            server.wait_for(f"{name}/1 is available")
            assert client.predict(name, {"x": X}).outputs["y"].tolist() == [[1, 2]]
        assert server.stop() == 0
