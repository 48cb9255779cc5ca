"""tfs.cli.calling.warmup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.serving import export_scale
from tests.handlers.messages import classify_log, predict_log
from tfs.cli.main import main
from tfs.codec.tfrecord import frame
from tfs.core.version_directory import WARMUP_REQUESTS, read_manifest, verify_files
from tfs.handlers.warmup_replay import read_warmup_requests
from tfs.proto.tensorflow_serving.apis import prediction_log_pb2


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return export_scale(tmp_path / "scale", 1)


def recorded(version: Path) -> list[str | None]:
    return [
        entry.WhichOneof("log_type") for entry in read_warmup_requests(str(version))
    ]


def filtered_log() -> bytes:
    """Another request than ``predict_log``'s, and what it was answered."""
    entry = prediction_log_pb2.PredictionLog.FromString(predict_log())
    entry.predict_log.request.output_filter.append("y")
    entry.predict_log.response.SetInParent()
    return entry.SerializeToString()


def test_inputs_become_a_request_of_the_signatures_dtypes(version: Path) -> None:
    """What is recorded is what a client would send."""
    assert main(["warmup", "record", str(version), "--input", "x=[[1, 2]]"]) == 0
    (entry,) = read_warmup_requests(str(version))
    tensor = entry.predict_log.request.inputs["x"]
    assert tensor.dtype == 1
    assert [dim.size for dim in tensor.tensor_shape.dim] == [1, 2]
    verify_files(str(version), read_manifest(str(version)))


def test_recording_again_replaces_unless_told_to_append(version: Path) -> None:
    """The file is written whole; --append keeps what was there."""
    words = ["warmup", "record", str(version), "--input", "x=[[1, 2]]"]
    assert main(words) == main(words) == 0
    assert recorded(version) == ["predict_log"]
    assert main([*words, "--append"]) == 0
    assert recorded(version) == ["predict_log"] * 2


def test_a_log_gives_its_requests_once_each_without_answers(
    version: Path, tmp_path: Path
) -> None:
    """Requests that were logged often warm up once; answers are left out."""
    log = tmp_path / "log.tfrecord"
    records = [predict_log(), predict_log(), filtered_log(), b""]
    log.write_bytes(b"".join(map(frame, records)))
    assert main(["warmup", "record", str(version), "--from_log", str(log)]) == 0
    assert recorded(version) == ["predict_log"] * 2
    (_, second) = read_warmup_requests(str(version))
    assert not second.predict_log.HasField("response")
    assert not second.HasField("log_metadata")


def test_a_logged_request_that_the_version_refuses_is_named(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that the version refuses is not recorded, or no load would succeed."""
    log = tmp_path / "log.tfrecord"
    log.write_bytes(frame(predict_log()) + frame(classify_log()))
    words = ["warmup", "record", str(version), "--from_log", str(log)]
    assert main(words) == 1
    assert f"{log}, record 1: no signature 'classify'" in capsys.readouterr().err
    assert main([*words, "--max_records", "1"]) == 0


def test_a_log_that_is_being_written_gives_what_is_whole(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last record may be cut; the files after it are read all the same."""
    files = [tmp_path / "1.tfrecord", tmp_path / "2.tfrecord"]
    files[0].write_bytes(frame(predict_log()) + frame(filtered_log())[:-1])
    files[1].write_bytes(frame(filtered_log()))
    words = ["--from_log", *map(str, files)]
    assert main(["warmup", "record", str(version), *words]) == 0
    assert recorded(version) == ["predict_log"] * 2
    assert f"DATA_LOSS: {files[0]}: truncated record" in capsys.readouterr().err


def test_a_manifest_that_lists_the_file_lets_go_of_it(version: Path) -> None:
    """A version stays loadable at every moment: no digest is ever wrong."""
    file = version / WARMUP_REQUESTS
    file.parent.mkdir()
    file.write_bytes(b"")
    manifest = json.loads((version / "servable.json").read_text())
    manifest["files"]["assets.extra/tf_serving_warmup_requests"] = {
        "size_bytes": 0,
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }
    (version / "servable.json").write_text(json.dumps(manifest))
    verify_files(str(version), read_manifest(str(version)))
    assert main(["warmup", "record", str(version), "--input", "x=[[1, 2]]"]) == 0
    verify_files(str(version), read_manifest(str(version)))


BY_HAND = """\
class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1, 2]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
        }
    }
    raise RuntimeError("nothing of it runs")
"""


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("servable.py", BY_HAND, "x=[[1, 2]]"),
        ("table.csv", "sku,price:float32\nA1,9.5\n", 'sku=["A1"]'),
    ],
)
def test_a_version_without_a_manifest_tells_its_signatures_itself(
    tmp_path: Path, file: str, text: str, words: str
) -> None:
    """What a server serves as it stands can be given warm-up requests."""
    version = tmp_path / "by-hand" / "1"
    version.mkdir(parents=True)
    (version / file).write_text(text)
    assert main(["warmup", "record", str(version), "--input", words]) == 0
    assert recorded(version) == ["predict_log"]


def test_a_directory_that_nothing_can_serve_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base path in place of a version is found out, and nothing is written."""
    assert main(["warmup", "record", str(tmp_path), "--input", "x=1"]) == 1
    assert f"{tmp_path} is no version directory: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "nothing to record"),
        (["--input", "z=1"], "has no input z; it has x"),
        (["--input", "x=[[1, 2, 3]]"], "input 'x' must have shape [-1, 2]"),
        (["--signature", "other", "--input", "x=1"], "no signature 'other'"),
        (["--examples", "none.json"], "none.json"),
        (["--from_log", "none"], "none: No such file"),
    ],
)
def test_a_mistake_is_one_line(
    version: Path,
    words: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong is said, and nothing is written."""
    assert main(["warmup", "record", str(version), *words]) == 1
    assert problem in capsys.readouterr().err
    assert not (version / WARMUP_REQUESTS).exists()
