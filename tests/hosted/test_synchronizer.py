"""Jobs follow the store, routers follow what jobs say, and silence is noted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tfs.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tfs.hosted.controller import Controller, parse_model_config
from tfs.hosted.fleet import Job
from tfs.hosted.fleet_store import FleetStore, ModelSighting
from tfs.hosted.synchronizer import Synchronizer, SynchronizerOptions
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2
from tfs.testing.fake_clock import FakeClock
from tfs.testing.held_executor import HeldExecutor

MIB = 1 << 20


class Jobs:
    """Serving jobs that load at once what they are told, unless they are held."""

    def __init__(self) -> None:
        self.served: dict[str, list[str]] = {"a": [], "b": []}
        self.started_s = {"a": 1.0, "b": 1.0}
        self.dead: set[str] = set()
        self.refusing: set[str] = set()
        self.loading: set[str] = set()
        self.told: list[tuple[str, tuple[str, ...]]] = []
        self.asked: list[str] = []
        self.forgotten: list[str] = []
        self.base_paths: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.is_stubborn = False
        self.on_asked: Callable[[str], None] = lambda _: None

    def list_models(self, address: str) -> admin_service_pb2.ListModelsResponse:
        self.asked.append(address)
        self.on_asked(address)
        if address in self.dead:
            raise Unavailable("nobody there")
        reply = admin_service_pb2.ListModelsResponse()
        reply.server.started_s = self.started_s[address]
        for name in self.served[address]:
            path = self.base_paths.get(name, f"/{name}")
            model = reply.models.add(name=name, base_path=path)
            version = model.versions.add(version=1)
            version.memory.resident_bytes = 40 * MIB
            if name in self.errors:
                version.error.code, version.error.message = 15, self.errors[name]
            elif name not in self.loading:
                model.primary = 1
        return reply

    def apply(
        self, address: str, config: model_server_config_pb2.ModelServerConfig
    ) -> None:
        if address in self.refusing:
            raise FailedPrecondition("refused")
        names = tuple(each.name for each in config.model_config_list.config)
        self.told.append((address, names))
        self.served[address] = list(names)
        if not self.is_stubborn:
            self.base_paths.clear()

    def forget(self, address: str) -> None:
        self.forgotten.append(address)


class Bench:
    """A synchronizer over two jobs, one model on the first of them."""

    def __init__(self, path: Path, *, only_routes: bool = False) -> None:
        self.clock = FakeClock()
        self.store = FleetStore(str(path / "fleet.db"), self.clock)
        self.controller = Controller(self.store, lambda _: None, lambda _: 10 * MIB)
        self.jobs = Jobs()
        self.routes: Mapping[str, tuple[str, ...]] = {}
        self.synchronizer = Synchronizer(
            self.store,
            self.controller,
            self.jobs,
            self.take,
            self.clock,
            options=SynchronizerOptions(down_after_s=10, only_routes=only_routes),
        )
        self.controller.add_job(Job("a", 100 * MIB))
        self.controller.add_job(Job("b", 200 * MIB))
        self.controller.add_model(parse_model_config('name: "m" base_path: "/m"'))

    def take(self, routes: Mapping[str, tuple[str, ...]]) -> None:
        self.routes = routes

    def look(self, after_s: float = 1.0) -> None:
        self.clock.advance(after_s)
        self.synchronizer.look()

    def look_for(self, num_seconds: int) -> None:
        for _ in range(num_seconds):
            self.look()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_job_is_told_once_and_routed_to_when_it_answers(bench: Bench) -> None:
    """A model that loads takes no requests; what did not change is not said again."""
    bench.jobs.loading.add("m")
    for _ in range(3):
        bench.look()
    assert bench.jobs.told == [("a", ("m",)), ("b", ())]
    assert bench.routes == {"m": ()}
    bench.jobs.loading.clear()
    bench.look()
    assert bench.routes == {"m": ("a",)}


def test_a_process_that_is_new_is_told_again(bench: Bench) -> None:
    """A restarted server knows nothing of what the one before was told."""
    bench.look()
    bench.jobs.started_s["a"], bench.jobs.served["a"] = 2.0, []
    bench.look()
    assert bench.jobs.told[2:] == [("a", ("m",))]


def test_a_job_that_serves_something_else_is_told_again(bench: Bench) -> None:
    """Somebody reloaded the server by hand: the fleet's models come back by themselves."""
    bench.look()
    bench.look()
    bench.jobs.served["a"] = ["own"]
    bench.look()
    bench.look()
    assert bench.jobs.served["a"] == ["m"]
    assert bench.jobs.told[2:] == [("a", ("m",))]
    bench.jobs.base_paths["m"] = "/elsewhere"
    bench.look()
    bench.look()
    assert bench.jobs.told[3:] == [("a", ("m",))]


def test_a_job_that_cannot_serve_as_told_is_told_once_more(bench: Bench) -> None:
    """An override of its own lies over what it is told; to repeat that changes nothing."""
    bench.look()
    bench.jobs.base_paths["m"] = "/its/own"
    bench.jobs.is_stubborn = True
    for _ in range(5):
        bench.look()
    assert bench.jobs.told[2:] == [("a", ("m",))]


def test_an_answer_from_before_a_job_was_told_is_no_reason_to_tell_it_again(
    tmp_path: Path,
) -> None:
    """What a job says may have left it before it heard what it is to serve."""
    bench = Bench(tmp_path)
    bench.look()
    before = bench.jobs.list_models("a")
    bench.controller.add_model(parse_model_config('name: "n" base_path: "/n"'))
    asked = bench.jobs.list_models
    bench.jobs.list_models = lambda address: (  # type: ignore[method-assign]
        before if address == "a" and len(bench.jobs.told) == 2 else asked(address)
    )
    bench.look()
    assert bench.jobs.told[2:] == [("a", ("m", "n"))]
    bench.look()
    assert len(bench.jobs.told) == 3


def test_what_is_wrong_with_a_model_can_be_read_from_the_store(bench: Bench) -> None:
    """A model has a place and does not answer: the store says so, and why."""
    bench.jobs.errors["m"] = "model.pt is damaged"
    bench.look()
    bench.look()
    seen = bench.store.sightings()
    assert seen.models == {"m": ModelSighting(0, "a: model.pt is damaged")}
    bench.jobs.errors.clear()
    bench.look()
    seen = bench.store.sightings()
    assert seen.models == {"m": ModelSighting(1, "")}
    assert seen.at_s == bench.clock.wall_s()
    bench.look()
    assert bench.store.sightings().at_s < bench.clock.wall_s()
    bench.look(20.0)
    assert bench.store.sightings().at_s == bench.clock.wall_s()
    assert bench.store.read().number == 3


def test_a_problem_of_the_store_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that says the same thing each second hides what else happens."""
    caplog.set_level(logging.INFO)
    path = Path(bench.store.path)
    whole = path.read_bytes()
    for contents in (b"garbage" * 200, whole, b"garbage" * 200):
        path.write_bytes(contents)
        for _ in range(3):
            bench.synchronizer.look_safely()
    said = [r.message for r in caplog.records if "fleet_not_sync" in r.message]
    assert len(said) == 2
    assert [r for r in caplog.records if "event=fleet_synchronized" in r.message]


def test_a_silent_job_is_replaced_and_comes_back(bench: Bench) -> None:
    """Its models move after the patience; until then requests find no other job."""
    bench.look()
    bench.look()
    bench.jobs.dead.add("a")
    bench.look()
    assert bench.routes == {"m": ("a",)}
    assert bench.controller.fleet().placement == {"m": ("a",)}
    bench.look_for(9)
    assert bench.routes == {"m": ()}
    assert bench.controller.fleet().placement == {"m": ("b",)}
    bench.look()
    bench.look()
    assert bench.routes == {"m": ("b",)}
    bench.jobs.dead.clear()
    bench.look()
    assert not bench.controller.fleet().jobs["a"].is_down
    bench.look()
    assert bench.jobs.served == {"a": [], "b": ["m"]}


def test_a_job_that_missed_a_question_is_tried_where_no_other_answers(
    bench: Bench,
) -> None:
    """It may only be slow; requests that another replica can take do not wait for it."""
    bench.controller.scale("m", 2)
    for _ in range(3):
        bench.look()
    bench.jobs.dead.add("b")
    bench.look()
    assert bench.routes == {"m": ("a",)}
    bench.jobs.dead.add("a")
    bench.look()
    assert bench.routes == {"m": ("a", "b")}
    bench.jobs.dead.clear()
    bench.jobs.served["a"] = []
    bench.look()
    assert bench.routes == {"m": ("b",)}


def test_a_job_that_comes_back_keeps_what_it_has(bench: Bench) -> None:
    """It is placed on again before it is told anything: else it would unload first."""
    bench.controller.scale("m", 2)
    for _ in range(3):
        bench.look()
    assert bench.routes == {"m": ("a", "b")}
    bench.jobs.dead.add("b")
    bench.look_for(10)
    bench.look()
    assert bench.controller.fleet().placement == {"m": ("a",)}
    bench.jobs.dead.clear()
    bench.jobs.told.clear()
    for _ in range(3):
        bench.look()
    assert bench.routes == {"m": ("a", "b")}
    assert ("b", ()) not in bench.jobs.told


def test_a_job_that_never_answered_is_given_the_same_patience(bench: Bench) -> None:
    """A fleet that starts waits for its servers."""
    bench.jobs.dead.add("a")
    bench.look()
    assert not bench.controller.fleet().jobs["a"].is_down
    bench.look_for(10)
    assert bench.controller.fleet().jobs["a"].is_down


def test_what_a_job_refuses_is_tried_again(bench: Bench) -> None:
    """The next look says it once more."""
    bench.jobs.refusing.add("a")
    bench.look()
    assert bench.jobs.told == [("b", ())]
    bench.jobs.refusing.clear()
    bench.look()
    assert bench.jobs.told[-1] == ("a", ("m",))


def test_memory_is_learned_from_what_jobs_measured(bench: Bench) -> None:
    """The estimate of 10 MiB gives way to the 40 that a version takes, and moves it."""
    for _ in range(40):
        bench.look()
    assert bench.controller.fleet().models["m"].memory_bytes == 80 * MIB


def test_a_job_that_leaves_serves_until_others_do(bench: Bench) -> None:
    """Then it is told to serve nothing and its channel is closed: no request fails."""
    bench.look()
    bench.look()
    bench.controller.remove_job("a")
    for _ in range(3):
        bench.look()
        assert bench.routes["m"]
    assert bench.routes == {"m": ("b",)}
    bench.look()
    assert set(bench.controller.fleet().jobs) == {"b"}
    assert bench.jobs.served == {"a": [], "b": ["m"]}
    assert bench.jobs.forgotten == ["a"]


def test_a_job_that_leaves_stays_while_it_is_not_known_what_it_serves(
    bench: Bench,
) -> None:
    """It may be the only one that answers: it missed a question, or asking just began."""
    bench.look()
    bench.look()
    bench.controller.remove_job("a")
    bench.jobs.dead.add("a")
    bench.look()
    assert set(bench.controller.fleet().jobs) == {"a", "b"}
    bench.look_for(10)  # given up: there is nothing to wait for
    assert set(bench.controller.fleet().jobs) == {"b"}


def test_a_job_that_is_forced_out_is_let_go_at_once(bench: Bench) -> None:
    """Whatever it serves, no request goes there any more."""
    bench.look()
    bench.look()
    bench.controller.remove_job("a", force=True)
    bench.look()
    assert bench.jobs.forgotten == ["a"]
    assert bench.routes == {"m": ()}
    bench.look()
    assert bench.routes == {"m": ("b",)}


def test_a_job_that_is_gone_is_neither_asked_nor_left_open(tmp_path: Path) -> None:
    """Its question waited for a thread, or began just before it was removed."""
    bench = Bench(tmp_path)
    waiting = HeldExecutor()
    bench.synchronizer = Synchronizer(
        bench.store, bench.controller, bench.jobs, bench.take, bench.clock, waiting
    )
    bench.look()
    bench.controller.remove_job("a", force=True)
    bench.look()
    assert bench.jobs.forgotten == ["a"]

    def remove(address: str) -> None:
        bench.jobs.on_asked = lambda _: None
        bench.controller.remove_job(address, force=True)
        bench.look()

    bench.jobs.on_asked = remove
    waiting.run_held()  # a's question, then b's, which b does not outlive
    assert bench.jobs.asked == ["b"]
    assert bench.jobs.forgotten == ["a", "b", "b"]


def test_a_router_beside_the_synchronizer_tells_nothing(tmp_path: Path) -> None:
    """Two that see different jobs would move models to and fro."""
    bench = Bench(tmp_path, only_routes=True)
    bench.jobs.served["b"] = ["m"]
    bench.jobs.dead.add("a")
    number = bench.store.read().number
    for _ in range(40):
        bench.look()
    assert bench.routes == {"m": ("b",)}
    assert not bench.jobs.told
    assert bench.store.read().number == number


def test_a_store_that_is_lost_takes_no_route_and_no_model_away(bench: Bench) -> None:
    """What serves goes on; an empty store is one only for who begins with it."""
    bench.look()
    bench.look()
    path = Path(bench.store.path)
    kept = path.read_bytes()
    path.unlink()
    told = list(bench.jobs.told)
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="from revision 3 to 0"):
            bench.look()
    assert bench.routes == {"m": ("a",)}
    assert (bench.jobs.told, bench.jobs.forgotten) == (told, [])
    path.write_bytes(kept)
    bench.look()
    assert bench.routes == {"m": ("a",)}


def test_no_job_is_down_because_nobody_looked(tmp_path: Path) -> None:
    """While the store is away, or the router's machine asleep, no job can answer."""
    bench = Bench(tmp_path)
    threads = HeldExecutor()
    bench.synchronizer = Synchronizer(
        bench.store, bench.controller, bench.jobs, bench.take, bench.clock, threads
    )

    def look(after_s: float = 1.0) -> None:
        bench.look(after_s)
        threads.run_held()  # jobs answer after the look that asked them

    bench.controller.scale("m", 2)
    for _ in range(4):
        look()
    bench.jobs.told.clear()
    path = Path(bench.store.path)
    kept = path.read_bytes()
    path.write_text("no database " * 100)
    for _ in range(20):
        bench.clock.advance(1.0)
        bench.synchronizer.look_safely()
    path.write_bytes(kept)
    look()
    look()
    look(600)
    look()
    assert not any(each.is_down for each in bench.controller.fleet().jobs.values())
    assert bench.routes == {"m": ("a", "b")}
    assert not bench.jobs.told


def test_a_job_that_ends_while_nobody_looks_is_given_its_patience(bench: Bench) -> None:
    """What it was silent before counts as ever."""
    bench.look_for(3)
    bench.jobs.dead.add("a")
    bench.look_for(5)
    bench.look(600)
    assert not bench.controller.fleet().jobs["a"].is_down
    bench.look_for(10)
    assert bench.controller.fleet().jobs["a"].is_down


def test_the_thread_outlives_a_store_that_cannot_be_read(bench: Bench) -> None:
    """Routes stay as they were until it can."""
    bench.look()
    bench.look()
    Path(bench.store.path).write_text("no database " * 100)
    with pytest.raises(FailedPrecondition):
        bench.look()
    assert bench.routes == {"m": ("a",)}
    bench.synchronizer.start()
    bench.clock.block_until_sleepers(1)
    bench.synchronizer.close()


@pytest.mark.parametrize(
    ("look_s", "down_after_s", "field"),
    [
        (0.0, 10.0, "look_s"),
        (1.0, 1.0, "down_after_s"),
        (1.0, math.nan, "down_after_s"),
    ],
)
def test_a_bad_option_is_refused_on_creation(
    look_s: float, down_after_s: float, field: str
) -> None:
    """A job that answers every look must not be given up between two."""
    with pytest.raises(InvalidArgument, match=f"{field} must be"):
        SynchronizerOptions(look_s, down_after_s)
