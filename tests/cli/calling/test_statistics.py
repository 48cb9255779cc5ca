"""tfs.cli.calling.statistics."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.handlers.messages import classify_log, predict_log
from tests.server.validated import save_for
from tfs.cli.calling.statistics import Sample
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


def test_whole_arrays_count(tmp_path: Path) -> None:
    """However many values there are, the first and the last are among them."""
    source, output = tmp_path / "train.npz", tmp_path / "statistics.json"
    np.savez(source, x=np.arange(250_001.0))
    assert main(["statistics", str(source), f"--output={output}"]) == 0
    edges = read_statistics(str(output))["x"].edges
    assert (edges[0], edges[5], edges[-1]) == (0, 125_000, 250_000)


def test_a_sample_is_of_all_values_alike() -> None:
    """Whenever they come; of few it keeps all."""
    sample = Sample(max_values=1000)
    sample.extend(range(1000))
    assert sample.kept == list(range(1000))
    for begin in range(1000, 100_000, 100):
        sample.extend(range(begin, begin + 100))
    assert 400 <= len(sample.kept) <= 1000
    early = sum(float(each) < 50_000 for each in sample.kept)
    assert early / len(sample.kept) == pytest.approx(0.5, abs=0.1)


def test_arrays_of_bytes_are_words_and_those_of_complex_numbers_none(
    tmp_path: Path,
) -> None:
    """What no input can be compared by is passed over."""
    source, output = tmp_path / "train.npz", tmp_path / "statistics.json"
    np.savez(source, word=np.array([b"a", b"bc"]), wave=np.array([1j]))
    assert main(["statistics", str(source), f"--output={output}"]) == 0
    found = read_statistics(str(output))
    assert set(found) == {"word"}
    assert set(found["word"].words) == {"a", "bc"}


def test_figures_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """A server that reads the old ones meanwhile finds them as they were."""
    source, output = tmp_path / "train.npz", tmp_path / "statistics.json"
    np.savez(source, x=np.arange(10.0))
    output.write_text("old")
    with output.open() as reader:
        assert main(["statistics", str(source), f"--output={output}"]) == 0
        assert reader.read() == "old"
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


@pytest.mark.parametrize("name", ["absent.npz", "absent.tfrecord", "cut.npz"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which one it is, on one line."""
    np.savez(tmp_path / "cut.npz", x=np.arange(10.0))
    os.truncate(tmp_path / "cut.npz", 100)
    assert main(["statistics", str(tmp_path / name)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
