"""The page of a server's metrics."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tfs.core import stat_names
from tfs.core.errors import Code, FailedPrecondition, InvalidArgument, NotFound
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import HistogramSnapshot, Stats
from tfs.handlers.limits.model_gate import ModelGate
from tfs.handlers.limits.request_gate import RequestGate
from tfs.server.metrics_page import (
    DEFAULT_PATH,
    Exposition,
    MetricsPage,
    ServedModel,
    read_monitoring_config,
)
from tfs.testing.fake_clock import FakeClock


class Bench:
    """A page over two models, one of which failed to load."""

    def __init__(self) -> None:
        self.stats = Stats()
        m = ServableState(ServableId("m", 2), ManagerState.AVAILABLE)
        bad = ServableState(
            ServableId("bad", 1), ManagerState.END, error=NotFound("no file")
        )
        self.models = {
            "m": ServedModel([m], 2),
            "bad": ServedModel([bad], None, failed={1}),
        }
        self.gate = RequestGate(stats=self.stats)
        self.page = MetricsPage(
            self.stats, self.models.items, lambda: True, 1e9, self.gate.totals
        )

    def requests(self, version: int, num: int) -> None:
        counters = self.gate.model("m").stats_of("Predict", version, "default")
        counters.end(Code.OK, self.gate.now(), num)

    def lines(self) -> list[str]:
        return b"".join(self.page.parts()).decode().splitlines()

    def value(self, sample: str) -> float | None:
        for line in self.lines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_models_and_the_server_say_how_they_stand(bench: Bench) -> None:
    """What is available, what failed, and whether requests should come."""
    assert bench.value('tfs_model_available{model="m"}') == 1
    assert bench.value('tfs_model_available{model="bad"}') == 0
    assert bench.value('tfs_model_primary_version{model="m"}') == 2
    state = 'tfs_model_version_state{model="bad",version="1",state="FAILED"}'
    assert bench.value(state) == 1
    assert bench.value("tfs_ready") == 1
    assert bench.value("process_start_time_seconds") == 1e9
    assert (bench.value("process_resident_memory_bytes") or 0) > 1e6


def test_who_waits_is_one_number_and_what_runs_one_line(bench: Bench) -> None:
    """A router sends requests where the fewest wait; a board shows what releases run."""
    assert bench.value("tfs_requests_waiting") == 0
    bench.stats.gauge(stat_names.SLOW_DECODES_QUEUED, lambda: 2)
    bench.stats.gauge(stat_names.BATCH_WAITING_TASKS, lambda: 3, model="m")
    assert bench.value("tfs_requests_waiting") == 5
    (line,) = (each for each in bench.lines() if "build_info{" in each)
    assert "torch=" in line
    assert line.endswith("} 1")


def test_the_time_of_a_request_is_told_by_phase(bench: Bench) -> None:
    """Of those answered: waiting to be whole, for a model, for its outputs, to be sent."""
    gate = ModelGate("m", 0, bench.stats, FakeClock(4.0))
    gate.stats_of("Predict", 2, "default").end_answered(1.0, 1.25, 2.0, 3.5, num=2)
    for phase, total in {"receive": 0.5, "queue": 1.5, "compute": 3, "send": 1}.items():
        labels = f'{{model="m",phase="{phase}"}}'
        assert bench.value(f"tfs_request_phase_seconds_sum{labels}") == total
        assert bench.value(f"tfs_request_phase_seconds_count{labels}") == 2
    buckets = [
        line
        for line in bench.lines()
        if line.startswith('tfs_request_phase_seconds_bucket{model="m",phase="queue"')
    ]
    assert len(buckets) == 12


def test_a_batch_of_the_round_that_brought_its_request_made_nobody_wait(
    bench: Bench,
) -> None:
    """It has the time of the round, before the handler began; sums only grow."""
    gate = ModelGate("m", 0, bench.stats, FakeClock(4.0))
    gate.stats_of("Predict", 2, "default").end_answered(1.0, 1.25, 1.0, 3.5)
    for phase, total in {"queue": 0, "compute": 2.25}.items():
        labels = f'{{model="m",phase="{phase}"}}'
        assert bench.value(f"tfs_request_phase_seconds_sum{labels}") == total


def test_an_available_version_with_a_fault_has_failed(bench: Bench) -> None:
    """Its interpreters are quarantined: it is loaded, and answers nobody."""
    ill = ServableState(ServableId("m", 2), ManagerState.AVAILABLE, error=NotFound("x"))
    bench.models["m"] = ServedModel([ill], 2)
    state = 'tfs_model_version_state{model="m",version="2",state="FAILED"}'
    assert bench.value(state) == 1


def test_counts_are_totals_and_seconds_are_written_out(bench: Bench) -> None:
    """Each of ours by its own name, as Prometheus spells units."""
    bench.requests(2, 3)
    bench.stats.counter(stat_names.SLOW_DECODES).add(4)
    bench.stats.gauge(stat_names.RPC_STREAMS, lambda: 5.0)
    labels = '{method="Predict",model="m",signature="default",status="OK",version="2"}'
    assert bench.value(f"tfs_requests_total{labels}") == 3
    assert bench.value("tfs_slow_decodes_total") == 4
    assert bench.value("tfs_rpc_streams") == 5
    assert "# TYPE tfs_request_latency_seconds histogram" in bench.lines()


def test_every_family_says_what_it_means(bench: Bench) -> None:
    """Dashboards show the help beside a name; who adds a family writes its meaning."""
    bench.requests(2, 3)
    bench.stats.gauge(stat_names.RPC_STREAMS, lambda: 5.0)
    lines = bench.lines()
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    helped = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    assert typed == helped
    assert "# HELP tfs_rpc_streams calls whose streams are open." in lines
    assert ":tensorflow:serving:request_count" in helped


def test_upstream_s_names_never_fall_when_a_version_goes(bench: Bench) -> None:
    """A number that falls is taken for a restart, and would count twice."""
    name = ':tensorflow:serving:request_count{model_name="m",status="OK"}'
    latency = (
        ':tensorflow:serving:request_latency_count{model_name="m",API="Predict",'
        'entrypoint="GRPC"}'
    )
    bench.requests(1, 900)
    bench.requests(2, 100)
    assert bench.value(name) == 1000
    bench.gate.forget_version("m", 1)
    assert bench.value(name) == 1000
    bench.requests(3, 1)
    assert bench.value(name) == 1001
    assert bench.value(latency) == 1001
    del bench.models["m"]
    assert bench.value(name) is None


def test_a_version_that_comes_back_counts_on(bench: Bench) -> None:
    """Its counters begin at nothing; what was seen of them before is not lost."""
    name = ':tensorflow:serving:request_count{model_name="m",status="OK"}'
    bench.requests(1, 900)
    assert bench.value(name) == 900
    bench.gate.forget_version("m", 1)
    bench.requests(1, 5)
    assert bench.value(name) == 905
    bench.requests(1, 1)
    assert bench.value(name) == 906


def test_every_stat_is_a_count_or_says_how_something_is() -> None:
    """A new name has to be decided about: what its first word is, and this list."""
    named = {
        value
        for name, value in vars(stat_names).items()
        if name.isupper() and isinstance(value, str)
    }
    assert named >= stat_names.ONLY_GROW
    now = {
        stat_names.REQUESTS_IN_FLIGHT,
        stat_names.SLOW_DECODES_QUEUED,
        stat_names.RPC_CONNECTIONS,
        stat_names.RPC_STREAMS,
        stat_names.RPC_RECEIVE_BYTES,
        stat_names.INPUT_SKEW,
        stat_names.BATCH_WAITING_ROWS,
        stat_names.BATCH_WAITING_TASKS,
        stat_names.REQUESTS_WAITING,
    }
    histograms = {
        stat_names.REQUEST_LATENCY_S,
        stat_names.REQUEST_PHASE_S,
        stat_names.WARMUP_LATENCY_S,
        stat_names.BATCH_ROWS,
        stat_names.BATCH_FILL,
        stat_names.BATCH_WAIT_S,
        stat_names.BATCH_EXECUTION_S,
        stat_names.BATCH_DEPTH_TASKS,
    }
    assert named == stat_names.ONLY_GROW | now | histograms


def test_a_family_is_whole_and_typed_once() -> None:
    """Samples of one name stand together, whenever they were added."""
    page = Exposition()
    page.add("a", (("m", "x"),), 1, "counter")
    page.add("b", (), 2.5)
    page.add("a", (("m", "y"),), 3e6, "counter")
    assert list(page.lines()) == [
        "# TYPE a counter",
        'a{m="x"} 1',
        'a{m="y"} 3000000',
        "# TYPE b gauge",
        "b 2.5",
    ]


def test_a_family_with_a_meaning_has_a_line_of_help() -> None:
    """One line before its type, whatever stands in the text."""
    page = Exposition({"a": "a \\ and\na line"})
    page.add("a", (), 1, "counter")
    page.add("b", (), 1, "counter")
    assert list(page.lines())[:3] == [
        "# HELP a a \\\\ and\\na line",
        "# TYPE a counter",
        "a 1",
    ]


def test_histograms_add_up_and_end_at_infinity() -> None:
    """Buckets are cumulative, in the unit that is asked for; the last has all."""
    page = Exposition()
    found = HistogramSnapshot((0.001, 0.5), (2, 3, 1), 7.25)
    page.add_histogram("h_us", (("m", "x"),), found, 1e6)
    assert list(page.lines()) == [
        "# TYPE h_us histogram",
        'h_us_bucket{m="x",le="1000"} 2',
        'h_us_bucket{m="x",le="500000"} 5',
        'h_us_bucket{m="x",le="+Inf"} 6',
        'h_us_sum{m="x"} 7250000',
        'h_us_count{m="x"} 6',
    ]


def test_what_would_break_a_line_is_escaped() -> None:
    """Names of models may hold anything; numbers may be none."""
    page = Exposition()
    page.add("a", (("m", 'q"b\\n\nl'),), math.nan)
    page.add("a", (), math.inf)
    page.add("a", (), -math.inf)
    assert list(page.lines())[1:] == [
        'a{m="q\\"b\\\\n\\nl"} NaN',
        "a +Inf",
        "a -Inf",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prometheus_config { enable: true }", DEFAULT_PATH),
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ('prometheus_config { path: "/metrics" }', ""),
        ("", ""),
    ],
)
def test_a_page_is_where_the_file_says(
    tmp_path: Path, text: str, expected: str
) -> None:
    """Upstream's place unless another is named; nothing unless it is enabled."""
    file = tmp_path / "monitoring"
    file.write_text(text)
    assert read_monitoring_config(str(file)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "prometheus_config {",
        "nonsense: 1",
        'prometheus_config { enable: true path: "metrics" }',
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """A wrong file is refused before anything is served, naming the flag."""
    file = tmp_path / "monitoring"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match="monitoring_config_file"):
        read_monitoring_config(str(file))
    with pytest.raises(
        FailedPrecondition, match=r"read MonitoringConfig file: .*absent"
    ):
        read_monitoring_config(str(tmp_path / "absent"))
