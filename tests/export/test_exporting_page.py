"""docs/exporting.md: its scikit-learn servable works, with the library it is about."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tfs.core.signature import Method
from tfs.core.version_directory import read_manifest
from tfs.export import save_python

PAGE = Path(__file__).parents[2] / "docs" / "exporting.md"


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
