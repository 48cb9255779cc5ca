"""The changes of a fleet that users and reconcilers ask for: pure functions over a fleet.

An edit that was asked for is refused as a whole if anything would have no place for it.
Nothing here calls a server or the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sources.version_policy import list_versions
from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
)
from tfs.hosted.fleet import (
    Fleet,
    HostedModel,
    Job,
    ModelConfig,
    config_text,
    parse_model_config,
    read_config,
    room_for,
)
from tfs.hosted.fleet_state import Edit, Snapshot
from tfs.hosted.memory_estimate import versions_in
from tfs.hosted.placement import num_copies, num_servers, place
from tfs.hosted.reports import ModelSighting
from tfs.hosted.trials import UNTRIED, Tried, exclude, how_quarantined, judged
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2

# A smaller relative difference is not worth another placement.
_LEARNS_FROM: Final = 0.2

# The loss of any two servers loses no model of Prod.
_PROD_COPIES: Final = 3
_TEMP_COPIES: Final = 2

REQUESTS: Final = {
    pb.AddModelRequest: "add-model",
    pb.UpdateModelRequest: "update-model",
    pb.RemoveModelRequest: "remove-model",
    pb.AddVersionRequest: "add-version",
    pb.SetPolicyRequest: "set-policy",
    pb.SetHintsRequest: "set-hints",
    pb.AddJobRequest: "add-job",
    pb.DrainJobRequest: "remove-job",
}
"""How each request that changes something is called."""


# -- serving jobs ---------------------------------------------------------------------


def put_job(job: Job) -> Edit:
    """Adds or changes a serving job; models without a place may be placed there."""

    def apply(fleet: Fleet) -> Fleet:
        known = fleet.jobs.get(job.name)
        if known is not None and known.is_ours != job.is_ours:
            raise AlreadyExists(f"there is another kind of job {job.name}")
        made = job
        if known is not None:
            addresses = known.addresses if known.is_ours else job.addresses
            made = replace(job, addresses=addresses, generation=known.generation + 1)
        return _placed(replace(fleet, jobs={**fleet.jobs, job.name: made}))

    return Edit(f"add-job {job.name}", apply, job=job.name)


def drain_job(name: str, *, force: bool = False) -> Edit:
    """Moves a job's models elsewhere; the job is removed when they answer there.

    Refused with ResourceExhausted if some of its models would have no place. With
    ``force`` it is removed at once all the same.
    """

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None:
            raise NotFound(f"no serving job {name}")
        if force:
            return _placed(_without(fleet, name))
        leaving = replace(job, is_leaving=True, generation=job.generation + 1)
        return _complete(fleet, replace(fleet, jobs={**fleet.jobs, name: leaving}))

    return Edit(f"remove-job {name}", apply, job=name)


def drop_job(name: str) -> Edit:
    """Removes a job that was leaving and has no models any more."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or not job.is_leaving:
            return fleet
        return _placed(_without(fleet, name))

    return Edit(f"{name} left", apply, job=name)


def rest_job(name: str) -> Edit:
    """Leaves a job without models the fewest replicas that it may have."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if (
            job is None
            or job.num_replicas <= job.min_replicas
            or any(name in placed for placed in fleet.placement.values())
        ):
            return fleet
        resting = replace(job, num_replicas=job.min_replicas, is_down=False)
        return replace(fleet, jobs={**fleet.jobs, name: resting})

    return Edit(f"{name} has no models", apply, job=name)


def note_jobs(is_down: Mapping[str, bool]) -> Edit:
    """Notes which jobs stopped or resumed answering; moves models if necessary."""

    def apply(fleet: Fleet) -> Fleet:
        changed = {
            name: replace(fleet.jobs[name], is_down=each)
            for name, each in is_down.items()
            if name in fleet.jobs and fleet.jobs[name].is_down != each
        }
        if not changed:
            return fleet
        return _placed(replace(fleet, jobs={**fleet.jobs, **changed}))

    said = [f"{name} is {'down' if each else 'up'}" for name, each in is_down.items()]
    more = f", and {len(said) - 3} more changed" if len(said) > 3 else ""
    return Edit(", ".join(said[:3]) + more, apply)


def set_addresses(name: str, addresses: tuple[str, ...]) -> Edit:
    """Notes where the replicas of a job listen that the fleet runs itself."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or job.addresses == addresses:
            return fleet
        changed = replace(job, addresses=addresses)
        return replace(fleet, jobs={**fleet.jobs, name: changed})

    return Edit(f"{name} has {len(addresses)} replicas", apply, job=name)


# -- models ---------------------------------------------------------------------------


def add_model(model: HostedModel) -> Edit:
    """Adds a model, with a place for each of its replicas.

    Refused with AlreadyExists if there is one with that name, and with
    ResourceExhausted if there is no room.
    """

    def apply(fleet: Fleet) -> Fleet:
        if model.name in fleet.models:
            raise AlreadyExists(f"model {model.name} is served already")
        models = {**fleet.models, model.name: model}
        return _complete(fleet, replace(fleet, models=models))

    return Edit(f"add-model {model.name}", apply, model=model.name)


def update_model(
    name: str, update: Callable[[HostedModel], HostedModel], why: str
) -> Edit:
    """Replaces a model by what ``update`` makes of it, with a place for each replica.

    Refused with NotFound, and as :func:`add_model` is.
    """

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        after = replace(update(model), generation=model.generation + 1)
        # A hint comes before the load does: its job grows now.
        return _complete(fleet, replace(fleet, models={**fleet.models, name: after}))

    return Edit(f"{why} {name}", apply, model=name)


def remove_model(name: str) -> Edit:
    """Removes a model; NotFound if there is none with that name."""

    def apply(fleet: Fleet) -> Fleet:
        required(fleet, name)
        models = {each: m for each, m in fleet.models.items() if each != name}
        return _placed(replace(fleet, models=models))

    return Edit(f"remove-model {name}", apply, model=name)


def add_version(name: str, version: int, tried: Tried = UNTRIED) -> Edit:
    """Tells of a version that is in a model's base path; a pinned model refuses it.

    One that crashed when it was tried is quarantined. What it took then replaces an
    estimate; that is refused with ResourceExhausted if there is no room.
    """

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        traffic = read_config(model).traffic
        if traffic.primary and version not in (traffic.primary, traffic.canary.version):
            raise FailedPrecondition(
                f"version {traffic.primary} of {name} is pinned, so version {version} "
                "does not answer: put it on trial (canary), or promote it"
            )
        changed = replace(model, generation=model.generation + 1)
        changed = _with_size(judged(changed, version, tried), tried.version_bytes)
        after = replace(fleet, models={**fleet.models, name: changed})
        if changed.memory_bytes == model.memory_bytes:
            return after
        return _complete(fleet, after)

    why = f"add-version {version} of {name}"
    if tried.crash:
        why += f"; quarantined: {tried.crash}"
    notes = (tried.note,) if tried.note else ()
    return Edit(why, apply, name, version=version, notes=notes)


def set_traffic(name: str, traffic: model_config_pb2.Traffic | None, why: str) -> Edit:
    """Changes which versions of a model answer: canary, promotion, rollback.

    None lets the newest version answer.
    """

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        config = config_text(_with_traffic(model, traffic))
        changed = replace(model, config=config, generation=model.generation + 1)
        return replace(fleet, models={**fleet.models, name: changed})

    version = None
    if traffic is not None:
        on_trial = traffic.HasField("canary")
        version = traffic.canary.version if on_trial else traffic.primary
    return Edit(f"{why} {name}", apply, model=name, version=version)


def follow_load(wanted: Mapping[str, int]) -> Edit:
    """Gives models the number of replicas that load asks for, within their limits.

    Replicas without room are left out without an error, because no user asked for
    them.
    """

    def apply(fleet: Fleet) -> Fleet:
        for name, number in wanted.items():
            model = fleet.models.get(name)
            if model is None:
                continue
            now = min(max(number, model.min_replicas), model.max_replicas)
            for each in (
                *range(now, model.num_replicas, -1),
                min(now, model.num_replicas),
            ):
                changed = _with(fleet, replace(model, num_replicas=each))
                if each <= model.num_replicas or changed.num_placed(name) >= each:
                    fleet = changed
                    break
        return fleet

    said = ", ".join(f"{name} to {number}" for name, number in wanted.items())
    return Edit(f"load: {said}", apply)


def learn(measured: Mapping[str, int]) -> Edit:
    """Replaces estimates by what jobs have measured: bytes of the largest version."""

    def apply(fleet: Fleet) -> Fleet:
        for name, version_bytes in measured.items():
            model = fleet.models.get(name)
            if model is None:
                continue
            learned = _with_size(model, version_bytes)
            if learned is not model:
                fleet = _with(fleet, learned)
        return fleet

    return Edit("memory as measured", apply)


# -- requests -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EditReader:
    """Turns requests of the Controller API into edits. Immutable.

    Calls block on the disk where base paths are.

    Attributes:
        check: Raises a ``ServingError`` for a model's config that no server would
            accept, because a server refuses its whole config if one model is wrong.
        estimate: Returns the bytes of the newest version below a base path, or raises.
        may_run_jobs: Whether something here starts the replicas of jobs.

    """

    check: Callable[[ModelConfig], object]
    estimate: Callable[[str], int]
    may_run_jobs: bool = False

    def read(
        self,
        request: Any,
        now: Snapshot,
        tried: Tried = UNTRIED,
        *,
        is_temp: bool = False,
    ) -> Edit:
        """Returns a request's edit; it raises what is wrong with the request.

        Args:
            request: A request that has an Edit.
            now: The fleet.
            tried: What came of trying the version that it brings.
            is_temp: Whether a model that is added belongs to Temp.

        """
        try:
            match request:
                case pb.AddModelRequest():
                    return add_model(self._new_model(request, tried, is_temp))
                case pb.UpdateModelRequest():
                    return self._update_model(request)
                case pb.RemoveModelRequest():
                    return remove_model(request.model)
                case pb.AddVersionRequest():
                    return _add_version(request, now, tried)
                case pb.SetPolicyRequest():
                    return self._set_policy(request, now)
                case pb.SetHintsRequest():
                    return _set_hints(request)
                case pb.AddJobRequest():
                    return put_job(self._job(request))
                case _:
                    return drain_job(request.job, force=request.force)
        except ServingError as error:
            return _refused(request, error)

    def _new_model(
        self, asked: pb.AddModelRequest, tried: Tried, is_temp: bool
    ) -> HostedModel:
        config = parse_model_config(asked.config)
        config.name, config.base_path = asked.model, asked.base_path
        self.check(config)
        if tried.crash:
            raise FailedPrecondition(f"its newest version crashes: {tried.crash}")
        hints = asked.hints
        by_default = not hints.HasField("min_replicas")
        least, most = hints.min_replicas, hints.max_replicas
        if by_default:
            least = _TEMP_COPIES if is_temp else _PROD_COPIES
            least = min(least, most or least)
        size = hints.memory_bytes or room_for(
            config, tried.version_bytes or self.estimate(config.base_path)
        )
        return HostedModel(
            config.name,
            config_text(config),
            size,
            is_estimate=not hints.memory_bytes,
            min_replicas=least,
            max_replicas=most or least,
            partition=asked.partition,
            num_replicas=least,
            is_on_demand=config.residency == model_config_pb2.ON_DEMAND,
            cpus=hints.cpus,
            is_temp=is_temp,
            copies_by_default=by_default,
        )

    def _update_model(self, asked: pb.UpdateModelRequest) -> Edit:
        def changed(model: HostedModel) -> HostedModel:
            config = before = read_config(model)
            if asked.HasField("config"):
                config = parse_model_config(asked.config)
                if not config.HasField("traffic") and before.HasField("traffic"):
                    config.traffic.CopyFrom(before.traffic)
                exclude(config, map(int, model.quarantined))
            config.name, config.base_path = model.name, before.base_path
            if asked.HasField("base_path"):
                config.base_path = asked.base_path
            self.check(config)
            partition = model.partition
            if asked.HasField("partition"):
                partition = asked.partition
            return replace(
                model,
                config=config_text(config),
                partition=partition,
                is_on_demand=config.residency == model_config_pb2.ON_DEMAND,
            )

        return update_model(asked.model, changed, "update-model")

    def _set_policy(self, asked: pb.SetPolicyRequest, now: Snapshot) -> Edit:
        model = required(now.fleet, asked.model)
        policy = asked.WhichOneof("policy")
        seen = now.models_seen.get(asked.model, ModelSighting())
        answers = [each.primary for each in seen.replicas.values() if each.primary]
        traffic: model_config_pb2.Traffic | None = None
        if policy == "latest":
            why = "latest version of"
        elif policy == "pinned":
            traffic = model_config_pb2.Traffic(primary=asked.pinned.version)
            why = f"promote to {asked.pinned.version} of"
        elif policy == "canary":
            traffic = model_config_pb2.Traffic(canary=asked.canary.canary)
            if asked.canary.HasField("primary"):
                traffic.primary = asked.canary.primary
            elif answers:
                traffic.primary = min(answers)
            else:
                raise FailedPrecondition(
                    f"no version of {asked.model} answers; say which is the primary"
                )
            why = f"canary {traffic.canary.version} of"
        elif policy == "rollback":
            version = _rollback_to(model, asked.rollback, answers)
            traffic = model_config_pb2.Traffic(primary=version)
            why = f"rollback to {version} of"
        else:
            raise InvalidArgument("a policy is latest, pinned, canary or rollback")
        self.check(_with_traffic(model, traffic))
        edit = set_traffic(asked.model, traffic, why)
        if str(edit.version) in model.quarantined:
            raise FailedPrecondition(how_quarantined(model, str(edit.version)))
        missing = edit.version is not None and _missing_version(model, edit.version)
        if not missing:
            return edit
        note = f"{missing}; until it is there, what answers now goes on"
        return replace(edit, notes=(note,))

    def _job(self, asked: pb.AddJobRequest) -> Job:
        is_ours = bool(asked.num_replicas or asked.max_replicas)
        if asked.instance not in ("", "prod", "temp"):
            raise InvalidArgument(f"an instance is prod or temp: {asked.instance!r}")
        if is_ours and not self.may_run_jobs:
            raise FailedPrecondition(
                "nothing here starts servers: tfs hosted up does; or add the address of "
                "one that runs"
            )
        return Job(
            asked.job,
            asked.memory_bytes,
            asked.partition,
            num_replicas=asked.num_replicas if is_ours else 1,
            min_replicas=asked.num_replicas if asked.max_replicas else 0,
            max_replicas=asked.max_replicas,
            cpus=asked.cpus,
            is_ours=is_ours,
            addresses=() if is_ours else (asked.job,),
            zone=asked.zone,
            is_temp=asked.instance == "temp",
        )


def _add_version(asked: pb.AddVersionRequest, now: Snapshot, tried: Tried) -> Edit:
    missing = _missing_version(required(now.fleet, asked.model), asked.version)
    if missing:
        raise NotFound(missing)
    return add_version(asked.model, asked.version, tried)


def _set_hints(asked: pb.SetHintsRequest) -> Edit:
    hints = asked.hints

    def changed(model: HostedModel) -> HostedModel:
        least, most = model.min_replicas, model.max_replicas
        number, by_default = model.num_replicas, model.copies_by_default
        if hints.HasField("min_replicas"):
            least, most = hints.min_replicas, max(hints.min_replicas, most)
            number, by_default = least if by_default else number, False
        if hints.HasField("max_replicas"):
            most = hints.max_replicas
        memory_bytes, is_estimate = model.memory_bytes, model.is_estimate
        if hints.HasField("memory_bytes"):
            is_estimate = not hints.memory_bytes
            memory_bytes = hints.memory_bytes or memory_bytes
        return replace(
            model,
            min_replicas=least,
            max_replicas=most,
            num_replicas=min(max(number, least), most),
            copies_by_default=by_default,
            memory_bytes=memory_bytes,
            is_estimate=is_estimate,
            cpus=hints.cpus if hints.HasField("cpus") else model.cpus,
        )

    return update_model(asked.model, changed, "set-hints")


def _refused(request: Any, error: ServingError) -> Edit:
    def apply(fleet: object) -> Any:
        raise error

    model, job = getattr(request, "model", ""), getattr(request, "job", "")
    return Edit(f"{REQUESTS[type(request)]} {model or job}", apply, model, job)


def _rollback_to(model: HostedModel, asked: pb.Rollback, answers: Sequence[int]) -> int:
    if asked.HasField("version"):
        return asked.version
    below = [
        each
        for each in versions_in(read_config(model).base_path) or ()
        if answers and each < min(answers) and str(each) not in model.quarantined
    ]
    if not below:
        raise FailedPrecondition(
            f"no version of {model.name} below the one that answers can be seen from "
            "here; say which one to return to"
        )
    return max(below)


def _missing_version(model: HostedModel, version: int) -> str:
    """Returns that a version is not there, as far as that can be seen from here."""
    path = read_config(model).base_path
    versions = versions_in(path)
    if versions is None or version in versions:
        return ""
    there = list_versions(sorted(versions)) or "none"
    return f"version {version} is not in {path}, which has {there}"


def _with_size(model: HostedModel, version_bytes: int) -> HostedModel:
    """Returns a model with what a version takes, if that was measured and is news."""
    if not model.is_estimate or version_bytes <= 0:
        return model
    size = room_for(read_config(model), version_bytes)
    if abs(size - model.memory_bytes) <= _LEARNS_FROM * model.memory_bytes:
        return model
    return replace(model, memory_bytes=size)


def required(fleet: Fleet, name: str) -> HostedModel:
    """Returns a model; NotFound, with the names there are, if there is none."""
    model = fleet.models.get(name)
    if model is None:
        known = ", ".join(sorted(fleet.models)) or "none; tfs hosted add-model adds one"
        raise NotFound(f"no model {name}; there are: {known}")
    return model


def _complete(before: Fleet, after: Fleet) -> Fleet:
    """Returns ``after`` with its models placed.

    Raises:
        ResourceExhausted: A model that had a place, or asks for one, has none; those of
            Temp that are not asked for give way.

    """
    after, shortfall = _settled(after)
    servers = num_servers(before.jobs)
    worse = {
        name: short
        for name, short in shortfall.items()
        if short > _shortfall(before, name, servers)
        and not (
            after.models[name].is_temp and after.models[name] is before.models.get(name)
        )
    }
    if worse:
        model = after.models[min(worse)]
        number = num_copies(model, num_servers(after.jobs))
        raise ResourceExhausted(
            f"no room for {worse[model.name]} of {number} replicas of {model.name}, "
            f"{model.memory_bytes / (1 << 20):.1f} MiB each"
            + (f", in partition {model.partition!r}" if model.partition else "")
            + "; add a serving job"
            + (", or ask for fewer replicas" if model.copies_by_default else "")
        )
    return after


def _with(fleet: Fleet, model: HostedModel) -> Fleet:
    return _placed(replace(fleet, models={**fleet.models, model.name: model}))


def _sized(fleet: Fleet) -> Mapping[str, Job]:
    """Gives jobs as many replicas as the busiest of their models wants, within limits."""
    if not any(job.max_replicas for job in fleet.jobs.values()):
        return fleet.jobs
    servers = num_servers(fleet.jobs)
    wanted: dict[str, int] = {}
    for name, placed in fleet.placement.items():
        number = num_copies(fleet.models[name], servers) if placed else 0
        for each in placed:
            wanted[each] = max(wanted.get(each, 0), number)
    jobs = dict(fleet.jobs)
    for name, number in wanted.items():
        job = jobs[name]
        if job.max_replicas:
            number = min(max(number, job.min_replicas), job.max_replicas)
            jobs[name] = replace(job, num_replicas=number)
    return jobs


def _without(fleet: Fleet, name: str) -> Fleet:
    jobs = {each: job for each, job in fleet.jobs.items() if each != name}
    return replace(fleet, jobs=jobs)


def _placed(fleet: Fleet) -> Fleet:
    return _settled(fleet)[0]


def _settled(fleet: Fleet) -> tuple[Fleet, Mapping[str, int]]:
    """Places models, and gives jobs the replicas that these want; says what is short."""
    found = place(fleet.models, fleet.jobs, fleet.placement)
    fleet = replace(fleet, placement=found.jobs)
    jobs = _sized(fleet)
    if jobs != fleet.jobs:
        found = place(fleet.models, jobs, fleet.placement)
        fleet = replace(fleet, jobs=jobs, placement=found.jobs)
    return fleet, found.shortfall


def _shortfall(fleet: Fleet, name: str, servers: Mapping[tuple[str, bool], int]) -> int:
    model = fleet.models.get(name)
    if model is None or name not in fleet.placement:
        return 0
    return max(num_copies(model, servers) - fleet.num_placed(name), 0)


def _with_traffic(
    model: HostedModel, traffic: model_config_pb2.Traffic | None
) -> ModelConfig:
    config = read_config(model)
    config.ClearField("traffic")
    if traffic is not None:
        config.traffic.CopyFrom(traffic)
    return config
