"""The layered area, with models of no size: is every row measured?"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from torch import nn

from tests.benchmarks import layered
from tests.benchmarks.harness import run_area
from tests.benchmarks.row import Series


def tiny() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))


@pytest.mark.slow
def test_every_row_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The area runs to its end with models of any size."""
    subjects = {name: layered.Subject(tiny, (4,), 1.0) for name in layered.SUBJECTS}
    monkeypatch.setattr(layered, "SUBJECTS", subjects)
    monkeypatch.setattr(layered, "_KNOWN", {})
    monkeypatch.setattr(
        layered, "served_means", lambda *_: (Series.of(1), Series.of(1))
    )
    little = layered.Effort((1, 2, 4, 32), 2, 60, (1,), 0.0, (1, 8, 2), (8, 512), 64)
    monkeypatch.setattr(layered, "EFFORT", little)
    out = io.StringIO()
    path = tmp_path / "layered.json"
    status = run_area(layered.AREA, path, commit="none", machine_text="a test", out=out)
    assert status == 0, out.getvalue()
