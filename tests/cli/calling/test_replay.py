"""tfs.cli.calling.replay, with a client that answers from memory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Self

import pytest

from tests.handlers.messages import predict_log
from tfs.cli.calling import replay
from tfs.cli.main import main
from tfs.codec.tfrecord import frame
from tfs.core.errors import NotFound, ServingError, Unavailable
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2, prediction_log_pb2


class Answers:
    """A client whose calls end as they are told; the last one stays."""

    def __init__(self, *outcomes: bytes | ServingError) -> None:
        self.outcomes = list(outcomes)
        self.num_calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def send(self, method: str, message: bytes, *, idempotent: bool) -> bytes:
        assert idempotent
        self.num_calls += 1
        outcome = self.outcomes.pop(0) if self.outcomes[1:] else self.outcomes[0]
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file of five requests, answered without outputs."""
    path = tmp_path / "log.tfrecord"
    entry = prediction_log_pb2.PredictionLog.FromString(predict_log())
    entry.predict_log.response.SetInParent()
    path.write_bytes(frame(entry.SerializeToString()) * 5)
    return path


def answering(
    monkeypatch: pytest.MonkeyPatch, *outcomes: bytes | ServingError
) -> Answers:
    answers = Answers(*outcomes)

    def connect(arguments: argparse.Namespace) -> Answers:
        return answers

    monkeypatch.setattr(replay, "connect", connect)
    return answers


def test_a_damaged_file_does_not_keep_the_next_from_being_read(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A killed server's file ends inside a record; it is said, and exits with 1."""
    answering(monkeypatch, b"")
    cut = tmp_path / "cut.tfrecord"
    cut.write_bytes(log.read_bytes()[:-1])
    assert main(["replay", str(cut), str(log)]) == 1
    told = capsys.readouterr()
    assert told.out == "9 sent, 9 same, 0 not\n"
    assert told.err.startswith(f"tfs: DATA_LOSS: {cut}: truncated record")


def test_a_log_that_grows_as_its_requests_are_answered_is_sent_once(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A server logs what is replayed to it, perhaps to the files that are read."""
    later = tmp_path / "later.tfrecord"
    later.write_bytes(log.read_bytes())
    record = log.read_bytes()[: log.stat().st_size // 5]

    class Logging(Answers):
        def send(self, method: str, message: bytes, *, idempotent: bool) -> bytes:
            assert self.num_calls < 100, "it will never end"
            for path in (log, later):
                with path.open("ab") as file:
                    file.write(record)
            return super().send(method, message, idempotent=idempotent)

    answers = Logging(b"")
    monkeypatch.setattr(replay, "connect", lambda arguments: answers)
    assert main(["replay", str(log), str(later)]) == 0
    assert capsys.readouterr().out == "10 sent, 10 same, 0 not\n"


def test_a_warm_up_file_is_sent_though_nothing_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its requests have no logged answers: what matters is that there is one."""
    answering(monkeypatch, b"", NotFound("no"))
    path = tmp_path / "tf_serving_warmup_requests"
    path.write_bytes(frame(predict_log()))
    assert main(["replay", str(path)]) == 0
    summary = "1 sent, 0 same, 0 not, 1 logged without an answer to compare\n"
    assert capsys.readouterr().out == summary
    assert main(["replay", str(path)]) == 1


def test_nobody_there_ends_the_replay(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay ends after three unanswered requests in a row."""
    gone = Unavailable("gone")
    answers = answering(monkeypatch, gone, gone, b"", gone)
    assert main(["replay", str(log), str(log)]) == 1
    assert answers.num_calls == 6
    told = capsys.readouterr()
    summary = "1 sent, 1 same, 0 not; 5 that no server took"
    assert told.out.splitlines()[-1] == summary
    assert told.err == "tfs: UNAVAILABLE: gone\n"


def test_what_no_server_took_was_not_sent(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says nothing of the answers, which are all the same, and exits with 1."""
    answering(monkeypatch, b"", Unavailable("busy"), b"")
    assert main(["replay", str(log)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told == [
        f"{log}, record 1: UNAVAILABLE: busy",
        "4 sent, 4 same, 0 not; 1 that no server took",
    ]


def test_every_difference_is_counted_and_the_first_are_told_by_their_place(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """File and record, so that it can be looked up."""
    answering(monkeypatch, b"", NotFound("no"))
    assert main(["replay", *[str(log)] * 4]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{log}, record 1: NOT_FOUND: no"
    assert len(told) == 13
    assert told[-2].split() == ["(NOT_FOUND)", "19", "-", f"{log},", "record", "1"]
    assert told[-1] == "20 sent, 1 same, 19 not"


def test_the_summary_says_which_outputs_differ_how_far_and_where(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first ones are shown whole; the table has the largest difference of all."""

    def scores(*values: float) -> bytes:
        response = predict_pb2.PredictResponse()
        response.outputs["y"].dtype = types_pb2.DT_FLOAT
        response.outputs["y"].tensor_shape.dim.add(size=len(values))
        response.outputs["y"].float_val.extend(values)
        return response.SerializeToString()

    entry = prediction_log_pb2.PredictionLog.FromString(predict_log())
    entry.predict_log.response.ParseFromString(scores(1, 2))
    log.write_bytes(frame(entry.SerializeToString()) * 3)
    answering(monkeypatch, scores(1, 2), scores(1, 2.5), scores(3, 2))
    assert main(["replay", str(log), "--samples=1"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "y: 1 of 2 elements differ, first at [1]: 2.5, was 2.0" in told[0]
    assert told[1].split() == ["OUTPUT", "REQUESTS", "LARGEST", "DIFFERENCE", "IN"]
    assert told[2].split() == ["y", "2", "2", f"{log},", "record", "2"]
    assert told[3:] == ["3 sent, 1 same, 2 not"]


def test_a_log_without_requests_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was compared: a wrong file, or a server that logged nothing."""
    answers = answering(monkeypatch, b"")
    empty, other = tmp_path / "empty", tmp_path / "other"
    empty.touch()
    entry = prediction_log_pb2.PredictionLog()
    entry.session_run_log.SetInParent()
    other.write_bytes(frame(entry.SerializeToString()))
    for path in (empty, other):
        assert main(["replay", str(path)]) == 1
        assert capsys.readouterr().out == "nothing was sent: no request was found\n"
    assert not answers.num_calls


def test_how_many_records_is_bounded_by_a_whole_number(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other is a wrong command line, and told in words that users know."""
    answers = answering(monkeypatch, b"")
    assert main(["replay", str(log), "--max_records=2"]) == 0
    assert answers.num_calls == 2
    for wrong in ("-1", "x", "2.5"):
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(log), f"--max_records={wrong}"])
        assert ended.value.code == 2
        assert f"a whole number, at least 0, not '{wrong}'" in capsys.readouterr().err
