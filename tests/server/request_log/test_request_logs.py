"""tfs.server.request_log.request_logs: the cases of upstream's request logger tests, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tfs.codec.tfrecord import read_records
from tfs.core.executor import InlineExecutor
from tfs.core.stats import Stats
from tfs.handlers.limits.answered_request import AnsweredRequest, RequestLog
from tfs.proto.tensorflow_serving.apis import prediction_log_pb2
from tfs.proto.tensorflow_serving.config.logging_config_pb2 import (
    LoggingConfig,
    PerTaskSamplingConfig,
)
from tfs.server.request_log.request_logs import LogWriter, RequestLogs
from tfs.testing.fake_clock import FakeClock


def config(
    prefix: str, rate: float, tasks: Sequence[PerTaskSamplingConfig] = ()
) -> LoggingConfig:
    """Returns what a model's config says of its log."""
    made = LoggingConfig()
    made.log_collector_config.filename_prefix = prefix
    made.sampling_config.sampling_rate = rate
    made.sampling_config.per_task_sampling_configs.extend(tasks)
    return made


ALL = config("/a", 1.0)
SOME = config("/b", 0.5)


class Logged:
    """Loggers that write at once, with sampling by a given sequence."""

    def __init__(
        self,
        folder: Path,
        *samples: float,
        dc: str = "",
        task_index: int | None = None,
    ) -> None:
        self.folder = folder
        numbers: Iterator[float] = iter(samples)
        self.writer = LogWriter(
            FakeClock(wall_s=1_700_000_000.5), Stats(), executor=InlineExecutor()
        )
        self.logs = RequestLogs(
            self.writer,
            dc=dc,
            task_index=task_index,
            sample=lambda: next(numbers, 0.0),
        )

    def update(
        self, **settings: Sequence[LoggingConfig]
    ) -> dict[str, tuple[RequestLog, ...]]:
        """Takes settings whose files lie in the folder of this test."""
        return self.logs.update(
            {
                name: [self._here(each) for each in many]
                for name, many in settings.items()
            }
        )

    def _here(self, given: LoggingConfig) -> LoggingConfig:
        moved = LoggingConfig()
        moved.CopyFrom(given)
        collector = moved.log_collector_config
        collector.filename_prefix = f"{self.folder}{collector.filename_prefix}"
        return moved

    def records(self, log: str = "*") -> list[bytes]:
        """Returns what was logged to files of a log."""
        records = []
        for path in sorted(self.folder.glob(f"{log}-*")):
            with path.open("rb") as file:
                records += list(read_records(file))
        return records

    def num_logged(self, *settings: LoggingConfig) -> int:
        """Logs one request of model m under the settings."""
        for each in self.update(m=settings).get("m", ()):
            each(answered("m"))
        return len(self.records())


def answered(model: str, method: str = "Predict") -> AnsweredRequest:
    """Returns an empty request to a model that was answered."""
    return AnsweredRequest(method, model, 3, "s", 0, lambda: (b"", b""))


Make = Callable[..., Logged]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Yields what makes loggers whose files are closed in the end."""
    made = []

    def log(*samples: float, dc: str = "", task_index: int | None = None) -> Logged:
        made.append(Logged(tmp_path, *samples, dc=dc, task_index=task_index))
        return made[-1]

    yield log
    for each in made:
        each.writer.close()


def test_a_record_holds_the_exchange_and_who_answered(make: Make) -> None:
    """RequestLogger Simple: the exchange as it travelled, model, time, sampling, tags."""
    logged = make()
    (log,) = logged.update(m=[SOME])["m"]
    request = memoryview(b"\x0a\x03\x0a\x01m")
    log(AnsweredRequest("Predict", "m", 3, "s", 0, lambda: (request, b"\x1a\x00")))
    (record,) = logged.records()
    entry = prediction_log_pb2.PredictionLog.FromString(record)
    assert entry.predict_log.request.model_spec.name == "m"
    assert entry.predict_log.HasField("response")
    spec = entry.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "s")
    assert entry.log_metadata.timestamp_secs == 1_700_000_000
    assert entry.log_metadata.sampling_config.sampling_rate == 0.5
    assert entry.log_metadata.saved_model_tags == ["serve"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("Predict", "predict_log"),
        ("Classify", "classify_log"),
        ("Regress", "regress_log"),
        ("MultiInference", "multi_inference_log"),
    ],
)
def test_every_method_has_its_kind(make: Make, method: str, kind: str) -> None:
    """What an RPC's records are called is upstream's."""
    logged = make()
    (log,) = logged.update(m=[ALL])["m"]
    log(answered("m", method))
    entry = prediction_log_pb2.PredictionLog.FromString(logged.records()[0])
    assert entry.WhichOneof("log_type") == kind


def test_only_samples_are_logged(make: Make) -> None:
    """A request is logged if its number is below the rate."""
    logged = make(0.49, 0.5, 0.99, 0.0)
    (log,) = logged.update(m=[SOME])["m"]
    for _ in range(4):
        log(answered("m"))
    assert len(logged.records()) == 2


TASKS = config(
    "/a",
    0.0,
    (
        PerTaskSamplingConfig(sampling_rate=1.0, dc="east", task_index=2),
        PerTaskSamplingConfig(sampling_rate=0.0, dc="east"),
        PerTaskSamplingConfig(sampling_rate=1.0, dc="west"),
    ),
)


@pytest.mark.parametrize(
    ("dc", "task_index", "expected"),
    [
        ("east", 2, 1),
        ("east", 1, 0),
        ("east", None, 0),
        ("west", 7, 1),
        ("north", 2, 0),
        ("", None, 0),
    ],
)
def test_the_first_rate_that_fits_the_server_counts(
    make: Make, dc: str, task_index: int | None, expected: int
) -> None:
    """Of several rates, the first whose server matches is used (DcEnforcedWhenSet,
    TaskIndexEnforcedWhenSet, FirstMatchingConfigIsPicked).
    """
    assert make(dc=dc, task_index=task_index).num_logged(TASKS) == expected


def test_without_a_rate_of_its_own_a_server_takes_the_common_one(
    make: Make,
) -> None:
    """FallsBackToTopLevelSamplingRate: the common rate is for everybody else."""
    settings = config("/a", 1.0, (PerTaskSamplingConfig(dc="elsewhere"),))
    assert make(dc="here").num_logged(settings) == 1


def test_nothing_is_logged_without_settings(make: Make) -> None:
    """A model without a logging config writes no log (ServerRequestLogger Empty,
    AbsentModel).
    """
    logged = make()
    assert logged.num_logged() == 0
    assert "other" not in logged.update(m=[ALL])


def test_models_log_apart(make: Make) -> None:
    """Each model's requests go to its own log alone (MultipleModels,
    CreateUpdateRequestMultipleConfigsOk).
    """
    logged = make()
    logs = logged.update(a=[ALL], b=[SOME])
    logs["a"][0](answered("a"))
    assert (len(logged.records("a")), len(logged.records("b"))) == (1, 0)


def num_files(logged: Logged) -> int:
    """Logs of one model a second later: a file that was closed is followed by another."""
    return len(list(logged.folder.iterdir()))


def test_a_logger_that_left_the_config_is_closed(make: Make) -> None:
    """CreateAndDeleteLogger: its file is closed with it."""
    logged = make()
    for _ in range(2):
        assert logged.num_logged(ALL)
        assert logged.update(m=[]) == {}
    assert num_files(logged) == 2


def test_a_changed_config_gets_another_logger(make: Make) -> None:
    """CreateAndModifyLogger: the old one is closed."""
    logged = make()
    assert [logged.num_logged(each) for each in (ALL, SOME, ALL)] == [1, 2, 3]
    assert num_files(logged) == 3


def test_models_with_equal_settings_share_a_logger(make: Make) -> None:
    """SameConfigForTwoModelsCreatesOneLogger: one file for both."""
    logged = make()
    logs = logged.update(a=[ALL], b=[config("/a", 1.0)])
    assert logs["a"] == logs["b"]


def test_a_model_may_have_several_loggers(make: Make) -> None:
    """A request goes to every log that its model has (MultipleConfigForOneModel,
    MultipleLoggersForOneModel).
    """
    assert make().num_logged(ALL, SOME) == 2


def test_repeated_updates_create_once(make: Make) -> None:
    """MultipleUpdatesSingleCreation: the same config keeps its file."""
    logged = make()
    assert [logged.num_logged(ALL) for _ in range(3)] == [1, 2, 3]
    assert num_files(logged) == 1


def test_other_words_for_the_same_keep_the_logger(make: Make) -> None:
    """A config that means the same on this server keeps the file, however it is worded."""
    logged = make()
    reworded = config("/a", 1.0, [PerTaskSamplingConfig(dc="elsewhere")])
    reworded.log_collector_config.type = "file"
    assert [logged.num_logged(each) for each in (ALL, reworded)] == [1, 2]
    assert num_files(logged) == 1
