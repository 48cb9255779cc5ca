"""Warming up: the cases of upstream's saved_model_warmup tests, and ours."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.handlers.messages import (
    classify_log,
    multi_log,
    predict_log,
    regress_log,
)
from tests.handlers.served import EchoServable
from tfs.codec.tfrecord import frame
from tfs.core.errors import (
    DataLoss,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ServingError,
    Unimplemented,
)
from tfs.core.stats import Stats
from tfs.core.version_directory import WARMUP_REQUESTS
from tfs.handlers.warmup_replay import MAX_RECORDS, WarmupOptions, replay, warm_up
from tfs.proto.tensorflow_serving.apis import prediction_log_pb2
from tfs.testing.fake_clock import FakeClock


def write(version: Path, *records: bytes) -> str:
    file = version / WARMUP_REQUESTS
    file.parent.mkdir()
    file.write_bytes(b"".join(map(frame, records)))
    return str(version)


def methods(servable: EchoServable) -> list[str]:
    return [task.signature.method.value for task in servable.tasks]


def test_a_version_without_records_is_warm(tmp_path: Path) -> None:
    """NoWarmupDataFile: nothing to replay is fine."""
    assert replay(EchoServable(), str(tmp_path)) == 0


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    """A file without records replays nothing (WarmupDataFileEmpty)."""
    assert replay(EchoServable(), write(tmp_path)) == 0


def test_every_kind_of_request_is_replayed_on_the_version(tmp_path: Path) -> None:
    """MixedWarmupData: each goes to the version, whatever model and version it names."""
    servable = EchoServable()
    records = [predict_log(), classify_log(), regress_log(), multi_log()]
    assert replay(servable, write(tmp_path, *records)) == 4
    assert methods(servable) == [
        "predict", "classify", "regress", "classify", "regress",
    ]  # fmt: skip


def test_every_record_is_replayed_as_often_as_asked(tmp_path: Path) -> None:
    """The model is called iterations times records (RunSuccess)."""
    servable = EchoServable()
    path = write(tmp_path, predict_log(), predict_log())
    replay(servable, path, WarmupOptions(num_iterations=3))
    assert len(servable.tasks) == 6


def test_a_record_without_a_request_is_skipped(tmp_path: Path) -> None:
    """A PredictionLog that logs nothing warms up nothing."""
    servable = EchoServable()
    replay(servable, write(tmp_path, b"", predict_log()))
    assert len(servable.tasks) == 1


@pytest.mark.parametrize(
    ("kind", "number"),
    [("session_run_log", 5), ("predict_streamed_log", 7)],
)
def test_what_is_not_offered_cannot_be_replayed(
    tmp_path: Path, kind: str, number: int
) -> None:
    """A record of a method that is not served fails the warm-up
    (UnsupportedLogType_SessionRun, UnsupportedLogType_PredictStreamed).
    """
    log = prediction_log_pb2.PredictionLog()
    getattr(log, kind).SetInParent()
    path = write(tmp_path, log.SerializeToString())
    with pytest.raises(Unimplemented) as caught:
        replay(EchoServable(), path)
    assert caught.value.message == f"Unsupported log_type for warmup: {number}"


def test_a_file_of_another_format_is_data_loss(tmp_path: Path) -> None:
    """UnsupportedFileFormat: what is no TFRecord file says so."""
    path = write(tmp_path)
    (tmp_path / WARMUP_REQUESTS).write_bytes(b"{}" * 20)
    with pytest.raises(DataLoss, match="verify your warmup data is in TFRecord format"):
        replay(EchoServable(), path)


def test_too_many_records_are_refused(tmp_path: Path) -> None:
    """TooManyWarmupRecords: a thousand are enough to be warm."""
    path = write(tmp_path, *[predict_log()] * (MAX_RECORDS + 1))
    words = r"Number of warmup records exceeds the maximum \(1000\) at .*requests"
    with pytest.raises(InvalidArgument, match=words):
        replay(EchoServable(), path)


def test_a_record_of_another_kind_is_named(tmp_path: Path) -> None:
    """UnparsableRecord: which one, and of which file."""
    path = write(tmp_path, predict_log(), b"\xff\xff")
    with pytest.raises(InvalidArgument, match=f"warmup record: 1 from {path}"):
        replay(EchoServable(), path)


def test_a_request_that_fails_is_named_with_its_code(tmp_path: Path) -> None:
    """RunFailure: the servable's error, and which record met it."""
    servable = EchoServable()
    servable.error = Internal("broken")
    with pytest.raises(Internal, match=r"m/3: warm-up record 0 \(predict_log\)") as e:
        replay(servable, write(tmp_path, predict_log()))
    assert "broken" in e.value.message


def test_a_request_that_is_never_answered_is_given_up(tmp_path: Path) -> None:
    """A model that hangs does not hold its load thread for ever."""
    servable, clock = EchoServable(), FakeClock()
    servable.is_paused = True
    path = write(tmp_path, predict_log())
    errors: list[ServingError] = []

    def run() -> None:
        try:
            replay(servable, path, WarmupOptions(timeout_s=5), clock)
        except ServingError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    clock.block_until_sleepers(1)
    clock.advance(5)
    thread.join(30)
    assert [type(error) for error in errors] == [DeadlineExceeded]
    assert servable.tasks[0].cancel.error is not None


def test_a_load_ends_warm_and_says_how_long_it_took(tmp_path: Path) -> None:
    """The replay is part of the load, and measured."""
    servable, stats = EchoServable(), Stats()
    path, options = write(tmp_path, predict_log()), WarmupOptions(num_iterations=2)
    assert warm_up(servable, path, options, stats, FakeClock()) == 2
    assert len(servable.tasks) == 2
    names = [name for name, _, _ in stats.histograms()]
    assert names == ["model_warmup_latency_s"]


def test_warm_up_can_be_switched_off(tmp_path: Path) -> None:
    """--enable_model_warmup=false reads no file, not even a damaged one."""
    path = write(tmp_path)
    (tmp_path / WARMUP_REQUESTS).write_bytes(b"damaged")
    servable = EchoServable()
    off = WarmupOptions(enabled=False)
    assert warm_up(servable, path, off, Stats(), FakeClock()) == 0
    assert servable.tasks == []
