"""docs/client.md: what it shows runs, against a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import tfs.export
from tests.e2e.serving import QUICK, Serving
from tests.e2e.warm_python import ROOT
from tests.models.flowers import Flowers
from tfs.testing.patience import PATIENCE_S

_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def test_the_pages_examples_run_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever copies them gets what the page says."""
    tfs.export.save(
        Flowers().eval(),
        torch.rand(2, 2),
        tmp_path / "flowers",
        method="classify",
        labels=["iris", "rose", "tulip"],
    )
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    with Serving(
        "--model_name=flowers", f"--model_base_path={tmp_path}/flowers", *QUICK
    ) as server:
        server.wait_for("flowers/1 is available")
        text = text.replace("127.0.0.1:8500", server.address)
        text = text.replace("timeout_s=5", f"timeout_s={PATIENCE_S:g}")
        for example in _EXAMPLE.findall(text):
            exec(compile(example, "client.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("flowers 1 serving_default\n")
    assert "input 'x' must have shape [-1, 2] (-1 is free), got [1, 3]" in printed
