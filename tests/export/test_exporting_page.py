"""docs/exporting.md: its examples run, the one for scikit-learn where that is there."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch

from tests.models.of_exporting_page import Net, Prices
from tfs.core.signature import FeatureKind, Method
from tfs.core.version_directory import read_manifest
from tfs.export import save_python

PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"


def test_the_pages_calls_write_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever copies them, with models of their own, has versions of these signatures."""
    monkeypatch.chdir(tmp_path)
    Path("assets").mkdir()
    Path("assets/words.txt").write_text("one two")
    models = tmp_path / "models"
    text = PAGE.read_text().replace('"/models/', f'"{models}/')
    codes = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (servable,) = (each for each in codes if each.startswith("class Servable"))
    Path("servable.py").write_text(servable)
    names: dict[str, object] = {
        "net": Net(),
        "prices": Prices(),
        "images": torch.rand(2, 64),
        "base": str(models / "both"),
        "table": torch.rand(2),
        "torch": torch,
    }
    for code in codes:
        if "tfs.export.save" in code:
            exec(compile(code, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == f"{models}/digits/1\n"
    found = {
        folder.name: read_manifest(str(folder / "1")).signatures
        for folder in models.iterdir()
    }
    assert {name: list(each) for name, each in found.items()} == {
        "digits": ["serving_default"],
        "prices": ["serving_default"],
        "both": ["serving_default", "embed"],
        "lengths": ["serving_default"],
    }
    assert list(found["both"]["embed"].outputs) == ["vector"]
    features = found["prices"]["serving_default"].features
    assert {name: each.kind for name, each in (features or {}).items()} == {
        "size_and_age": FeatureKind.FIXED,
        "word_ids": FeatureKind.VARLEN,
    }


def test_the_pages_pipeline_is_saved_and_tried(tmp_path: Path) -> None:
    """A pipeline of scikit-learn needs its pickle and twenty lines."""
    datasets = pytest.importorskip("sklearn.datasets")
    linear_model = pytest.importorskip("sklearn.linear_model")
    (code,) = re.findall(
        r"```python\n(import os\nimport pickle\n.*?)```", PAGE.read_text(), re.S
    )
    (tmp_path / "iris.py").write_text(code)
    x, y = datasets.load_iris(return_X_y=True)
    pipeline = linear_model.LogisticRegression(max_iter=500).fit(x, y)
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "pipeline.pkl").write_bytes(pickle.dumps(pipeline))
    path = save_python(
        tmp_path / "iris.py",
        tmp_path / "base",
        assets=tmp_path / "trained",
        example_inputs={"x": x[[0, 70, 120]]},
    )
    (signature,) = read_manifest(path).signatures.values()
    assert signature.method is Method.CLASSIFY
    assert signature.labels == ("setosa", "versicolor", "virginica")
