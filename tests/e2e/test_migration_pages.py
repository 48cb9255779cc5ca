"""The servables of the migration pages can be exported and answer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import Serving
from tests.e2e.warm_python import ROOT
from tfs.client import Client, Typed
from tfs.testing.patience import PATIENCE_S

_FILE = re.compile(r"^```python (\S+)\n(.*?)^```$", re.M | re.S)


def export(page: str, folder: Path) -> None:
    """Writes the page's files and runs its export."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, content in _FILE.findall(text):
        (folder / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "export.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr


def test_the_torchserve_pages_servable_answers(tmp_path: Path) -> None:
    """What the page makes of a handler works; so many strings are decoded elsewhere."""
    export("migrating-from-torchserve.md", tmp_path)
    with Serving(
        "--model_name=sentiment",
        f"--model_base_path={tmp_path}/models/sentiment",
    ) as server:
        server.wait_for("sentiment/1 is available")
        with Client(server.address, timeout_s=PATIENCE_S) as client:
            found = client.predict("sentiment", {"text": ["bad", "good good bad"]})
            many = client.predict("sentiment", {"text": ["good"] * 20_000})
            none = client.predict("sentiment", {"text": Typed([], "string")})
    assert found.outputs["label"].tolist() == [b"bad", b"good"]
    assert found.outputs["score"].tolist() == pytest.approx([0.7310586] * 2)
    assert set(many.outputs["label"].tolist()) == {b"good"}
    assert many.outputs["label"].shape == (20_000,)
    assert none.outputs["label"].shape == none.outputs["score"].shape == (0,)


def test_the_mosec_pages_servable_answers(tmp_path: Path) -> None:
    """What the page makes of a worker works, and refuses the rows it should."""
    export("migrating-from-mosec.md", tmp_path)
    with Serving(
        "--model_name=linear", f"--model_base_path={tmp_path}/models/linear"
    ) as server:
        server.wait_for("linear/1 is available")
        with Client(server.address, timeout_s=PATIENCE_S) as client:
            found = client.predict("linear", {"x": [[1.0, 2.0, 3.0, 4.0]]})
            assert found.outputs["y"].tolist() == [[10.0, 10.0]]
            with pytest.raises(Exception, match="x must be finite"):
                client.predict("linear", {"x": [[1.0, float("nan"), 3.0, 4.0]]})
