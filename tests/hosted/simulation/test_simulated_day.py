"""A fleet of a thousand models through some hours of virtual time, and what must hold in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosted.simulation.simulated_day import (
    LAUNCH_SERVERS,
    START_S,
    Day,
    DayOptions,
    SimulatedDay,
    p95,
)
from tfs.hosted.fleet import Fleet
from tfs.hosted.sighting_table import SightingTable

LOAD_S = 5.0  # of the model whose load grows
OPTIONS = DayOptions(1000, 100, num_hours=2, look_s=10)


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    return SimulatedDay(OPTIONS, tmp_path_factory.mktemp("day")).run()


def test_no_invariant_is_broken(day: Day) -> None:
    """Whatever is lost: nodes, a zone, the store, the network to a zone, processes."""
    assert not day.broken
    assert day.num_changes > 500


def test_models_are_available(day: Day) -> None:
    """99.99 % of their time; each has copies in three zones."""
    assert day.availability >= 0.9999


def test_a_change_is_in_force_two_looks_after_it_was_loaded(day: Day) -> None:
    """The servers are told at one look, and have said that they serve at the next but one."""
    assert p95(day.in_force_s) <= 3 * OPTIONS.look_s


def test_ten_times_the_load_has_its_servers_soon(day: Day) -> None:
    """Within 1.3 times of what is needed, in 30 s and the time of starts and loads."""
    assert day.step_s <= 30 + START_S + LOAD_S
    assert day.hot_needed[-1] / 1.3 <= day.hot_replicas[-1] <= day.hot_needed[-1] * 1.3


def test_a_launch_that_was_announced_has_its_servers(day: Day) -> None:
    """Hints act before the load comes: servers are started and have the model by then."""
    assert day.at_launch == LAUNCH_SERVERS


def test_noise_of_a_fifth_moves_no_replicas_back_and_forth(day: Day) -> None:
    """At most two turns of a model's number of replicas within ten minutes."""
    assert day.most_turns <= 2


@pytest.mark.parametrize(
    "fault", ["routes follow what is wanted", "the past is admitted"]
)
def test_a_day_notices_what_must_not_be(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation that cannot fail says nothing."""
    day = SimulatedDay(DayOptions(100, 30, num_hours=1, look_s=10), tmp_path)
    if fault == "routes follow what is wanted":
        take = SightingTable.take

        def follow(table: SightingTable, fleet: Fleet, heard: Any) -> set[str]:
            changed = take(table, fleet, heard)
            table.routes = {
                name: tuple(each for job in at for each in fleet.jobs[job].addresses)
                for name, at in fleet.packing().items()
            }
            return changed

        monkeypatch.setattr(SightingTable, "take", follow)
        expected = "I4"
    else:
        monkeypatch.setattr("tfs.server.fleet_source.check_successor", lambda *_: None)
        expected = "I5"
    broken = day.run().broken
    assert any(expected in each for each in broken)
