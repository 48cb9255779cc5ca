"""Turns the requests of the Controller API into edits of a fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sources.version_policy import list_versions, name_versions
from tfs.core.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError
from tfs.hosted import fleet_edits
from tfs.hosted.fleet import HostedModel, Job
from tfs.hosted.fleet_edits import (
    ModelConfig,
    config_text,
    parse_model_config,
    read_config,
    required,
    room_for,
)
from tfs.hosted.fleet_state import Edit, Snapshot
from tfs.hosted.sightings import ModelSighting
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2

WHAT: Final = {
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


@dataclass(frozen=True, slots=True)
class EditReader:
    """Reads requests. Immutable; calls block on the disk where base paths are.

    Attributes:
        check: Raises a ``ServingError`` for a model's config that no server would
            accept, because a server refuses its whole config if one model is wrong.
        estimate: Returns the bytes of the newest version below a base path, or raises.
        may_run_jobs: Whether something here starts the replicas of jobs.

    """

    check: Callable[[ModelConfig], object]
    estimate: Callable[[str], int]
    may_run_jobs: bool = False

    def read(self, request: Any, now: Snapshot) -> tuple[Edit, Sequence[str]]:
        """Returns a request's edit, and what should be known besides.

        What is wrong with the request is raised when the edit is applied.
        """
        readers: dict[type, Callable[[Any, Snapshot], tuple[Edit, Sequence[str]]]] = {
            pb.AddModelRequest: self._add_model,
            pb.UpdateModelRequest: self._update_model,
            pb.RemoveModelRequest: lambda asked, _: (
                fleet_edits.remove_model(asked.model),
                (),
            ),
            pb.AddVersionRequest: self._add_version,
            pb.SetPolicyRequest: self._set_policy,
            pb.SetHintsRequest: self._set_hints,
            pb.AddJobRequest: self._add_job,
            pb.DrainJobRequest: lambda asked, _: (
                fleet_edits.drain_job(asked.job, force=asked.force),
                (),
            ),
        }
        try:
            return readers[type(request)](request, now)
        except ServingError as error:
            return _refused(request, error), ()

    def _add_model(
        self, asked: pb.AddModelRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
        config = parse_model_config(asked.config)
        config.name, config.base_path = asked.model, asked.base_path
        self.check(config)
        hints = asked.hints
        least = hints.min_replicas if hints.HasField("min_replicas") else 1
        size = hints.memory_bytes or room_for(config, self.estimate(config.base_path))
        model = HostedModel(
            config.name,
            config_text(config),
            size,
            is_estimate=not hints.memory_bytes,
            min_replicas=least,
            max_replicas=hints.max_replicas or least,
            partition=asked.partition,
            num_replicas=least,
            is_on_demand=config.residency == model_config_pb2.ON_DEMAND,
            cpus=hints.cpus,
        )
        return fleet_edits.add_model(model), ()

    def _update_model(
        self, asked: pb.UpdateModelRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
        def changed(model: HostedModel) -> HostedModel:
            config = before = read_config(model)
            if asked.HasField("config"):
                config = parse_model_config(asked.config)
                if not config.HasField("traffic") and before.HasField("traffic"):
                    config.traffic.CopyFrom(before.traffic)
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

        return fleet_edits.update_model(asked.model, changed, "update-model"), ()

    def _add_version(
        self, asked: pb.AddVersionRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
        model = required(now.fleet, asked.model)
        missing = _missing_version(model, asked.version)
        if missing:
            raise NotFound(missing)
        return fleet_edits.add_version(asked.model, asked.version), ()

    def _set_policy(
        self, asked: pb.SetPolicyRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
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
        config = read_config(model)
        config.ClearField("traffic")
        if traffic is not None:
            config.traffic.CopyFrom(traffic)
        self.check(config)
        edit = fleet_edits.set_traffic(asked.model, traffic, why)
        missing = edit.version is not None and _missing_version(model, edit.version)
        if not missing:
            return edit, ()
        return edit, (f"{missing}; until it is there, what answers now goes on",)

    def _set_hints(
        self, asked: pb.SetHintsRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
        hints = asked.hints

        def changed(model: HostedModel) -> HostedModel:
            least, most = model.min_replicas, model.max_replicas
            if hints.HasField("min_replicas"):
                least, most = hints.min_replicas, max(hints.min_replicas, most)
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
                num_replicas=min(max(model.num_replicas, least), most),
                memory_bytes=memory_bytes,
                is_estimate=is_estimate,
                cpus=hints.cpus if hints.HasField("cpus") else model.cpus,
            )

        return fleet_edits.update_model(asked.model, changed, "set-hints"), ()

    def _add_job(
        self, asked: pb.AddJobRequest, now: Snapshot
    ) -> tuple[Edit, Sequence[str]]:
        is_ours = bool(asked.num_replicas)
        if is_ours and not self.may_run_jobs:
            raise FailedPrecondition(
                "nothing here starts servers: tfs hosted up does; or add the address of "
                "one that runs"
            )
        job = Job(
            asked.job,
            asked.memory_bytes,
            asked.partition,
            num_replicas=asked.num_replicas or 1,
            min_replicas=asked.num_replicas if asked.max_replicas else 0,
            max_replicas=asked.max_replicas,
            cpus=asked.cpus,
            is_ours=is_ours,
            addresses=() if is_ours else (asked.job,),
            zone=asked.zone,
        )
        return fleet_edits.put_job(job), ()


def _refused(request: Any, error: ServingError) -> Edit:
    def apply(fleet: object) -> Any:
        raise error

    model, job = getattr(request, "model", ""), getattr(request, "job", "")
    return Edit(f"{WHAT[type(request)]} {model or job}", apply, model, job)


def _rollback_to(model: HostedModel, asked: pb.Rollback, answers: Sequence[int]) -> int:
    if asked.HasField("version"):
        return asked.version
    below = [
        each for each in _versions_of(model) or () if answers and each < min(answers)
    ]
    if not below:
        raise FailedPrecondition(
            f"no version of {model.name} below the one that answers can be seen from "
            "here; say which one to return to"
        )
    return max(below)


def _missing_version(model: HostedModel, version: int) -> str:
    """Returns that a version is not there, as far as that can be seen from here."""
    versions = _versions_of(model)
    if versions is None or version in versions:
        return ""
    there = list_versions(sorted(versions)) or "none"
    path = read_config(model).base_path
    return f"version {version} is not in {path}, which has {there}"


def _versions_of(model: HostedModel) -> Sequence[int] | None:
    """Returns the versions in a model's base path; None if it cannot be seen from here."""
    try:
        return sorted(name_versions(os.listdir(read_config(model).base_path)))
    except OSError:
        return None
