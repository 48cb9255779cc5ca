"""Turns requests of the Controller API into edits of a fleet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sources.version_policy import list_versions
from tfs.core.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError
from tfs.hosted import edits
from tfs.hosted.fleet import (
    HostedModel,
    Job,
    ModelConfig,
    config_text,
    read_config,
    room_for,
)
from tfs.hosted.fleet_state import Edit
from tfs.hosted.identities import Identities
from tfs.hosted.probes import UNPROBED, Probed, newest_version_bytes, versions_in
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2

_ADDRESS: Final = re.compile(r"unix:/.+|(?:\[[^]/]+\]|[^:/]+):([0-9]{1,5})")
# The loss of any two servers loses no model of Prod.
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
                model = self._new_model(request, owner, probed)
                edit = edits.add_model(model)
                # Ten thousand may be registered that state their memory, or share it.
                is_tried = model.is_estimate and not model.is_on_demand
                found = versions_in(request.base_path) if is_tried else ()
                return replace(edit, probes=max(found)) if found else edit
            case pb.UpdateModelRequest():
                return self._update_model(request, now)
            case pb.RemoveModelRequest():
                return edits.remove_model(request.model)
            case pb.AddVersionRequest():
                config = read_config(edits.required(now.fleet, request.model).config)
                missing = _missing_version(config.base_path, request.version)
                if missing and not request.files_follow:
                    raise NotFound(missing)
                edit = edits.add_version(request.model, request.version, probed)
                note = _why_not_loaded(config, request.version)
                return replace(edit, notes=(note,) if note else ())
            case pb.SetPolicyRequest():
                return self._set_policy(request, now)
            case pb.SetHintsRequest():
                return _set_hints(request)
            case pb.AddJobRequest():
                return edits.put_job(self._job(request))
            case _:
                return edits.drain_job(request.job, force=request.force)

    def _new_model(
        self, asked: pb.AddModelRequest, owner: str, probed: Probed
    ) -> HostedModel:
        config = _read_further(asked.config, asked.model, asked.base_path)
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

    def _update_model(self, asked: pb.UpdateModelRequest, now: Snapshot) -> Edit:
        def update(model: HostedModel) -> HostedModel:
            config = before = read_config(model.config)
            path = asked.base_path if asked.HasField("base_path") else before.base_path
            if asked.HasField("config"):
                config = _read_further(asked.config, model.name, path)
                if not config.HasField("traffic") and before.HasField("traffic"):
                    config.traffic.CopyFrom(before.traffic)
                excluded = {*config.excluded_versions, *map(int, model.quarantined)}
                config.excluded_versions[:] = sorted(excluded)
            config.base_path = path
            if asked.HasField("partition"):
                model = replace(model, partition=asked.partition)
            return self._with_config(model, config)

        edit = edits.update_model(asked.model, update, "update-model")
        if not asked.HasField("base_path"):
            return edit
        primary = read_config(
            edits.required(now.fleet, asked.model).config
        ).traffic.primary
        missing = primary and _missing_version(asked.base_path, primary)
        note = f"{missing}; until it is there, what answers now goes on"
        return replace(edit, notes=(note,) if missing else ())

    def _set_policy(self, asked: pb.SetPolicyRequest, now: Snapshot) -> Edit:
        model = edits.required(now.fleet, asked.model)
        seen = now.models_seen.get(asked.model, {})
        answers = [each.primary for each in seen.values() if each.primary]
        traffic, version = model_config_pb2.Traffic(), None
        match asked.WhichOneof("policy"):
            case "latest":
                why = "latest version of"
            case "pinned":
                version = traffic.primary = asked.pinned.version
                why = f"promote to {version} of"
            case "canary":
                traffic.canary.CopyFrom(asked.canary.canary)
                version = traffic.canary.version
                if asked.canary.HasField("primary"):
                    traffic.primary = asked.canary.primary
                elif answers:
                    traffic.primary = min(answers)
                else:
                    raise FailedPrecondition(
                        f"no version of {asked.model} answers; say which is the primary"
                    )
                why = f"canary {version} of"
            case "rollback":
                version = traffic.primary = _rollback_to(model, asked.rollback, answers)
                why = f"rollback to {version} of"
            case _:
                raise InvalidArgument("a policy is latest, pinned, canary or rollback")
        if how := model.quarantined.get(str(version)):
            raise FailedPrecondition(
                f"version {version} is quarantined: {how}; add it again to have it tried "
                "again"
            )

        def update(model: HostedModel) -> HostedModel:
            config = read_config(model.config)
            config.ClearField("traffic")
            if version is not None:
                config.traffic.CopyFrom(traffic)
            return self._with_config(model, config)

        return edits.update_model(asked.model, update, why, version)

    def _with_config(self, model: HostedModel, config: ModelConfig) -> HostedModel:
        self.check(config)
        is_on_demand = config.residency == model_config_pb2.ON_DEMAND
        return replace(model, config=config_text(config), is_on_demand=is_on_demand)

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
        found = _ADDRESS.fullmatch(asked.job)
        if not is_ours and not (found and 0 < int(found[1] or 1) < 1 << 16):
            raise InvalidArgument(
                f"an address is HOST:PORT or unix:/path: {asked.job}; for a job whose "
                "servers the fleet starts, say how many (--servers)"
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


def _read_further(text: str, name: str, base_path: str) -> ModelConfig:
    """Reads what a config says besides name and base path, which it may repeat."""
    config = read_config(text)
    if config.name not in ("", name) or config.base_path not in ("", base_path):
        raise InvalidArgument(
            f"the config of {name}, whose base path is {base_path}, says something else: "
            f"{config.name or name}, {config.base_path or base_path}"
        )
    config.name, config.base_path = name, base_path
    return config


def _set_hints(asked: pb.SetHintsRequest) -> Edit:
    hints, has = asked.hints, asked.hints.HasField

    def update(model: HostedModel) -> HostedModel:
        least = hints.min_replicas if has("min_replicas") else model.min_replicas
        most = max(least, model.max_replicas)
        most = hints.max_replicas if has("max_replicas") else most
        number, by_default = model.num_replicas, model.copies_by_default
        if by_default and has("min_replicas"):
            number, by_default = max(least, 1), False
        is_said = (
            bool(hints.memory_bytes) if has("memory_bytes") else not model.is_estimate
        )
        return replace(
            model,
            min_replicas=least,
            max_replicas=most,
            num_replicas=min(max(number, least), most),
            copies_by_default=by_default,
            memory_bytes=hints.memory_bytes or model.memory_bytes,
            is_estimate=not is_said,
            cpus=hints.cpus if has("cpus") else model.cpus,
        )

    edit = edits.update_model(asked.model, update, "scale")
    return replace(edit, num_servers=hints.min_replicas)


def _refused(request: Any, error: ServingError) -> Edit:
    def apply(fleet: object) -> Any:
        raise error

    model, job = getattr(request, "model", ""), getattr(request, "job", "")
    kind = type(request).__name__.removesuffix("Request")
    words = "-".join(re.findall("[A-Z][a-z]+", kind)).lower()
    what = {"set-hints": "scale", "drain-job": "remove-job"}.get(words, words)
    return Edit(f"{what} {model or job}", apply, model, job)


def _rollback_to(model: HostedModel, asked: pb.Rollback, answers: Sequence[int]) -> int:
    if asked.HasField("version"):
        return asked.version
    config = read_config(model.config)
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


def _why_not_loaded(config: ModelConfig, version: int) -> str:
    """Returns that the policy asks for newer versions, as far as they are seen from here."""
    policy, traffic = config.model_version_policy, config.traffic
    asked = {traffic.primary, traffic.canary.version, *config.version_labels.values()}
    there = {*(versions_in(config.base_path) or ())} - {*config.excluded_versions}
    newest = sorted(there)[-max(1, policy.latest.num_versions) :]
    is_latest = policy.WhichOneof("policy_choice") in (None, "latest")
    if not (is_latest and newest) or version in asked or version >= newest[0]:
        return ""
    return (
        f"version {newest[-1]} is newer: version {version} is loaded only if the policy "
        "asks for it (model_version_policy, now the latest)"
    )


def _missing_version(base_path: str, version: int) -> str:
    """Returns that a version is not there, as far as that can be seen from here."""
    versions = versions_in(base_path)
    if versions is None or version in versions:
        return ""
    there = list_versions(versions) or "none"
    return f"version {version} is not in {base_path}, which has {there}"
