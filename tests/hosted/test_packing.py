"""Where models go: never more than fits, as few moves as possible."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfs.hosted import packing
from tfs.hosted.fleet import Fleet, HostedModel, Job


class Places(NamedTuple):
    """The jobs of each model, and how many replicas have no place."""

    jobs: Mapping[str, tuple[str, ...]]
    shortfall: Mapping[str, int]


def models(**sizes: int) -> dict[str, HostedModel]:
    return {name: HostedModel(name, "", size) for name, size in sizes.items()}


def jobs(**sizes: int) -> dict[str, Job]:
    return {name: Job(name, size) for name, size in sizes.items()}


def replicated(model: HostedModel, number: int) -> dict[str, HostedModel]:
    grown = replace(model, num_replicas=number, max_replicas=number)
    return {model.name: grown}


def pack(
    wanted: Mapping[str, HostedModel],
    there: Mapping[str, Job],
    before: Mapping[str, tuple[str, ...]],
) -> Places:
    found = packing.pack(Fleet(there, placed_at(wanted, before)))
    return Places(found.fleet.packing(), found.shortfall)


def placed_at(
    wanted: Mapping[str, HostedModel], at: Mapping[str, tuple[str, ...]]
) -> dict[str, HostedModel]:
    return {name: replace(m, placed=at.get(name, ())) for name, m in wanted.items()}


def free_bytes(
    wanted: Mapping[str, HostedModel], there: Mapping[str, Job], placed: Places
) -> Mapping[str, int]:
    return packing.free_bytes(Fleet(there, placed_at(wanted, placed.jobs)))


def test_a_model_goes_where_least_room_is_left() -> None:
    """Large holes stay for large models."""
    placed = pack(models(small=2, large=8), jobs(a=10, b=8), {})
    assert placed == Places({"small": ("a",), "large": ("b",)}, {})


def test_what_has_a_place_stays_there() -> None:
    """A new model moves none that is there, though another packing was tighter."""
    placed = pack(models(old=2, new=2), jobs(a=10, b=4), {"old": ("a",)})
    assert placed.jobs["old"] == ("a",)
    assert placed.jobs["new"] == ("b",)


def test_everything_is_packed_anew_where_that_makes_room() -> None:
    """Two small models make way on one job for a large one."""
    before = {"x": ("a",), "y": ("b",)}
    placed = pack(models(x=4, y=4, large=10), jobs(a=10, b=10), before)
    assert not placed.shortfall
    assert placed.jobs["x"] == placed.jobs["y"] != placed.jobs["large"]


def test_no_model_loses_its_place_to_another() -> None:
    """What does not fit is left out, however many others it outweighs."""
    before = {"x": ("a",)}
    placed = pack(models(x=6, large=10), jobs(a=10), before)
    assert placed == Places({"x": ("a",), "large": ()}, {"large": 1})


def test_replicas_go_to_different_jobs_and_one_of_each_comes_first() -> None:
    """A second replica takes no room that a first one needs."""
    wanted = {**replicated(models(wide=4)["wide"], 3), **models(other=4)}
    placed = pack(wanted, jobs(a=4, b=4), {})
    assert len(set(placed.jobs["wide"])) == 1
    assert placed.jobs["other"]
    assert placed.shortfall == {"wide": 2}


def test_models_keep_to_their_partition_and_off_jobs_that_are_down() -> None:
    """A model for a GPU goes to none without, and nothing goes to a dead job."""
    wanted = {"g": replace(models(g=1)["g"], partition="gpu"), **models(c=1)}
    there = {
        "cpu": Job("cpu", 10),
        "gpu": Job("gpu", 10, "gpu"),
        "dead": Job("dead", 1, is_down=True),
    }
    placed = pack(wanted, there, {"c": ("dead",)})
    assert placed.jobs == {"g": ("gpu",), "c": ("cpu",)}


def test_what_a_job_lost_room_for_moves() -> None:
    """A job that was made smaller keeps what fits."""
    before = {"x": ("a",), "y": ("a",)}
    placed = pack(models(x=6, y=4), jobs(a=6, b=4), before)
    assert placed.jobs == {"x": ("a",), "y": ("b",)}


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), max_size=8),
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=5),
    st.randoms(use_true_random=False),
)
def test_no_job_has_more_than_it_holds(
    sizes: list[tuple[int, int]], rooms: list[tuple[int, bool]], random: object
) -> None:
    """Whatever there is and was: no overload, no double, no dead job, and it is stable."""
    wanted = {
        f"m{i}": HostedModel(f"m{i}", "", size, max_replicas=n, num_replicas=n)
        for i, (size, n) in enumerate(sizes)
    }
    there = {
        f"j{i}": Job(f"j{i}", size, is_down=d) for i, (size, d) in enumerate(rooms)
    }
    before: dict[str, tuple[str, ...]] = {}
    if there:
        pick = random.choice  # type: ignore[attr-defined]
        before = {name: (pick(sorted(there)),) for name in wanted}
    placed = pack(wanted, there, before)
    assert all(left >= 0 for left in free_bytes(wanted, there, placed).values())
    for name, model in wanted.items():
        at = placed.jobs[name]
        assert len(set(at)) == len(at) <= model.num_replicas
        assert not any(there[address].is_down for address in at)
        short = model.num_replicas - len(at)
        assert placed.shortfall.get(name, 0) == short
    assert pack(wanted, there, placed.jobs) == placed or placed.shortfall


def test_copies_go_to_different_zones_where_there_is_room() -> None:
    """Three copies in three zones: any two may be lost. A full zone is no reason to refuse."""
    there = {
        **{f"a{n}": Job(f"a{n}", 10, zone="a") for n in range(3)},
        "b": Job("b", 20, zone="b"),
        "c": Job("c", 30, zone="c"),
    }
    wanted = replicated(models(m=4)["m"], 3)
    placed = pack(wanted, there, {})
    assert {there[job].zone for job in placed.jobs["m"]} == {"a", "b", "c"}
    crowded = {name: replace(there[name], memory_bytes=4) for name in ("a0", "a1")}
    assert not pack(replicated(models(m=4)["m"], 2), crowded, {}).shortfall


def test_processors_are_shared_as_memory_is() -> None:
    """A job that computes enough already takes no more, however much memory it has."""
    wanted = {name: replace(each, cpus=1.5) for name, each in models(x=1, y=1).items()}
    there = {"a": Job("a", 10, cpus=2), "b": Job("b", 90, cpus=2)}
    placed = pack(wanted, there, {})
    assert sorted(placed.jobs.values()) == [("a",), ("b",)]
    assert pack(wanted, {"a": there["a"]}, {}).shortfall == {"y": 1}
    assert not pack(wanted, {"a": replace(there["a"], cpus=0)}, {}).shortfall


def test_packing_anew_moves_only_what_has_to_move() -> None:
    """Room for one model is made by moving one other, not all."""
    wanted = models(x=5, y=5, z=4, large=10)
    before = {"x": ("b",), "y": ("c",), "z": ("a",)}
    placed = pack(wanted, jobs(a=10, b=10, c=10), before)
    assert not placed.shortfall
    moved = [name for name, at in before.items() if placed.jobs[name] != at]
    assert len(moved) == 1


def test_models_on_demand_take_what_the_largest_of_them_takes() -> None:
    """Ten thousand that are rarely asked for fit where one of them does, and are spread."""
    rare = {
        f"r{index}": replace(each, is_on_demand=True)
        for index, each in enumerate(models(x=3, y=4, z=2).values())
    }
    rare = {name: replace(each, name=name) for name, each in rare.items()}
    placed = pack({**rare, **models(always=6)}, jobs(a=10), {})
    assert not placed.shortfall
    assert free_bytes({**rare, **models(always=6)}, jobs(a=10), placed) == {"a": 0}
    spread = pack(rare, jobs(a=10, b=20, c=30), {})
    assert sorted(spread.jobs.values()) == [("a",), ("b",), ("c",)]


def test_three_copies_by_default_outlive_any_two_servers() -> None:
    """In three zones; where servers are fewer, as many as there are, and no refusal."""
    wanted = {
        name: replace(each, copies_by_default=True)
        for index in range(20)
        for name, each in replicated(models(**{f"m{index}": 3})[f"m{index}"], 3).items()
    }
    there = {
        f"{zone}{index}": Job(f"{zone}{index}", 30, zone=zone)
        for zone in "abc"
        for index in range(3)
    }
    placed = pack(wanted, there, {})
    assert not placed.shortfall
    for at in placed.jobs.values():
        assert {there[job].zone for job in at} == {"a", "b", "c"}
    two = {name: there[name] for name in ("a0", "b0")}
    few = {name: wanted[name] for name in ("m0", "m1")}
    placed = pack(few, two, {})
    assert placed == Places({"m0": ("a0", "b0"), "m1": ("a0", "b0")}, {})


def test_temp_has_what_prod_leaves() -> None:
    """A model of Temp moves, or goes, where Prod needs its room; it never takes Prod's."""
    temp = replace(models(temp=6)["temp"], is_temp=True)
    both = {**models(prod=8), "temp": temp}
    before = {"temp": ("a",)}
    assert pack(both, jobs(a=10, b=10), before).jobs["temp"] == ("a",)
    placed = pack(both, jobs(a=10, b=6), before)
    assert placed == Places({"prod": ("a",), "temp": ("b",)}, {})
    placed = pack(both, jobs(a=10), before)
    assert placed == Places({"prod": ("a",), "temp": ()}, {"temp": 1})
    large = replace(temp, memory_bytes=10)
    placed = pack({**both, "temp": large}, jobs(a=10, b=4), {"prod": ("a",)})
    assert placed == Places({"prod": ("a",), "temp": ()}, {"temp": 1})


@pytest.mark.parametrize("is_online", [False, True])
def test_two_copies_lie_on_few_different_pairs_of_jobs(*, is_online: bool) -> None:
    """The loss of two jobs then rarely loses a model: a tenth more pairs than there must be."""
    draw = random.Random(1)
    sizes = {f"m{each}": int(100 * draw.lognormvariate(0, 1)) for each in range(600)}
    wanted: dict[str, HostedModel] = {}
    there = jobs(**{f"j{each}": 8000 for each in range(32)})
    before: Mapping[str, tuple[str, ...]] = {}
    for name, size in sizes.items():
        wanted |= replicated(models(**{name: size})[name], 2)
        if is_online:
            before = pack(wanted, there, before).jobs
    placed = pack(wanted, there, before)
    assert not placed.shortfall
    pairs = {frozenset(at) for at in placed.jobs.values()}
    used = {job for at in placed.jobs.values() for job in at}
    assert len(pairs) <= 1.1 * math.ceil(len(used) / 2)
    volume = 2 * sum(sizes.values()) / 8000
    assert len(used) <= 1.15 * math.ceil(volume)
