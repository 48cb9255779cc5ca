"""Turns requests of the Controller API into edits of a fleet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sources.version_policy import list_versions
from tfs.client.arguments import checked_address
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.hosted import edits
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
from tfs.hosted.fleet_state import Edit
from tfs.hosted.identities import Identities
from tfs.hosted.probes import (
    UNPROBED,
    Probed,
    exclude,
    newest_version_bytes,
    versions_in,
)
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2

# The loss of any two servers loses no model of Prod.
_SCHEME: Final = re.compile(r"(dns|ipv[46]|xds|vsock|unix-abstract):").match  # of grpc
_PROD_COPIES: Final = 3
_TEMP_COPIES: Final = 2


@dataclass(frozen=True, slots=True)
class EditReader:
    """Turns requests into edits. Immutable; calls block on the disk of base paths.

    Attributes:
        check: Raises a ``ServingError`` for a model's config that no server would
            accept, because a server refuses its whole config if one model is wrong.
        estimate: Returns the bytes of the newest version below a base path, or raises.
        may_run_jobs: Whether something here starts the replicas of jobs.
        identities: Who may do what, and whose quotas are kept.

    """

    check: Callable[[ModelConfig], object]
    estimate: Callable[[str], int] = newest_version_bytes
    may_run_jobs: bool = False
    identities: Identities = field(default_factory=Identities)

    def read(
        self, request: Any, now: Snapshot, owner: str = "", probed: Probed = UNPROBED
    ) -> Edit:
        """Returns the edit that ``owner`` asks for; applying it raises what is wrong with it.

        ``probed`` says what came of probing the version that it brings; a model that it
        adds belongs to ``owner``, if that is not empty.
        """
        try:
            edit = self._read(request, now, owner, probed)
        except ServingError as error:
            edit = _refused(request, error)
        return self.identities.guarded(edit, owner)

    def _read(self, request: Any, now: Snapshot, owner: str, probed: Probed) -> Edit:
        match request:
            case pb.AddModelRequest():
                return edits.add_model(self._new_model(request, owner, probed))
            case pb.UpdateModelRequest():
                return self._update_model(request)
            case pb.RemoveModelRequest():
                return edits.remove_model(request.model)
            case pb.AddVersionRequest():
                model = edits.required(now.fleet, request.model)
                if missing := _missing_version(model, request.version):
                    raise NotFound(missing)
                return edits.add_version(request.model, request.version, probed)
            case pb.SetPolicyRequest():
                return self._set_policy(request, now)
            case pb.SetHintsRequest():
                return _set_hints(request)
            case pb.AddJobRequest():
                return _put_job(self._job(request), now.fleet)
            case _:
                return edits.drain_job(request.job, force=request.force)

    def _new_model(
        self, asked: pb.AddModelRequest, owner: str, probed: Probed
    ) -> HostedModel:
        config = parse_model_config(asked.config)
        config.name, config.base_path = asked.model, asked.base_path
        self.check(config)
        if probed.crash:
            raise FailedPrecondition(f"its newest version crashes: {probed.crash}")
        hints, is_temp = asked.hints, self.identities.is_temp(owner)
        by_default = not hints.HasField("min_replicas")
        least, most = hints.min_replicas, hints.max_replicas
        if by_default:
            least = _TEMP_COPIES if is_temp else _PROD_COPIES
            least = min(least, most or least)
        size = hints.memory_bytes or room_for(
            config, probed.version_bytes or self.estimate(config.base_path)
        )
        return HostedModel(
            config.name,
            config_text(config),
            size,
            is_estimate=not hints.memory_bytes,
            min_replicas=least,
            max_replicas=most or least,
            partition=asked.partition,
            num_replicas=max(least, 1),
            is_on_demand=config.residency == model_config_pb2.ON_DEMAND,
            cpus=hints.cpus,
            owner=owner,
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
            moved = asked.HasField("partition")
            return replace(
                model,
                config=config_text(config),
                partition=asked.partition if moved else model.partition,
                is_on_demand=config.residency == model_config_pb2.ON_DEMAND,
            )

        return edits.update_model(asked.model, changed, "update-model")

    def _set_policy(self, asked: pb.SetPolicyRequest, now: Snapshot) -> Edit:
        model = edits.required(now.fleet, asked.model)
        seen = now.models_seen.get(asked.model, {})
        answers = [each.primary for each in seen.values() if each.primary]
        traffic: model_config_pb2.Traffic | None = None
        match asked.WhichOneof("policy"):
            case "latest":
                why = "latest version of"
            case "pinned":
                traffic = model_config_pb2.Traffic(primary=asked.pinned.version)
                why = f"promote to {asked.pinned.version} of"
            case "canary":
                traffic = model_config_pb2.Traffic(canary=asked.canary.canary)
                if not (asked.canary.HasField("primary") or answers):
                    raise FailedPrecondition(
                        f"no version of {asked.model} answers; say which is the primary"
                    )
                primary = asked.canary.primary
                if not asked.canary.HasField("primary"):
                    primary = min(answers)
                traffic.primary = primary
                why = f"canary {traffic.canary.version} of"
            case "rollback":
                version = _rollback_to(model, asked.rollback, answers)
                traffic = model_config_pb2.Traffic(primary=version)
                why = f"rollback to {version} of"
            case _:
                raise InvalidArgument("a policy is latest, pinned, canary or rollback")
        self.check(edits.with_traffic(model, traffic))
        edit = edits.set_traffic(asked.model, traffic, why)
        if edit.version is None:
            return edit
        if how := model.quarantined.get(str(edit.version)):
            raise FailedPrecondition(
                f"version {edit.version} is quarantined: {how}; add it again to have it "
                "tried again"
            )
        missing = _missing_version(model, edit.version)
        note = f"{missing}; until it is there, what answers now goes on"
        return replace(edit, notes=(note,) if missing else ())

    def _job(self, asked: pb.AddJobRequest) -> Job:
        is_ours = bool(asked.num_replicas or asked.max_replicas)
        if asked.instance not in ("", "prod", "temp"):
            raise InvalidArgument(f"an instance is prod or temp: {asked.instance!r}")
        if is_ours and not self.may_run_jobs:
            raise FailedPrecondition(
                "nothing here starts servers: tfs hosted up does; or add the address of "
                "one that runs"
            )
        if is_ours and not re.fullmatch(r"\w[\w.-]*", asked.job):
            raise InvalidArgument(
                f"{asked.job!r} names a folder where its servers run: choose a name of "
                "letters, digits, '.', '_' and '-'"
            )
        if not is_ours and _SCHEME(checked_address(asked.job)):
            raise InvalidArgument(
                f"{asked.job}: give the server's address as HOST:PORT or unix:/path"
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


def _put_job(job: Job, fleet: Fleet) -> Edit:
    edit = edits.put_job(job)
    before = fleet.jobs.get(job.name)
    if before is None or not job.is_ours:
        return edit
    alone = sorted(n for n, each in fleet.models.items() if each.placed == (job.name,))
    same_limits = (before.memory_bytes, before.cpus) == (job.memory_bytes, job.cpus)
    if same_limits or not alone or edit.apply(fleet).jobs[job.name].num_replicas > 1:
        return edit
    note = (
        f"its one server is started again with the new limits, and {', '.join(alone[:3])}"
        f"{' and others' * (len(alone) > 3)} answer nobody meanwhile; two servers are "
        "started again one by one"
    )
    return replace(edit, notes=(note,))


def _set_hints(asked: pb.SetHintsRequest) -> Edit:
    hints = asked.hints

    def changed(model: HostedModel) -> HostedModel:
        least, most = model.min_replicas, model.max_replicas
        number, by_default = model.num_replicas, model.copies_by_default
        if hints.HasField("min_replicas"):
            least, most = hints.min_replicas, max(hints.min_replicas, most)
            number, by_default = max(least, 1) if by_default else number, False
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

    edit = edits.update_model(asked.model, changed, "set-hints")
    return replace(edit, num_servers=hints.min_replicas)


def _refused(request: Any, error: ServingError) -> Edit:
    def apply(fleet: object) -> Any:
        raise error

    model, job = getattr(request, "model", ""), getattr(request, "job", "")
    words = re.findall("[A-Z][a-z]+", type(request).__name__.removesuffix("Request"))
    return Edit(f"{'-'.join(words).lower()} {model or job}", apply, model, job)


def _rollback_to(model: HostedModel, asked: pb.Rollback, answers: Sequence[int]) -> int:
    if asked.HasField("version"):
        return asked.version
    config = read_config(model)
    if config.traffic.HasField("canary") and config.traffic.HasField("primary"):
        # It is the trial that somebody wants to be rid of.
        return config.traffic.primary
    below = [
        each
        for each in versions_in(config.base_path) or ()
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
