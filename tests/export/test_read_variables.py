"""What a model takes from the author's environment."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from tests.models.adds_one import AddsOne
from tests.models.reads_variables import Scaled
from tfs.export import save, save_python
from tfs.export.read_variables import ReadVariables

_READ = type(os.environ).__getitem__


def test_variables_that_a_model_reads_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server may have them too, so it is no error."""
    save(Scaled(), torch.rand(2, 3), tmp_path / "base")
    assert "variables_read names=TFS_TEST_SCALE,TFS_TEST_SHIFT are" in caplog.text
    assert type(os.environ).__getitem__ is _READ


def test_a_model_that_reads_none_is_told_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What torch and Python read on the way is no matter of the model's."""
    save(AddsOne(), torch.rand(2, 3), tmp_path / "base")
    assert "environment_variables_read" not in caplog.text


def test_variables_that_a_file_asks_for_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Asking whether a variable exists counts as reading it."""
    (tmp_path / "servable.py").write_text(
        "import os\n"
        "SPEC = {'dtype': 'float32', 'shape': [-1]}\n"
        "class Scaled:\n"
        "    signatures = {'serving_default': {\n"
        "        'method': 'predict', 'inputs': {'x': SPEC}, 'outputs': {'y': SPEC}}}\n"
        "    def load(self, version):\n"
        "        self.by = 3 if 'TFS_TEST_SCALE' in os.environ else 2\n"
        "    def predict(self, x):\n"
        "        return {'y': self.by * x}\n"
    )
    save_python(tmp_path / "servable.py", tmp_path / "base")
    assert "variables_read names=TFS_TEST_SCALE are" in caplog.text


def test_the_environment_is_as_it_was_after_the_last_who_watches() -> None:
    """Versions may be saved on several threads, and one within another."""
    reads = ReadVariables()
    entered, leave = threading.Event(), threading.Event()

    def watch() -> None:
        with reads.watched():
            entered.set()
            leave.wait(10)

    with reads.watched(), reads.watched():
        thread = threading.Thread(target=watch)
        thread.start()
        assert entered.wait(10)
    assert type(os.environ).__getitem__ is not _READ
    assert os.environ["PATH"] == os.environ.get("PATH")
    leave.set()
    thread.join()
    assert type(os.environ).__getitem__ is _READ
