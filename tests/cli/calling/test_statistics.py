"""tfs.cli.calling.statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.handlers.messages import classify_log, predict_log
from tests.server.validated import save_for
from tfs.cli.main import main
from tfs.codec.tfrecord import frame
from tfs.core.version.input_statistics import STATISTICS, read_statistics
from tfs.core.version_directory import read_manifest, verify_files


def test_arrays_become_the_figures_of_inputs(tmp_path: Path) -> None:
    """By name, of numbers and of words."""
    source, output = tmp_path / "train.npz", tmp_path / "statistics.json"
    np.savez(source, x=np.arange(10.0), word=np.array(["a", "b", "a"]))
    assert main(["statistics", str(source), f"--output={output}"]) == 0
    found = read_statistics(str(output))
    assert (found["x"].edges[0], found["x"].edges[-1]) == (0, 9)
    assert found["word"].words == ("a", "b")


def test_logged_requests_become_the_figures_of_inputs(tmp_path: Path) -> None:
    """Those of Predict; what holds none is refused, and nothing is written."""
    source, output = tmp_path / "log", tmp_path / "statistics.json"
    source.write_bytes(frame(classify_log()))
    assert main(["statistics", str(source), f"--output={output}"]) == 1
    assert not output.exists()
    source.write_bytes(frame(classify_log()) + frame(predict_log()) * 3)
    assert main(["statistics", str(source), f"--output={output}"]) == 0
    assert set(read_statistics(str(output))) == {"x"}


def test_a_version_may_have_other_figures_than_it_was_saved_with(
    tmp_path: Path,
) -> None:
    """Its directory is the same version still, and what was read of it before is gone."""
    save_for(tmp_path / "scale", [0.0, 1.0])
    version, source = tmp_path / "scale" / "1", tmp_path / "train.npz"
    np.savez(source, x=np.arange(10.0))
    assert main(["statistics", str(source), f"--output={version / STATISTICS}"]) == 0
    verify_files(str(version), read_manifest(str(version)))
    assert read_statistics(str(version / STATISTICS))["x"].edges[-1] == 9


@pytest.mark.parametrize("name", ["absent.npz", "absent.tfrecord"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which one it is, on one line."""
    assert main(["statistics", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err
