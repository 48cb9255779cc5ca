"""What the peers area declares, takes as arguments and counts."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.benchmarks.harness import Report
from tests.benchmarks.peers import environment
from tests.benchmarks.peers.__main__ import QUICK, end, parse
from tests.benchmarks.peers.area import (
    NOT_FIRST,
    PSS,
    RESNET_LOST,
    Comparison,
    Condition,
    Effort,
    Field,
    best_of,
    build_area,
    free_ports,
    judge_runs,
    lines,
    rows,
)
from tests.benchmarks.peers.contest import Verdict
from tests.benchmarks.peers.peer import Peer
from tests.benchmarks.peers.workload import WORKLOADS
from tests.benchmarks.row import Series

QUICKEST = Series.of(1, 1, 1, 1, 1)
SLOWEST = Series.of(9, 9, 9, 9, 9)
RUNS = {
    "tfs": {"cpu": QUICKEST, "rate": SLOWEST, "p50": QUICKEST},
    "other": {"cpu": SLOWEST, "rate": QUICKEST, "p50": SLOWEST},
}


def test_every_model_load_and_number_is_a_row() -> None:
    """3 models x batching off and on x 4 loads x 2 numbers, 2 counts, 3 footprints."""
    declared = rows(Effort())
    assert len(declared) == 3 * 2 * 4 * 2 + 2 + 3
    assert build_area(Effort()).time_limit_s == 3600


def test_only_counts_and_footprint_have_goals() -> None:
    """What a single row comes to depends on the machine: it has no limit."""
    goals = {row.name: str(row.goal) for row in rows(Effort()) if row.goal is not None}
    assert goals == {
        NOT_FIRST: "<= 0",
        RESNET_LOST: "<= 0",
        PSS: "<= 260",
        "peers/footprint-idle-cpu/one-small-model": "<= 0.5",
        "peers/footprint-first-answer/one-small-model": "<= 3",
    }


def test_a_part_of_it_declares_its_rows_only() -> None:
    """A first look at one model fails for want of nothing else."""
    effort, rest = parse(
        [
            "--models=mlp",
            "--batching=on",
            "--in-flight=8",
            "--no-footprint",
            "--output=x",
        ]
    )
    assert [row.name for row in rows(effort)] == [
        "peers/mlp-cpu/batched-8-in-flight",
        "peers/mlp-rate/batched-8-in-flight",
        NOT_FIRST,
    ]
    assert rest == ["--output=x"]


def test_quick_is_less_of_everything_but_rounds() -> None:
    """Fewer than five rounds would decide nothing."""
    assert parse(["--quick"])[0] == QUICK
    assert QUICK.num_rounds >= 5
    assert len(QUICK.in_flight) < len(Effort().in_flight)


def test_the_better_number_is_the_baseline() -> None:
    """Less CPU, more requests; TFS is not its own peer."""
    runs = {**RUNS, "third": RUNS["tfs"]}
    cpu = best_of(runs, "cpu", less_is_better=True)
    rate = best_of(runs, "rate", less_is_better=False)
    assert (cpu, rate) == (QUICKEST, SLOWEST)
    assert best_of({"tfs": RUNS["tfs"]}, "cpu", less_is_better=True) is None


def test_both_directions_are_judged() -> None:
    """CPU is better low, a rate high."""
    assert judge_runs(RUNS, "cpu", less_is_better=True) is Verdict.WON
    assert judge_runs(RUNS, "rate", less_is_better=False) is Verdict.WON


def test_a_lost_number_is_printed_as_lost() -> None:
    """A lost number is printed as lost, beside the peer that is ahead."""
    runs = {"tfs": RUNS["other"], "other": RUNS["tfs"]}
    text = lines(Condition(WORKLOADS["mlp"], True, 8), runs)
    assert text[0] == "  mlp batched-8-in-flight"
    assert text[-1].endswith("TFS: cpu LOST, rate LOST")


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_count_needs_all_its_rows(num_rows: int) -> None:
    """A row that was not measured is not one that was not lost."""
    effort = Effort(workloads=("mlp",), batching=(True,), in_flight=(1, 8))
    report = Report(rows(effort))
    comparison = Comparison(effort, Field(effort))
    for num_in_flight in itertools.islice(effort.in_flight, num_rows):
        condition = Condition(WORKLOADS["mlp"], True, num_in_flight)
        comparison.record(report, condition, {**RUNS, "other": RUNS["tfs"]})
    comparison.count(report)
    assert (NOT_FIRST in report.missing()) == (num_rows == 1)


def test_free_ports_differ() -> None:
    """A server with several doors needs one for each."""
    assert len(set(free_ports(5))) == 5


def test_without_any_peer_tfs_is_measured_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each absent one is named with what to do; nothing is won or lost."""

    def prepare(peer: Peer) -> Path:
        raise environment.MissingError(f"{peer.name} needs java: install it")

    monkeypatch.setattr(environment, "prepare", prepare)
    members = Field(Effort())
    members.set_up()
    assert [peer.name for peer in members.members()] == ["tfs"]
    printed = capsys.readouterr().out
    assert printed.count("left out: ") == 4
    assert "torchserve needs java: install it" in printed


def test_a_terminated_benchmark_leaves_through_its_contexts() -> None:
    """Its servers heed no signal while they are paused: it has to end them."""
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit) as left:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
