"""Jobs follow the store, routers follow what jobs say, and silence is noted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosted.failing_store import FailingStore
from tests.hosted.fleets import MIB, model, server
from tfs.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tfs.hosted import edits
from tfs.hosted.controller_report import waits_for
from tfs.hosted.fleet import Fleet, Job, config_text, read_config
from tfs.hosted.fleet_state import FleetState
from tfs.hosted.jobs.job_runtime import JobSpec, Replica, RunningJobs, Seen
from tfs.hosted.reports import (
    NOTHING,
    JobReport,
    JobSighting,
    ReplicaSighting,
    report_of,
)
from tfs.hosted.snapshot import FleetCopy
from tfs.hosted.store.sqlite import SqliteStore
from tfs.hosted.synchronizer import Synchronizer, SynchronizerOptions
from tfs.proto.tfs.v1 import admin_service_pb2
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock
from tfs.testing.held_executor import HeldExecutor

JOB_A, MODEL_M = pb.Op(job="a"), pb.Op(model="m")


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
        self.kept: set[str] = set()
        self.messages: list[admin_service_pb2.AspireRequest] = []
        self.errors: dict[str, str] = {}
        self.are_behind = False
        self.on_asked: Callable[[str], None] = lambda _: None

    def list_models(self, address: str, before: JobReport) -> JobReport:
        self.asked.append(address)
        self.on_asked(address)
        if address in self.dead:
            raise Unavailable("nobody there")
        reply = admin_service_pb2.ListModelsResponse()
        reply.server.started_s = self.started_s[address]
        reply.behind = self.are_behind
        for name in self.served[address]:
            model = reply.models.add(name=name, base_path=f"/{name}")
            version = model.versions.add(version=1, state=30)
            version.memory.resident_bytes = 40 * MIB
            if name in self.errors:
                version.error.code, version.error.message = 15, self.errors[name]
            elif name not in self.loading:
                model.primary = 1
        return report_of(reply)

    def aspire(self, address: str, request: admin_service_pb2.AspireRequest) -> None:
        if address in self.refusing:
            raise FailedPrecondition("refused")
        self.messages.append(request)
        names = tuple(each.name for each in request.config.model_config_list.config)
        self.told.append((address, names))
        self.served[address] = list(names)

    def keep(self, addresses: Collection[str]) -> None:
        self.kept = set(addresses)


class NoRuntime:
    """Starts nothing: what runs is what a test says."""

    look_s = math.inf

    def look(self, specs: Mapping[str, JobSpec]) -> Seen:
        return {}


class Bench:
    """A synchronizer over two jobs, one model on the first of them."""

    def __init__(self, path: Path, *, only_routes: bool = False) -> None:
        self.path = path
        self.clock = FakeClock()
        self.store = FailingStore(SqliteStore(str(path / "fleet.db"), self.clock))
        self.state = FleetState(self.store, self.copy())
        self.jobs = Jobs()
        self.routes: Mapping[str, tuple[str, ...]] = {}
        self.only_routes = only_routes
        self.running = RunningJobs(NoRuntime(), self.clock)
        self.synchronizer = self.make()
        self.state.change(edits.put_job(server("a", 100 * MIB)))
        self.state.change(edits.put_job(server("b", 200 * MIB)))
        self.add_model("m")

    def make(
        self,
        threads: HeldExecutor | None = None,
        name: str = "s",
        down_after_s: float = 10,
    ) -> Synchronizer:
        return Synchronizer(
            self.state,
            self.jobs,
            self.take,
            self.clock,
            threads,
            SynchronizerOptions(
                down_after_s=down_after_s, only_routes=self.only_routes
            ),
            self.running,
            holder=name,
        )

    def copy(self) -> FleetCopy:
        return FleetCopy(str(self.path / "copy.json"))

    @property
    def fleet(self) -> Fleet:
        return self.state.read().fleet

    def add_model(self, name: str) -> None:
        made = replace(model(name), is_estimate=True)
        config = config_text(read_config(f'name: "{name}" base_path: "/{name}"'))
        self.state.change(edits.add_model(replace(made, config=config)))

    def scale(self, name: str, number: int) -> None:
        self.state.change(
            edits.update_model(
                name,
                lambda found: replace(
                    found,
                    min_replicas=number,
                    max_replicas=number,
                    num_replicas=number,
                ),
                "scale",
            )
        )

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


def test_a_job_of_temp_rests_when_its_models_are_gone(bench: Bench) -> None:
    """Its first model has a server started; after its last one none is left."""
    job = Job("t", 60 * MIB, num_replicas=0, is_ours=True, max_replicas=2, is_temp=True)
    bench.jobs.served["c"], bench.jobs.started_s["c"] = [], 1.0

    def size() -> int:
        return bench.fleet.jobs["t"].num_replicas

    bench.state.change(edits.put_job(job))
    bench.look()
    assert size() == 0
    bench.state.change(edits.add_model(replace(model("x", 60 * MIB), is_temp=True)))
    assert size() == 1
    bench.state.change(edits.set_addresses("t", ("c",)))
    bench.look_for(3)
    assert bench.routes["x"] == ("c",)
    assert size() == 1
    bench.state.change(edits.remove_model("x"))
    bench.look()
    assert size() == 0
    bench.state.change(edits.set_addresses("t", ()))
    bench.look_for(20)
    bench.state.change(edits.add_model(replace(model("y", 60 * MIB), is_temp=True)))
    assert bench.fleet.packing()["y"] == ("t",)


def test_a_process_that_is_new_is_told_again(bench: Bench) -> None:
    """A restarted server knows nothing of what the one before was told."""
    bench.look()
    bench.jobs.started_s["a"], bench.jobs.served["a"] = 2.0, []
    bench.look()
    assert bench.jobs.told[2:] == [("a", ("m",))]


def test_a_message_says_whose_it_is_and_grows_with_every_other(bench: Bench) -> None:
    """By id, epoch, revision and number a server refuses what is older, or not its fleet's."""
    bench.look()
    bench.add_model("n")
    bench.look()
    claims = [each.claim for each in bench.jobs.messages]
    assert {each.fleet for each in claims} == {bench.state.fleet_id()}
    assert [each.sequence for each in claims] == list(range(1, len(claims) + 1))
    revisions = [each.revision for each in claims]
    assert revisions == sorted(revisions)
    assert revisions[0] < revisions[-1]
    assert all(
        each.num_models == len(each.config.model_config_list.config)
        for each in bench.jobs.messages
    )


def test_whoever_leads_next_speaks_to_all_servers_with_a_higher_epoch(
    bench: Bench,
) -> None:
    """So that every server refuses the one before, even where nothing has changed."""
    bench.look()
    first = {each.claim.epoch for each in bench.jobs.messages}
    bench.jobs.messages.clear()
    bench.synchronizer = bench.make(name="next")
    bench.look_for(7)
    assert len(bench.jobs.messages) == 2
    assert min(each.claim.epoch for each in bench.jobs.messages) > max(first)


def test_an_answer_from_before_a_job_was_told_is_no_reason_to_tell_it_again(
    tmp_path: Path,
) -> None:
    """What a job says may have left it before it heard what it is to serve."""
    bench = Bench(tmp_path)
    bench.look()
    early = bench.jobs.list_models("a", NOTHING)
    bench.add_model("n")
    asked = bench.jobs.list_models
    bench.jobs.list_models = lambda address, before: (  # type: ignore[method-assign]
        early
        if address == "a" and len(bench.jobs.told) == 2
        else asked(address, before)
    )
    bench.look()
    assert bench.jobs.told[2:] == [("a", ("m", "n"))]
    bench.look()
    assert len(bench.jobs.told) == 3


def test_what_is_wrong_with_a_model_can_be_read_from_the_store(bench: Bench) -> None:
    """A model has a place and does not answer: the store says so, and why."""
    bench.jobs.errors["m"] = "model.pt is damaged"
    bench.look_for(3)
    seen = bench.state.read().models_seen["m"]
    assert seen["a"].problem == "model.pt is damaged"
    assert seen["a"].primary is None
    bench.jobs.errors.clear()
    bench.look_for(2)
    now = bench.state.read()
    assert now.models_seen["m"] == {"a": ReplicaSighting(1, 1, (1,))}
    assert now.jobs_seen["a"].answering == ("a",)
    bench.look_for(9)
    assert bench.state.read().revision == now.revision
    bench.jobs.dead.add("a")
    bench.look_for(2)
    assert "nobody there" in bench.state.read().jobs_seen["a"].problem


def test_a_server_that_did_not_take_in_a_change_is_behind(bench: Bench) -> None:
    """What it says until then, of a version that failed perhaps, is of what was before."""
    bench.look_for(3)
    bench.jobs.refusing.add("a")
    change = edits.update_model("m", lambda m: replace(m, config=m.config), "x")
    bench.state.change(change)
    config = read_config('name: "m" base_path: "/elsewhere"')
    text = config_text(config)
    change = edits.update_model("m", lambda m: replace(m, config=text), "x")
    bench.state.change(change)

    def generation() -> int:
        return bench.state.read().models_seen["m"]["a"].generation

    bench.look_for(2)
    assert generation() == 0
    bench.jobs.refusing.clear()
    bench.jobs.are_behind = True
    bench.look_for(3)
    assert generation() == 0
    bench.jobs.are_behind = False
    bench.look_for(1)
    assert generation() == 3


def test_what_waits_for_a_server_that_obeys_another_says_so(bench: Bench) -> None:
    """It answers, but nothing that is asked of it comes to be."""
    bench.jobs.refusing.add("a")
    bench.look_for(3)
    now = bench.state.read()
    assert not now.jobs_seen["a"].answering
    for waiting in (waits_for(now, JOB_A), waits_for(now, MODEL_M)):
        assert "to answer: FAILED_PRECONDITION: refused" in waiting.what
    bench.jobs.refusing.clear()
    bench.look_for(3)
    now = bench.state.read()
    assert not waits_for(now, JOB_A).what
    assert not waits_for(now, MODEL_M).what


def test_a_new_server_answers_once_it_took_in_what_it_was_told(tmp_path: Path) -> None:
    """Another fleet's would be told of as added before it refuses the first message."""
    bench, threads = Bench(tmp_path), HeldExecutor()
    bench.synchronizer = bench.make(threads)
    bench.look()
    threads.run_held()  # the questions
    bench.look()
    said = waits_for(bench.state.read(), JOB_A).what
    assert said == "1 of 1 replicas to answer"
    threads.run_held()  # the messages
    bench.look()
    assert waits_for(bench.state.read(), JOB_A).what == "m to answer on a"


def test_a_problem_of_the_store_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that says the same thing each second hides what else happens."""
    caplog.set_level(logging.INFO)
    for is_away in (True, False, True):
        bench.store.is_away = is_away
        for _ in range(3):
            bench.synchronizer.look_safely()
    said = [r.message for r in caplog.records if "fleet_not_sync" in r.message]
    assert len(said) == 2
    assert [r for r in caplog.records if "event=fleet_synchronized" in r.message]


def test_a_server_that_is_awaited_is_no_reason_to_warn(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A fleet that starts has to wait for all of its servers; one that goes is news."""
    caplog.set_level(logging.INFO)
    for is_dead in (True, False, True):
        bench.jobs.dead = {"a"} if is_dead else set()
        bench.look_for(2)
    said = [r.levelname for r in caplog.records if "event=job_problem" in r.message]
    assert said == ["INFO", "WARNING"]


def test_a_silent_job_is_replaced_and_comes_back(bench: Bench) -> None:
    """Its models move after the patience; until then requests find no other job."""
    bench.look()
    bench.look()
    bench.jobs.dead.add("a")
    bench.look()
    assert bench.routes == {"m": ("a",)}
    assert bench.fleet.packing() == {"m": ("a",)}
    bench.look_for(9)
    assert bench.routes == {"m": ()}
    assert bench.fleet.packing() == {"m": ("b",)}
    bench.look()
    bench.look()
    assert bench.routes == {"m": ("b",)}
    bench.jobs.dead.clear()
    bench.look()
    assert not bench.fleet.jobs["a"].is_down
    bench.look()
    assert bench.jobs.served == {"a": [], "b": ["m"]}


def test_a_job_that_missed_a_question_is_tried_where_no_other_answers(
    bench: Bench,
) -> None:
    """It may only be slow; requests that another replica can take do not wait for it."""
    bench.scale("m", 2)
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
    bench.scale("m", 2)
    for _ in range(3):
        bench.look()
    assert bench.routes == {"m": ("a", "b")}
    bench.jobs.dead.add("b")
    bench.look_for(10)
    bench.look()
    assert bench.fleet.packing() == {"m": ("a",)}
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
    assert not bench.fleet.jobs["a"].is_down
    bench.look_for(10)
    assert bench.fleet.jobs["a"].is_down


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
    assert bench.fleet.models["m"].memory_bytes == 80 * MIB


def test_a_job_that_leaves_serves_until_others_do(bench: Bench) -> None:
    """Then it is told to serve nothing and its channel is closed: no request fails."""
    bench.look()
    bench.look()
    bench.state.change(edits.drain_job("a"))
    for _ in range(3):
        bench.look()
        assert bench.routes["m"]
    assert bench.routes == {"m": ("b",)}
    bench.look()
    assert set(bench.fleet.jobs) == {"b"}
    assert bench.jobs.served == {"a": [], "b": ["m"]}
    assert bench.jobs.kept == {"b"}


def test_a_job_that_leaves_stays_while_it_is_not_known_what_it_serves(
    bench: Bench,
) -> None:
    """It may be the only one that answers: it missed a question, or asking just began."""
    bench.look()
    bench.look()
    bench.state.change(edits.drain_job("a"))
    bench.jobs.dead.add("a")
    bench.look()
    assert set(bench.fleet.jobs) == {"a", "b"}
    bench.look_for(10)  # given up: there is nothing to wait for
    assert set(bench.fleet.jobs) == {"b"}


def test_a_job_that_is_forced_out_is_let_go_at_once(bench: Bench) -> None:
    """Whatever it serves, no request goes there any more."""
    bench.look()
    bench.look()
    bench.state.change(edits.drain_job("a", force=True))
    bench.look()
    assert bench.jobs.kept == {"b"}
    assert bench.routes == {"m": ()}
    bench.look()
    assert bench.routes == {"m": ("b",)}


def test_a_job_that_is_gone_is_neither_asked_nor_left_open(tmp_path: Path) -> None:
    """Its question waited for a thread, or began just before it was removed."""
    bench = Bench(tmp_path)
    waiting = HeldExecutor()
    bench.synchronizer = bench.make(waiting)
    bench.look()
    bench.state.change(edits.drain_job("a", force=True))
    bench.look()
    assert bench.jobs.kept == {"b"}

    def remove(address: str) -> None:
        bench.jobs.on_asked = lambda _: None
        bench.state.change(edits.drain_job(address, force=True))
        bench.look()

    bench.jobs.on_asked = remove
    waiting.run_held()  # a's question, then b's, which b does not outlive
    assert bench.jobs.asked == ["b"]
    assert bench.jobs.kept == set()


def test_a_router_beside_the_synchronizer_tells_nothing(tmp_path: Path) -> None:
    """Two that see different jobs would move models to and fro."""
    bench = Bench(tmp_path, only_routes=True)
    bench.jobs.served["b"] = ["m"]
    bench.jobs.dead.add("a")
    revision = bench.state.read().revision
    for _ in range(40):
        bench.look()
    assert bench.routes == {"m": ("b",)}
    assert not bench.jobs.told
    assert bench.state.read().revision == revision


def test_a_store_that_is_lost_takes_no_route_and_no_model_away(bench: Bench) -> None:
    """What serves goes on; an empty store is one only for who begins with it."""
    bench.look_for(4)
    files = sorted(each for each in bench.path.iterdir() if "fleet.db" in each.name)
    for each in files:
        each.rename(bench.path / f"kept-{each.name}")
    told = list(bench.jobs.told)
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="at revision 0"):
            bench.look()
    assert bench.routes == {"m": ("a",)}
    assert (bench.jobs.told, bench.jobs.kept) == (told, {"a", "b"})
    for each in files:
        (bench.path / f"kept-{each.name}").rename(each)
    bench.look()
    assert bench.routes == {"m": ("a",)}


def test_servers_are_asked_and_routed_to_while_the_store_is_away(bench: Bench) -> None:
    """A server that ends gets no requests, and none that comes back waits; nobody is told."""
    bench.scale("m", 2)
    bench.look_for(3)
    assert bench.routes == {"m": ("a", "b")}
    bench.store.is_away = True
    bench.jobs.told.clear()
    bench.jobs.dead.add("a")
    for _ in range(30):
        bench.clock.advance(1.0)
        bench.synchronizer.look_safely()
    assert bench.routes == {"m": ("b",)}
    bench.jobs.dead.clear()
    bench.jobs.started_s["a"] = 2.0
    for _ in range(2):
        bench.synchronizer.look_safely()
    assert bench.routes == {"m": ("a", "b")}
    assert not bench.jobs.told


def test_a_start_without_the_store_goes_on_from_the_copy(bench: Bench) -> None:
    """A router that is started again while the store is away routes as before."""
    bench.look_for(3)
    bench.store.is_away = True
    bench.routes = {}
    bench.state = FleetState(bench.store, bench.copy())
    again = bench.make()
    for _ in range(2):
        again.look_safely()
    assert bench.routes == {"m": ("a",)}


def test_a_start_with_a_store_that_is_empty_goes_on_from_the_copy(bench: Bench) -> None:
    """Who opens a store whose file went makes a new one, in which there is no model."""
    bench.look_for(3)
    for each in list(bench.path.iterdir()):
        if "fleet.db" in each.name:
            each.rename(bench.path / f"kept-{each.name}")
    bench.routes = {}
    store = SqliteStore(str(bench.path / "fleet.db"), bench.clock)
    bench.state = FleetState(store, bench.copy())
    again = bench.make()
    for _ in range(2):
        with pytest.raises(FailedPrecondition, match="older copy"):
            again.look()
    assert bench.routes == {"m": ("a",)}


def test_one_of_two_synchronizers_leads(bench: Bench) -> None:
    """The other takes its place when it is gone, and it tells nobody when it is back."""
    other = bench.make(name="other")
    bench.look_for(3)
    other.look()
    bench.jobs.told.clear()
    bench.jobs.started_s["a"] = 2.0
    other.look_safely()
    assert not bench.jobs.told
    bench.look()
    assert bench.jobs.told == [("a", ("m",))]
    bench.jobs.told.clear()
    bench.clock.advance(6.0)  # as long as it was stopped
    other.look()
    assert ("a", ("m",)) in bench.jobs.told
    bench.jobs.told.clear()
    bench.synchronizer.look()
    assert not bench.jobs.told


def test_who_ends_makes_way_for_the_next_at_once(bench: Bench) -> None:
    """A fleet that is started again leads as soon as it is there, and tells its servers."""
    other = bench.make(name="other")
    bench.look_for(3)
    other.look()
    bench.jobs.told.clear()
    bench.synchronizer.close()
    other.look()
    assert ("a", ("m",)) in bench.jobs.told


def test_who_lost_the_lease_in_the_midst_of_a_look_tells_nobody(bench: Bench) -> None:
    """What was decided before a pause is not said after it."""
    threads = HeldExecutor()
    paused = bench.make(threads)
    bench.synchronizer.look()  # only so that servers have answered somebody
    paused.look()
    threads.run_held()
    bench.clock.advance(1.0)
    paused.look()  # hands over what is to be told
    told = list(bench.jobs.told)
    bench.clock.advance(6.0)
    threads.run_held()
    assert bench.jobs.told == told


@pytest.mark.parametrize("down_after_s", [2.0, 10.0])
def test_no_job_is_down_because_nobody_looked(
    tmp_path: Path, down_after_s: float
) -> None:
    """While this machine is asleep, no job can answer."""
    bench = Bench(tmp_path)
    threads = HeldExecutor()
    bench.synchronizer = bench.make(threads, down_after_s=down_after_s)

    def look(after_s: float = 1.0) -> None:
        bench.look(after_s)
        threads.run_held()  # jobs answer after the look that asked them

    bench.scale("m", 2)
    for _ in range(4):
        look()
    bench.jobs.told.clear()
    for after_s in (600, 1):
        look(after_s)
        assert not any(each.is_down for each in bench.fleet.jobs.values())
    assert bench.routes == {"m": ("a", "b")}
    # The same again, because another could have led meanwhile.
    assert bench.jobs.told == [("a", ("m",)), ("b", ("m",))]


def test_a_server_that_was_started_again_answers_when_it_has(tmp_path: Path) -> None:
    """What the process before it said does not count, and takes no request."""
    bench = Bench(tmp_path)
    threads = HeldExecutor()
    bench.synchronizer = bench.make(threads)
    for _ in range(4):
        bench.look()
        threads.run_held()

    def seen() -> JobSighting:
        return bench.state.read().jobs_seen["a"]

    assert seen() == JobSighting(("a",))
    assert bench.routes == {"m": ("a",)}
    bench.clock.advance(0.1)
    again = Replica("a", started_s=bench.clock.now())
    bench.running.seen = {"a": [again]}
    bench.look(0.1)
    assert seen() == JobSighting()
    assert bench.routes == {"m": ()}
    threads.run_held()
    bench.look()
    assert seen() == JobSighting(("a",))
    assert bench.routes == {"m": ("a",)}


def test_a_server_does_as_told_once_it_has_the_limits_of_its_job(bench: Bench) -> None:
    """Until then the job waits for it, and says why."""
    bench.look_for(4)
    bench.running.seen = {"a": [Replica("a", "", (MIB, 1))]}
    bench.look()
    waits = waits_for(bench.state.read(), pb.Op(job="a"))
    assert waits.what == "1 of 1 replicas to answer: a has its limits of before"
    assert bench.routes == {"m": ("a",)}
    bench.running.seen = {"a": [Replica("a", "", (100 * MIB, 0))]}
    bench.look()
    assert not waits_for(bench.state.read(), pb.Op(job="a")).what


def test_a_model_that_is_woken_has_a_server_at_the_next_look(bench: Bench) -> None:
    """Whoever leads: a request waits for it; one that is gone meanwhile is nobody's fault."""
    made = replace(model("t"), is_temp=True, min_replicas=0, num_replicas=0)
    bench.state.change(edits.add_model(made))
    bench.look_for(3)
    assert bench.fleet.packing()["t"] == ()
    for each in ("t", "gone"):
        bench.synchronizer.wake(each)
    bench.look_for(3)
    assert len(bench.fleet.packing()["t"]) == 1
    assert "t" in bench.jobs.served["a"] + bench.jobs.served["b"]


def test_a_job_is_down_when_none_of_its_replicas_answers(bench: Bench) -> None:
    """One of two that is gone takes no model away; what is left answers for both."""
    pair = replace(server("pair", 300 * MIB), num_replicas=2, addresses=("c", "d"))
    bench.state.change(edits.put_job(pair))
    bench.jobs.served |= {"c": [], "d": []}
    bench.jobs.started_s |= {"c": 1.0, "d": 1.0}
    bench.scale("m", 4)
    bench.look_for(3)
    assert set(bench.routes["m"]) == {"a", "b", "c", "d"}
    bench.jobs.dead.add("c")
    bench.look_for(12)
    assert not bench.fleet.jobs["pair"].is_down
    assert set(bench.routes["m"]) == {"a", "b", "d"}
    bench.jobs.dead.add("d")
    bench.look_for(11)
    assert bench.fleet.jobs["pair"].is_down


def test_a_job_that_ends_while_nobody_looks_is_given_its_patience(bench: Bench) -> None:
    """What it was silent before counts as ever."""
    bench.look_for(3)
    bench.jobs.dead.add("a")
    bench.look_for(5)
    bench.look(600)
    assert not bench.fleet.jobs["a"].is_down
    bench.look_for(10)
    assert bench.fleet.jobs["a"].is_down


def test_the_thread_outlives_a_store_that_cannot_be_read(bench: Bench) -> None:
    """Routes stay as they were until it can; a nudge has it look at once."""
    bench.look_for(2)
    bench.store.is_away = True
    with pytest.raises(Unavailable):
        bench.look()
    assert bench.routes == {"m": ("a",)}
    bench.synchronizer.start()
    bench.clock.block_until_sleepers(1)
    bench.synchronizer.nudge()
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
