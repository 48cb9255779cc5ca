"""tfs.server.request_log.request_logs: the cases of upstream's request logger tests, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tfs.proto.tensorflow_serving.apis import prediction_log_pb2
from tfs.server.model_settings import LoggingSettings, TaskSampling
from tfs.server.request_log.request_logs import LogCollector, RequestLogs
from tfs.testing.fake_clock import FakeClock

ALL = LoggingSettings("/logs/a", rate=1.0)
SOME = LoggingSettings("/logs/b", rate=0.5)


class Collector:
    """Keeps records in memory."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.records: list[bytes] = []
        self.is_closed = False

    def collect(self, size_bytes: int, make: Callable[[], bytes]) -> bool:
        self.records.append(make())
        return True

    def close(self) -> None:
        self.is_closed = True


class Logged:
    """Loggers over collectors in memory, with sampling by a given sequence."""

    def __init__(
        self, *samples: float, dc: str = "", task_index: int | None = None
    ) -> None:
        self.made: list[Collector] = []
        numbers: Iterator[float] = iter(samples)
        self.logs = RequestLogs(
            self._make,
            FakeClock(wall_s=1_700_000_000.5),
            dc=dc,
            task_index=task_index,
            sample=lambda: next(numbers, 0.0),
        )

    def _make(self, prefix: str) -> LogCollector:
        self.made.append(Collector(prefix))
        return self.made[-1]

    def num_logged(self, *settings: LoggingSettings) -> int:
        """Logs one request of model m under the settings."""
        for each in self.logs.update({"m": settings}).get("m", ()):
            each.log("Predict", "m", 3, "serving_default", lambda: (b"", b""))
        return sum(len(collector.records) for collector in self.made)


def test_a_record_holds_the_exchange_and_who_answered() -> None:
    """RequestLogger Simple: the exchange as it travelled, model, time, sampling, tags."""
    logged = Logged()
    (log,) = logged.logs.update({"m": [SOME]})["m"]
    log.log(
        "Predict", "m", 3, "s", lambda: (memoryview(b"\x0a\x03\x0a\x01m"), b"\x1a\x00")
    )
    (record,) = logged.made[0].records
    entry = prediction_log_pb2.PredictionLog.FromString(record)
    assert entry.predict_log.request.model_spec.name == "m"
    assert entry.predict_log.HasField("response")
    spec = entry.log_metadata.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "s")
    assert entry.log_metadata.timestamp_secs == 1_700_000_000
    assert entry.log_metadata.sampling_config.sampling_rate == SOME.rate
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
def test_every_method_has_its_kind(method: str, kind: str) -> None:
    """What an RPC's records are called is upstream's."""
    logged = Logged()
    (log,) = logged.logs.update({"m": [ALL]})["m"]
    log.log(method, "m", 3, "s", lambda: (b"", b""))
    entry = prediction_log_pb2.PredictionLog.FromString(logged.made[0].records[0])
    assert entry.WhichOneof("log_type") == kind


def test_only_samples_are_logged() -> None:
    """A request is logged if its number is below the rate."""
    logged = Logged(0.49, 0.5, 0.99, 0.0)
    (log,) = logged.logs.update({"m": [SOME]})["m"]
    for _ in range(4):
        log.log("Predict", "m", 3, "s", lambda: (b"", b""))
    assert len(logged.made[0].records) == 2


TASKS = LoggingSettings(
    "/logs/a",
    rate=0.0,
    tasks=(
        TaskSampling(1.0, "east", 2),
        TaskSampling(0.0, "east"),
        TaskSampling(1.0, "west"),
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
    dc: str, task_index: int | None, expected: int
) -> None:
    """Of several rates, the first whose server matches is used (DcEnforcedWhenSet,
    TaskIndexEnforcedWhenSet, FirstMatchingConfigIsPicked).
    """
    assert Logged(dc=dc, task_index=task_index).num_logged(TASKS) == expected


def test_without_a_rate_of_its_own_a_server_takes_the_common_one() -> None:
    """FallsBackToTopLevelSamplingRate: the common rate is for everybody else."""
    settings = LoggingSettings("/logs/a", 1.0, (TaskSampling(0.0, "elsewhere"),))
    assert Logged(dc="here").num_logged(settings) == 1


def test_nothing_is_logged_without_settings() -> None:
    """A model without a logging config writes no log (ServerRequestLogger Empty,
    AbsentModel).
    """
    logged = Logged()
    assert logged.num_logged() == 0
    assert "other" not in logged.logs.update({"m": [ALL]})


def test_models_log_apart() -> None:
    """Each model's requests go to its own log alone (MultipleModels,
    CreateUpdateRequestMultipleConfigsOk).
    """
    logged = Logged()
    logs = logged.logs.update({"a": [ALL], "b": [SOME]})
    logs["a"][0].log("Predict", "a", 1, "s", lambda: (b"", b""))
    by_prefix = {each.prefix: len(each.records) for each in logged.made}
    assert by_prefix == {"/logs/a": 1, "/logs/b": 0}


def test_a_logger_that_left_the_config_is_closed() -> None:
    """CreateAndDeleteLogger: its file is closed with it."""
    logged = Logged()
    logged.logs.update({"m": [ALL]})
    assert logged.logs.update({"m": []}) == {}
    assert logged.made[0].is_closed


def test_a_changed_config_gets_another_logger() -> None:
    """CreateAndModifyLogger: the old one is closed."""
    logged = Logged()
    logged.logs.update({"m": [ALL]})
    logged.logs.update({"m": [SOME]})
    assert [each.is_closed for each in logged.made] == [True, False]


def test_models_with_equal_settings_share_a_logger() -> None:
    """SameConfigForTwoModelsCreatesOneLogger: one file for both."""
    logged = Logged()
    logs = logged.logs.update({"a": [ALL], "b": [LoggingSettings("/logs/a", 1.0)]})
    assert logs["a"] == logs["b"]
    assert len(logged.made) == 1


def test_a_model_may_have_several_loggers() -> None:
    """A request goes to every log that its model has (MultipleConfigForOneModel,
    MultipleLoggersForOneModel).
    """
    assert Logged().num_logged(ALL, SOME) == 2


def test_repeated_updates_create_once() -> None:
    """MultipleUpdatesSingleCreation: the same config keeps its file."""
    logged = Logged()
    for _ in range(100):
        logged.logs.update({"m": [ALL]})
    assert len(logged.made) == 1
