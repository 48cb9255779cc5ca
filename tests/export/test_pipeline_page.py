"""docs/version-directory.md: a pipeline that keeps the last versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "version-directory.md"


def test_the_pipeline_of_the_page_keeps_the_last_versions(tmp_path: Path) -> None:
    """What users copy from the page writes versions and removes old ones, no others."""
    (code,) = re.findall(
        r"```python\n(import shutil\n.*?)```", PAGE.read_text(encoding="utf-8"), re.S
    )
    names: dict[str, Any] = {}
    exec(compile(code, "version-directory.md", "exec"), names)
    (tmp_path / "3.tmp").mkdir()  # somebody copies a version
    for _ in range(4):
        names["publish"](
            torch.nn.Linear(2, 1).eval(), torch.rand(2, 2), tmp_path, num_kept=2
        )
    assert {each.name for each in tmp_path.iterdir()} == {"3", "4", "3.tmp"}
