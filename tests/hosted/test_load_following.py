"""How the number of replicas follows load."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.hosted.fleets import MIB, EditedFleet, model
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.hosted import edits
from tfs.hosted.fleet import Job
from tfs.hosted.fleet_state import Edit
from tfs.hosted.load_following import LoadFollowing, Scaling
from tfs.hosted.reports import JobReport, ReplicaSighting

HAS_M = {"m": ReplicaSighting(primary=1)}


class Scaled:
    """Replicas that follow a load given once a second."""

    def __init__(self, num_replicas: int = 1) -> None:
        self.following = LoadFollowing()
        self.now_s = 0.0
        self.num = num_replicas
        self.numbers: list[int] = []

    def run(self, num_seconds: int, load: float | None, noise: float = 0.0) -> None:
        draw = random.Random(1)
        for _ in range(num_seconds):
            self.now_s += 1
            seen = load
            if seen is not None:
                seen *= 1 + noise * draw.uniform(-1, 1)
            self.num = self.following.wanted(self.now_s, seen, self.num)
            self.numbers.append(self.num)


def test_ten_times_the_load_has_its_replicas_within_half_a_minute() -> None:
    """Within 1.3 times of what is needed, and they stay while the load does."""
    scaled = Scaled()
    scaled.run(120, 3.0)
    assert scaled.num == 1
    scaled.run(30, 30.0)
    assert 30 / 4 <= scaled.num <= 1.3 * math.ceil(30 / 4)
    before = scaled.num
    scaled.run(300, 30.0)
    assert before / 1.3 <= scaled.num <= before


def test_noise_moves_nothing_back_and_forth() -> None:
    """A fifth more or less, at any second: the number settles and stays."""
    for load in (3.9, 7.5, 12.2, 31.0):
        scaled = Scaled(num_replicas=math.ceil(load / 4))
        scaled.run(600, load, noise=0.2)
        steps = [
            b - a for a, b in zip(scaled.numbers, scaled.numbers[1:], strict=False)
        ]
        assert sum(1 for each in steps if each) <= 1


def test_one_goes_for_each_minute_in_which_fewer_were_enough() -> None:
    """Not at once, because callers may come back; and none while servers are silent."""
    scaled = Scaled(num_replicas=4)
    scaled.run(60, 0.5)
    assert scaled.num == 4
    scaled.run(50, 0.5)
    assert scaled.num == 3
    scaled.run(300, None)
    assert scaled.num == 3
    scaled.run(400, 0.5)
    assert scaled.num == 1


def test_a_model_s_load_is_the_time_its_requests_take_on_all_its_servers() -> None:
    """What servers report grows by ten seconds a second: ten requests are under way."""
    there = EditedFleet(
        Job("j", 100 * MIB, num_replicas=2, addresses=("a", "b"), is_ours=True)
    )
    fleet = there.apply(edits.add_model(model("m", MIB, 1, 5)))
    scaling = Scaling()
    wanted: dict[str, int] = {}
    reports: dict[str, JobReport] = {}
    for second in range(20):
        if second % 3:  # not every question is answered before the next
            seen = {"m": 5.0 * second}
            for address in ("a", "b"):
                reports[address] = JobReport(
                    1.0, HAS_M, request_s=seen, at_s=float(second)
                )
        wanted = scaling.wanted(float(second), fleet, dict(reports)) or wanted
    assert wanted == {"m": 3}


def test_no_replica_goes_while_one_of_its_servers_says_nothing() -> None:
    """What it has under way is not known; it goes once all have said for long that few are."""
    there = EditedFleet(
        Job("j", 100 * MIB, num_replicas=2, addresses=("a", "b"), is_ours=True)
    )
    there.apply(edits.add_model(model("m", MIB, 1, 5)))
    fleet = there.apply(edits.follow_load({"m": 2}))
    scaling = Scaling()

    def run(begin: int, end: int, *answering: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for second in range(begin, end):
            report = JobReport(1.0, HAS_M, request_s={"m": 0.0}, at_s=float(second))
            reports = dict.fromkeys(answering, report)
            found |= scaling.wanted(float(second), fleet, reports)
        return found

    assert run(0, 300, "a") == {}
    assert run(300, 500, "a", "b") == {"m": 1}


def test_a_job_has_as_many_replicas_as_the_busiest_of_its_models_wants() -> None:
    """Between its bounds; the servers are started and drained by whoever keeps it."""
    job = Job(
        "j", 100 * MIB, num_replicas=2, is_ours=True, min_replicas=2, max_replicas=4
    )
    there = EditedFleet(job)
    for name in ("m", "n"):
        there.apply(edits.add_model(model(name, MIB, 1, 9)))
    assert there.apply(edits.follow_load({"m": 3})).jobs["j"].num_replicas == 3
    assert there.apply(edits.follow_load({"n": 9})).jobs["j"].num_replicas == 4
    assert there.apply(edits.follow_load({"n": 4})).jobs["j"].num_replicas == 4
    assert there.apply(edits.follow_load({"n": 1})).jobs["j"].num_replicas == 3
    assert there.apply(edits.follow_load({"m": 1})).jobs["j"].num_replicas == 2


def test_a_job_of_temp_has_no_server_while_it_has_no_model() -> None:
    """The first model starts one; it takes none of Prod; and others keep their fewest."""
    there = EditedFleet(
        *(
            Job(
                name,
                100 * MIB,
                num_replicas=least,
                is_ours=True,
                min_replicas=least,
                max_replicas=4,
                is_temp=not least,
            )
            for name, least in (("temp", 0), ("any", 1))
        )
    )

    def sizes() -> tuple[int, int]:
        return tuple(there.fleet.jobs[each].num_replicas for each in ("temp", "any"))  # type: ignore[return-value]

    def temp(name: str, size: int, number: int) -> Edit:
        return edits.add_model(replace(model(name, size, number), is_temp=True))

    there.apply(edits.add_model(model("prod", 60 * MIB, 2)))
    assert there.fleet.packing() == {"prod": ("any",)}
    assert sizes() == (0, 2)
    there.apply(temp("m", 60 * MIB, 3))
    assert there.fleet.packing()["m"] == ("temp",)
    assert sizes() == (3, 2)
    with pytest.raises(ResourceExhausted):
        there.apply(edits.add_model(model("other", 60 * MIB)))
    there.apply(edits.empty_job("temp"))
    assert sizes() == (3, 2)
    there.apply(edits.remove_model("m"))
    assert sizes() == (3, 2), "servers may have it still"
    there.apply(edits.remove_model("prod"))
    for each in ("temp", "any", "absent"):
        there.apply(edits.empty_job(each))
    assert sizes() == (0, 1)
    there.apply(edits.add_model(model("prod", 60 * MIB)))
    there.apply(temp("m", 60 * MIB, 1))
    assert sizes() == (1, 1)
    with pytest.raises(InvalidArgument, match="0 to N for Temp"):
        Job("x", MIB, num_replicas=0, is_ours=True, max_replicas=2)


def test_a_hint_has_the_servers_of_a_job_started_before_the_load_comes() -> None:
    """Within the job's bounds; beyond them it is refused."""
    job = Job(
        "j", 100 * MIB, num_replicas=2, is_ours=True, min_replicas=2, max_replicas=4
    )
    there = EditedFleet(job)
    there.apply(edits.add_model(model("m", MIB, 1, 9)))

    def hint(number: int) -> Edit:
        return edits.update_model(
            "m",
            lambda m: replace(m, min_replicas=number, num_replicas=number),
            "set-hints",
        )

    assert there.apply(hint(4)).jobs["j"].num_replicas == 4
    with pytest.raises(ResourceExhausted):
        there.apply(hint(5))


def test_a_model_of_temp_has_no_replica_after_a_minute_without_requests() -> None:
    """Counted from when it answers; a request brings one back, and its job a server."""
    job = Job("j", 100 * MIB, "", 0, is_ours=True, max_replicas=2, is_temp=True)
    there = EditedFleet(job)
    temp = replace(model("m", MIB, 1, 2), is_temp=True)
    there.apply(edits.add_model(replace(temp, min_replicas=0)))
    there.apply(edits.set_addresses("j", ("a",)))
    scaling = Scaling()

    def run(begin: int, end: int, growth: float, **models: ReplicaSighting) -> object:
        found: dict[str, int] = {}
        for second in range(begin, end):
            seen = {"m": growth * second}
            report = JobReport(1.0, models, request_s=seen, at_s=float(second))
            found |= scaling.wanted(float(second), there.fleet, {"a": report})
        return found

    assert run(0, 200, 0.0) == {}
    assert run(200, 259, 0.0, **HAS_M) == {}
    assert run(259, 400, 0.01, **HAS_M) == {}
    assert run(400, 530, 0.0, **HAS_M) == {"m": 0}
    fleet = there.apply(edits.follow_load({"m": 0}))
    assert (fleet.models["m"].num_replicas, fleet.packing()["m"]) == (0, ())
    assert there.apply(edits.empty_job("j")).jobs["j"].num_replicas == 0
    fleet = there.apply(edits.wake("m"))
    assert (fleet.packing()["m"], fleet.jobs["j"].num_replicas) == (("j",), 1)
    assert there.apply(edits.wake("m")) is fleet
    with pytest.raises(InvalidArgument, match="0 to N for Temp"):
        replace(temp, is_temp=False, min_replicas=0)
