"""The Controller API: each request acts once, and is answered when it is in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hosted.fleets import MIB, check, server, state_in
from tfs.core.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    Unavailable,
)
from tfs.hosted import edits
from tfs.hosted.controller import Controller
from tfs.hosted.controller_report import waits_for
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet import Job, read_config
from tfs.hosted.identities import Identities, Identity
from tfs.hosted.reports import JobSighting, ReplicaSighting
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.testing.fake_clock import FakeClock


def estimate(path: str) -> int:
    if path == "/unseen":
        raise FailedPrecondition("cannot be looked at from here")
    return 10 * MIB


class Api:
    """A controller over two servers, and what they are said to do."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.state = state_in(folder)
        self.num_nudges = 0
        self.controller = Controller(
            self.state, EditReader(check, estimate), self.clock, self.nudge
        )
        self.ops: list[pb.Op] = []
        self.num_requests = 0
        for address in ("a", "b"):
            self.state.change(edits.put_job(server(address, 100 * MIB)))

    def nudge(self) -> None:
        self.num_nudges += 1

    def ask(self, request: Any, request_id: str = "", **edit: Any) -> list[pb.Op]:
        """Sends a request; returns its answers so far."""
        self.num_requests += 1
        request.edit.request_id = request_id or f"r{self.num_requests}"
        for name, value in edit.items():
            setattr(request.edit, name, value)
        answers: list[pb.Op] = []
        self.controller.change(request, None, answers.append)
        return answers

    def add_model(self, name: str = "m", **fields: Any) -> list[pb.Op]:
        path = fields.pop("base_path", str(self.folder))
        fields.setdefault("hints", pb.Hints(min_replicas=1))
        return self.ask(pb.AddModelRequest(model=name, base_path=path, **fields))

    def see(self, name: str = "m", **at: ReplicaSighting) -> None:
        """Notes what a synchronizer saw, and has the controller take it."""
        jobs = {each: JobSighting((each,)) for each in ("a", "b")}
        self.state.note({name: at if at else None}, jobs)
        self.controller.take(self.state.read())

    def place(self, name: str = "m") -> tuple[str, ...]:
        return self.state.read().fleet.packing()[name]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    for version in (1, 2, 3):
        (tmp_path / f"{version}").mkdir()
    return Api(tmp_path)


def serves(generation: int, primary: int | None = 3, **more: Any) -> ReplicaSighting:
    versions = () if primary is None else (primary,)
    return ReplicaSighting(generation, primary, **{"versions": versions, **more})


def test_a_request_is_answered_when_it_is_in_force(api: Api) -> None:
    """Told, loaded and answering: not before; then at once."""
    answers = api.add_model()
    assert api.num_nudges == 1
    api.see()
    assert not answers
    api.see(a=serves(0, None, coming=(3,)))
    api.see(a=serves(0))
    assert not answers
    api.see(a=serves(1))
    (op,) = answers
    assert (op.what, op.model, op.generation, op.waits_for) == (
        "add-model m",
        "m",
        1,
        "",
    )
    api.see(a=serves(1))
    assert len(answers) == 1


def test_servers_that_are_asked_for_are_waited_for(api: Api) -> None:
    """Also those that are started for it; until then it says so."""
    api.state.change(
        edits.put_job(replace(server("a", 100 * MIB), max_replicas=3, min_replicas=1))
    )
    api.state.change(edits.drain_job("b", force=True))
    api.add_model(hints=pb.Hints(min_replicas=1, max_replicas=3))
    answers = api.ask(
        pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=2)), "scaled"
    )
    seen = {"m": {"a": serves(2), "a2": serves(2)}}
    api.state.note(seen, {"a": JobSighting(("a",))})
    api.controller.take(api.state.read())
    assert not answers
    op = api.controller.op(pb.GetOpRequest(request_id="scaled"))
    assert op.waits_for == "1 of 2 servers"
    api.state.note({}, {"a": JobSighting(("a", "a2"))})
    api.controller.take(api.state.read())
    assert answers


@pytest.mark.parametrize("by_deadline", [True, False])
def test_a_request_that_takes_too_long_says_what_it_waits_for(
    api: Api, by_deadline: bool
) -> None:
    """The caller's patience counts; the request goes on without it."""
    hints = pb.Hints(min_replicas=1)
    request = pb.AddModelRequest(model="m", base_path=str(api.folder), hints=hints)
    request.edit.request_id = "1"
    answers: list[pb.Op] = []
    if by_deadline:
        deadline_s = api.clock.now() + 5
        api.controller.change(request, deadline_s, answers.append)
    else:
        request.edit.wait_s = 4.0
        api.controller.change(request, None, answers.append)
    api.see(a=serves(1, None, coming=(3,)))
    assert not answers
    api.clock.advance(4.6)
    api.see(a=serves(1, None, coming=(3,)))
    assert answers[0].waits_for == "a version on a"
    assert api.controller.op(pb.GetOpRequest(request_id="1")).waits_for
    api.see(a=serves(1))
    assert not api.controller.op(pb.GetOpRequest(request_id="1")).waits_for


def test_a_load_that_failed_is_not_waited_for(api: Api) -> None:
    """It is tried again, but nobody knows whether that helps: the caller hears why."""
    answers = api.add_model()
    api.see(a=serves(1, None, problem="model.pt is damaged"))
    assert answers[0].waits_for == "a version on a: model.pt is damaged"


def test_what_failed_before_a_change_says_nothing_of_it(api: Api) -> None:
    """Until a server has taken a change in, its problem is that of what it had."""
    api.add_model()
    api.see(a=serves(1, 2, problem="m/3: validation against version 2"))
    answers = api.ask(pb.UpdateModelRequest(model="m", config="validation {}"))
    assert not answers
    api.see(a=serves(2, 2, problem="m/3: validation against version 2"))
    assert not answers[0].waits_for


def test_a_version_has_failed_once_a_server_says_so_of_it(api: Api) -> None:
    """What is wrong with the one before says nothing of one that was not found yet."""
    api.add_model()
    before = serves(1, 2, problem="m/2 differs", failed=(2,))
    api.see(a=before)
    answers = api.ask(pb.AddVersionRequest(model="m", version=3))
    api.see(a=replace(before, generation=2))
    assert not answers
    api.see(a=serves(2, 2, problem="m/3 differs", failed=(3, 2)))
    assert answers[0].waits_for == "version 3 on a: m/3 differs"


def test_a_version_that_was_promoted_before_it_came_is_waited_for(api: Api) -> None:
    """That it was missing says nothing of it any more; that it fails to load does."""
    api.add_model()
    api.see(a=serves(1))
    for number, answer in (
        (4, serves(3, 4)),
        (5, serves(5, 4, problem="m/5 differs", failed=(5,))),
    ):
        api.ask(pb.SetPolicyRequest(model="m", pinned=pb.Pinned(version=number)))
        (api.folder / f"{number}").mkdir()
        answers = api.ask(pb.AddVersionRequest(model="m", version=number))
        api.see(
            a=replace(answer, primary=3, failed=(), versions=(3,), problem="absent")
        )
        assert not answers
        api.see(a=answer)
        assert answers[0].waits_for.endswith(answer.problem)


def test_a_base_path_without_the_pinned_version_is_no_success(api: Api) -> None:
    """Servers go on with what they have of it, so they would say that all is well."""
    api.add_model()
    api.see(a=serves(1))
    api.ask(pb.SetPolicyRequest(model="m", pinned=pb.Pinned(version=3)))
    api.see(a=serves(2))
    elsewhere = api.folder / "elsewhere"
    (elsewhere / "1").mkdir(parents=True)
    asked = pb.UpdateModelRequest(model="m", base_path=str(elsewhere))
    dry_run = api.controller.simulate(pb.SimulateRequest(update_model=asked))
    (op,) = api.ask(asked)
    assert op.waits_for
    assert f"version 3 is not in {elsewhere}, which has 1" in op.notes[0]
    assert dry_run.notes == op.notes


def test_a_config_names_no_other_model_or_base_path(api: Api) -> None:
    """It may repeat what the request says, as a config that is shown does."""
    path = str(api.folder)
    both = f'name: "m" base_path: "{path}"'
    api.add_model(config=both)
    api.ask(pb.UpdateModelRequest(model="m", config=both))
    for wrong in ('name: "x"', 'base_path: "/x"'):
        with pytest.raises(InvalidArgument, match="says something else"):
            api.ask(pb.UpdateModelRequest(model="m", config=wrong))
        with pytest.raises(InvalidArgument, match="says something else"):
            api.add_model("n", config=wrong)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=9)), "scale m"),
        (pb.DrainJobRequest(job="absent"), "remove-job absent"),
    ],
)
def test_a_change_is_called_as_its_command_is(
    api: Api, request_: Any, word: str
) -> None:
    """Done or refused, it is the one word that users know."""
    api.add_model()
    edit = EditReader(check, estimate).read(request_, api.state.read())
    assert edit.why == word


def test_all_replicas_that_answer_count(api: Api) -> None:
    """What holds on one of two servers is not in force."""
    answers = api.add_model(hints=pb.Hints(min_replicas=2))
    api.see(a=serves(1))
    assert not answers
    api.see(a=serves(1), b=serves(1))
    assert answers


def test_policies_are_in_force_when_servers_say_so(api: Api) -> None:
    """Pinned, on trial, rolled back, and the newest again."""
    api.add_model()
    api.see(a=serves(1))

    def policy(**fields: Any) -> list[pb.Op]:
        return api.ask(pb.SetPolicyRequest(model="m", **fields))

    canary = pb.CanaryPolicy()
    canary.canary.version = 2
    trial = policy(canary=canary)
    traffic = read_config(api.state.read().fleet.models["m"].config).traffic
    assert (traffic.primary, traffic.canary.version) == (3, 2)
    api.see(a=serves(2))
    assert not trial
    api.see(a=serves(2, canary=2, versions=(2, 3)))
    assert trial[0].what == "canary 2 of m"
    ended = policy(rollback=pb.Rollback())
    api.see(a=serves(3, 3))
    assert ended[0].what == "rollback to 3 of m"  # of the trial, and of nothing else
    pinned = policy(pinned=pb.Pinned(version=2))
    api.see(a=serves(4, 3))
    assert not pinned
    api.see(a=serves(4, 2))
    assert pinned[0].what == "promote to 2 of m"
    rolled = policy(rollback=pb.Rollback())
    api.see(a=serves(5, 1))
    assert rolled[0].what == "rollback to 1 of m"
    with pytest.raises(FailedPrecondition, match="say which one to return to"):
        policy(rollback=pb.Rollback())
    newest = policy(latest=pb.Latest())
    api.see(a=serves(6, 3))
    assert newest
    assert not read_config(api.state.read().fleet.models["m"].config).HasField(
        "traffic"
    )
    with pytest.raises(InvalidArgument, match="a policy is"):
        policy()
    missing = policy(pinned=pb.Pinned(version=9))
    assert not missing
    api.see(a=serves(7, 3, problem="9 is not there"))
    told = "version 9 as the one that answers on a: 9 is not there"
    assert told in missing[0].waits_for
    last = api.controller.op(pb.GetOpRequest(request_id=f"r{api.num_requests}"))
    assert told in last.waits_for


def test_a_trial_without_anybody_who_answers_needs_a_primary(api: Api) -> None:
    """Nobody guesses which version callers should get."""
    api.add_model()
    request = pb.SetPolicyRequest(model="m")
    request.canary.canary.version = 2
    with pytest.raises(FailedPrecondition, match="say which is the primary"):
        api.ask(request)
    request.canary.primary = 1
    api.ask(request)


def test_a_new_version_is_waited_for(api: Api) -> None:
    """It is there, or refused; in force when it is available wherever the model is."""
    api.add_model()
    api.see(a=serves(1, 2))
    with pytest.raises(NotFound, match=r"version 9 is not in .*, which has 1, 2, 3"):
        api.ask(pb.AddVersionRequest(model="m", version=9))
    answers = api.ask(pb.AddVersionRequest(model="m", version=3))
    api.see(a=serves(2, 2))
    assert not answers
    api.see(a=serves(2, 3))
    assert answers


@pytest.mark.parametrize(
    ("config", "is_told"),
    [
        ("", True),
        ("model_version_policy { latest { num_versions: 2 } }", True),
        ("model_version_policy { latest { num_versions: 3 } }", False),
        ("model_version_policy { all {} }", False),
        ("model_version_policy { specific { versions: 1 } }", False),
        ('version_labels { key: "old" value: 1 }', False),
        ("excluded_versions: 3 excluded_versions: 2", False),
        ("traffic { primary: 1 }", False),
    ],
)
def test_an_older_version_that_the_policy_passes_over_is_told_at_once(
    api: Api, config: str, *, is_told: bool
) -> None:
    """It would be waited for in vain; one that the policy asks for is waited for."""
    api.add_model(config=config)
    api.see(a=serves(1))
    request = pb.AddVersionRequest(model="m", version=1)
    answers = api.ask(request)
    assert bool(answers) is is_told
    for op in answers:
        (note,) = op.notes
        assert note.startswith("version 3 is newer: version 1 is loaded only if")
        assert op.waits_for


def test_a_model_that_goes_is_waited_for(api: Api) -> None:
    """Removed is what no server has any more."""
    api.add_model()
    api.see(a=serves(1))
    answers = api.ask(pb.RemoveModelRequest(model="m"))
    assert not answers
    api.see()
    assert answers[0].generation == 0


def test_fields_that_are_absent_stay(api: Api) -> None:
    """An update changes what it names; hints likewise."""
    config = 'version_labels { key: "x" value: 1 }'
    api.add_model(config=config, hints=pb.Hints(memory_bytes=MIB, max_replicas=3))
    api.ask(pb.UpdateModelRequest(model="m", base_path="/moved"))
    found = api.state.read().fleet.models["m"]
    assert read_config(found.config).base_path == "/moved"
    assert read_config(found.config).version_labels["x"] == 1
    api.ask(pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=2)))
    found = api.state.read().fleet.models["m"]
    assert (found.min_replicas, found.max_replicas, found.memory_bytes) == (2, 3, MIB)
    api.ask(pb.SetHintsRequest(model="m", hints=pb.Hints(memory_bytes=0)))
    assert api.state.read().fleet.models["m"].is_estimate
    api.ask(pb.UpdateModelRequest(model="m", config='model_platform: "hashmap"'))
    changed = read_config(api.state.read().fleet.models["m"].config)
    assert (changed.model_platform, changed.base_path) == ("hashmap", "/moved")
    assert not changed.version_labels
    with pytest.raises(InvalidArgument, match="platform"):
        api.ask(pb.UpdateModelRequest(model="m", config='model_platform: "absent"'))
    with pytest.raises(ResourceExhausted, match="partition 'gpu'"):
        api.ask(pb.UpdateModelRequest(model="m", partition="gpu"))


def test_prod_has_three_copies_by_default_and_temp_two(api: Api) -> None:
    """As many as there are servers, which why tells; more follow when servers come."""
    known = Identities({"tim": Identity("editor", instance="temp")})
    reader = EditReader(check, estimate, identities=known)
    controller = Controller(api.state, reader, api.clock)

    def add(name: str, owner: str, **hints: int) -> None:
        path, number = str(api.folder), pb.Hints(**hints)
        request = pb.AddModelRequest(model=name, base_path=path, hints=number)
        request.edit.request_id = name
        controller.change(request, None, lambda op: None, owner)

    def report(name: str) -> pb.ModelInfo:
        return controller.model(pb.GetModelRequest(model=name, num_changes=1))

    add("m", "")
    add("temp", "tim")
    assert set(api.place("m")) == set(api.place("temp")) == {"a", "b"}
    assert (report("m").num_replicas, report("m").hints.min_replicas) == (2, 3)
    short = "on 2 of 3 servers: there are no more for it"
    assert report("m").changes[0].why.endswith(short)
    api.state.change(edits.put_job(server("b", 50 * MIB)))
    with pytest.raises(ResourceExhausted, match=r"1 of 2 .* or ask for fewer replicas"):
        add("large", "", memory_bytes=40 * MIB)
    api.state.change(edits.put_job(server("c", 100 * MIB)))
    assert set(api.place("m")) == {"a", "b", "c"}
    assert len(api.place("temp")) == 2
    assert report("m").num_replicas == 3
    assert report("m").changes[0].why.startswith("add-job c; placed on c")
    api.ask(pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=1)))
    assert len(api.place("m")) == 1
    with pytest.raises(ResourceExhausted, match="no room for 1 of 4"):
        api.ask(pb.SetHintsRequest(model="m", hints=pb.Hints(min_replicas=4)))


def test_a_job_is_in_force_when_its_models_answer_there(api: Api) -> None:
    """Or have failed to: whoever then loses another job loses no model."""
    api.add_model("m", hints=pb.Hints())
    api.add_model("failing", hints=pb.Hints())
    api.see(a=serves(1), b=serves(1))
    added = api.ask(pb.AddJobRequest(job="c:1", memory_bytes=100 * MIB))
    jobs = {each: JobSighting((each,)) for each in ("a", "b", "c:1")}
    failed = {"c:1": serves(1, None, problem="model.pt is damaged")}
    api.state.note({"failing": failed}, jobs)
    api.controller.take(api.state.read())
    assert not added
    asked = pb.GetOpRequest(request_id=f"r{api.num_requests}")
    assert api.controller.op(asked).waits_for == "m to answer on c:1"
    api.state.note({"m": {"c:1": serves(1)}}, jobs)
    api.controller.take(api.state.read())
    assert added


def test_a_job_counts_those_of_its_servers_that_do_as_told(api: Api) -> None:
    """One that is drained may still answer; it is none of those that are waited for."""
    fewer = Job("own", MIB, is_ours=True, addresses=("x",))
    api.state.change(edits.put_job(fewer))
    api.state.change(edits.set_addresses("own", ("x",)))
    api.state.note({}, {"own": JobSighting(("y", "z"), "x has its limits of before")})
    waits = waits_for(api.state.read(), pb.Op(job="own"))
    assert waits.what == "1 of 1 replicas to answer: x has its limits of before"
    api.state.note({}, {"own": JobSighting(("x", "y"))})
    assert not waits_for(api.state.read(), pb.Op(job="own")).what


def test_jobs_come_and_go_by_requests(api: Api) -> None:
    """Added when it answers, gone when it is removed."""
    added = api.ask(pb.AddJobRequest(job="c:1", memory_bytes=MIB))
    api.see()
    assert not added
    api.state.note({}, {"c:1": JobSighting(("c:1",))})
    api.controller.take(api.state.read())
    assert added[0].job == "c:1"
    drained = api.ask(pb.DrainJobRequest(job="c:1"))
    api.see()
    assert not drained
    api.state.change(edits.empty_job("c:1"))
    api.see()
    assert drained
    assert api.ask(pb.DrainJobRequest(job="b", force=True))
    with pytest.raises(FailedPrecondition, match="nothing here starts servers"):
        api.ask(pb.AddJobRequest(job="x", memory_bytes=MIB, num_replicas=2))


@pytest.mark.parametrize("address", ["dns:///h:1", "http://h:1", "h:99999", "::1", "h"])
def test_a_job_is_added_by_an_address_that_routers_can_use(
    api: Api, address: str
) -> None:
    """What only some of a fleet's processes would understand is refused."""
    asked = pb.AddJobRequest(job=address, memory_bytes=MIB)
    with pytest.raises(InvalidArgument):
        api.ask(asked)


@pytest.mark.parametrize("name", ["../x", "..", "a/b", "a b"])
def test_a_job_that_runs_here_is_named_so_that_it_has_a_folder(
    api: Api, name: str
) -> None:
    """Its folder goes with it, and that must not be somebody else's."""
    reader = EditReader(check, estimate, may_run_jobs=True)
    asked = pb.AddJobRequest(job=name, memory_bytes=MIB, num_replicas=1)
    refusal = Controller(api.state, reader, api.clock).simulate(
        pb.SimulateRequest(add_job=asked)
    )
    assert "choose a name of letters" in refusal.refusal


def test_a_dry_run_says_what_would_be_and_does_nothing(api: Api) -> None:
    """It tells moves, memory and refusals."""
    api.add_model("m")
    before = api.state.read()
    (at,) = api.place("m")

    def simulate(**request: Any) -> pb.Simulation:
        return api.controller.simulate(pb.SimulateRequest(**request))

    drained = simulate(drain_job=pb.DrainJobRequest(job=at))
    (move,) = drained.moves
    assert (move.model, list(move.from_jobs)) == ("m", [at])
    assert [job.num_models for job in drained.jobs if job.job != at] == [1]
    wide = pb.AddModelRequest(model="w", base_path="/w", hints=pb.Hints(min_replicas=3))
    assert "no room for 1 of 3" in simulate(add_model=wide).refusal
    assert (
        "cannot be looked at"
        in simulate(
            add_model=pb.AddModelRequest(model="w", base_path="/unseen")
        ).refusal
    )
    assert api.state.read() == before
    stale = pb.RemoveModelRequest(model="m", edit=pb.Edit(if_generation=9))
    assert "generation 1, not 9" in simulate(remove_model=stale).refusal
    with pytest.raises(InvalidArgument, match="nothing to simulate"):
        simulate()


def test_what_is_wrong_with_a_request_is_its_answer(api: Api) -> None:
    """Refused for good, with the reason in the model's history."""
    wrong = pb.AddModelRequest(
        model="m", base_path="/m", config='model_platform: "absent"'
    )
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="no such platform"):
            api.ask(wrong, "same")
    with pytest.raises(InvalidArgument, match="no such platform"):
        api.controller.op(pb.GetOpRequest(request_id="same"))
    (change,) = api.controller.model(
        pb.GetModelRequest(model="m", num_changes=9)
    ).changes
    assert "refused: no such platform" in change.why
    with pytest.raises(NotFound):
        api.controller.model(pb.GetModelRequest(model="m"))
    with pytest.raises(NotFound):
        api.controller.op(pb.GetOpRequest(request_id="other"))
    with pytest.raises(InvalidArgument, match="request_id"):
        api.ask(wrong, "x" * 201)


def test_a_repeated_request_is_not_read_again(api: Api) -> None:
    """What it would be refused for today does not matter: it acted before."""
    first = pb.AddVersionRequest(model="m", version=3)
    api.add_model()
    api.ask(first, "v")
    (api.folder / "3").rmdir()
    revision = api.state.read().revision
    api.see(a=serves(2, 3))
    (answer,) = api.ask(first, "v")
    assert answer.revision <= revision
    with pytest.raises(Aborted):
        api.ask(pb.RemoveModelRequest(model="m"), if_generation=1)


def test_a_watch_tells_what_changes(api: Api) -> None:
    """Now, after each change, never twice the same, and that it is gone."""
    told: list[pb.ModelInfo | None] = []
    is_open = True
    api.add_model()
    asked = pb.GetModelRequest(model="m")
    api.controller.watch(asked, told.append, lambda: is_open)
    api.see(a=serves(1))
    api.see(a=serves(1))
    waits = [each.waits_for for each in told if each]
    assert waits == ["a to answer", ""]
    api.ask(pb.RemoveModelRequest(model="m"))
    api.see()
    assert told[-1] is None
    api.add_model()
    api.controller.watch(asked, told.append, lambda: is_open)
    is_open = False
    number = len(told)
    api.see(a=serves(1))
    assert len(told) == number


def test_a_store_that_is_away_for_a_watch_holds_up_nobody_else(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch reads the store; if that fails, it is shown the next state."""
    told: list[pb.ModelInfo | None] = []
    added = [api.add_model("m"), api.add_model("n")]
    watched = pb.GetModelRequest(model="m", num_changes=1)
    api.controller.watch(watched, told.append, lambda: True)
    added.append(api.add_model("o"))

    def away(*, writes: bool) -> None:
        raise Unavailable("away")

    jobs = {each: JobSighting((each,)) for each in ("a", "b")}
    api.state.note({each: {"a": serves(1)} for each in ("m", "n", "o")}, jobs)
    now = api.state.read()
    with monkeypatch.context() as patch:
        patch.setattr(api.state.store, "begin", away)
        api.controller.take(now)
    api.controller.take(api.state.read())
    assert [len(each) for each in added] == [1, 1, 1]
    assert [each.waits_for for each in told if each] == ["a to answer", ""]


def test_the_fleet_is_reported_with_its_changes(api: Api) -> None:
    """What synchronizers note is no change that anybody made."""
    api.add_model()
    api.see(a=serves(1))
    report = api.controller.fleet(pb.ListFleetRequest(num_changes=9))
    assert [each.model for each in report.models] == ["m"]
    (a, _) = report.jobs
    assert (a.num_models, a.free_bytes, list(a.answering)) == (1, 80 * MIB, ["a"])
    assert [each.why.partition(";")[0] for each in report.changes] == [
        "add-model m",
        "add-job b",
        "add-job a",
    ]


def test_ten_thousand_repetitions_act_once(api: Api) -> None:
    """Whoever repeats them, in whatever order: one revision, one answer."""
    other = Controller(state_in(api.folder), EditReader(check, estimate), api.clock)
    requests = []
    for number in range(100):
        request = pb.AddModelRequest(
            model=f"m{number % 10}", base_path="/m", hints=pb.Hints(memory_bytes=MIB)
        )
        request.edit.request_id, request.edit.wait_s = f"{number}", 0.0
        requests.append(request)
    answers: dict[str, set[str]] = {}
    for repetition in range(100):
        controller = (api.controller, other)[repetition % 2]
        for request in requests:
            ops: list[pb.Op] = []
            try:
                controller.change(request, None, ops.append)
                said = f"{ops[0].revision}"
            except ServingError as error:
                said = str(error)
            answers.setdefault(request.edit.request_id, set()).add(said)
    assert len(api.state.read().fleet.models) == 10
    assert all(len(each) == 1 for each in answers.values())
