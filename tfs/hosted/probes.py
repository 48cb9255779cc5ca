"""Has a server probe a version before any is told to serve it: what it takes, and if it crashes.

The version runs in a process of its own there (AdminService.Probe). Nothing is kept of a
probe: who asks again has it done again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tfs.core.clock import Clock
from tfs.core.errors import Aborted, ServingError
from tfs.hosted.fleet import (
    HostedModel,
    ModelConfig,
    config_text,
    parse_model_config,
    read_config,
)
from tfs.hosted.memory_estimate import versions_in
from tfs.hosted.packing import free_bytes
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import controller_pb2, model_config_pb2

log = logging.getLogger(__name__)

_LIMIT_S: Final = 60.0
_MOST_SERVERS: Final = 4
_MOST_ENDED: Final = 2

AskForProbe = Callable[[str, pb.ProbeRequest, float], pb.ProbeResponse]
"""Asks the server at an address within so many seconds; raises Aborted if it ended."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of it. Immutable.

    Attributes:
        is_sound: Whether it was loaded and called.
        version_bytes: The most memory that it took; 0 if that is not known.
        crash: How it crashed; empty if it did not.
        refusal: Why it cannot be loaded; empty if it can.

    """

    is_sound: bool = False
    version_bytes: int = 0
    crash: str = ""
    refusal: str = ""


UNPROBED: Final = Probed()


class Probes:
    """Has versions probed, on the servers with the most room first. Thread-safe; blocks.

    A version that was not tried in time, or that no server can try, is served untried: its
    servers load it in a process of its own as well.

    Args:
        probe: Asks a server.
        clock: Tells the time.

    """

    def __init__(self, probe: AskForProbe, clock: Clock) -> None:
        self._probe = probe
        self._clock = clock

    def run(
        self,
        model: HostedModel,
        version: int,
        now: Snapshot,
        deadline_s: float = math.inf,
    ) -> Probed:
        """Returns what came of probing a version; a server that ends is no answer."""
        request = pb.ProbeRequest(config=read_config(model), version=version)
        request.config.ClearField("excluded_versions")
        until_s = min(deadline_s, self._clock.now() + _LIMIT_S)
        ended: list[str] = []
        for address in _with_most_room(now, model.partition):
            left_s = until_s - self._clock.now()
            if left_s <= 0:
                break
            try:
                found = _read(self._probe(address, request, left_s), address)
            except Aborted:
                ended.append(address)
                if len(ended) == _MOST_ENDED:
                    both = " and ".join(ended)
                    return Probed(crash=f"{both} ended while they tried it")
            except ServingError as error:
                log.info(
                    "event=not_tried model=%s version=%d address=%s problem=%s",
                    model.name,
                    version,
                    address,
                    error,
                )
            else:
                return found
        return UNPROBED


def is_probed(request: Any) -> bool:
    """Tells whether a request brings something that is probed.

    A model that states its memory, or is loaded on demand, is added without a probe.

    Raises:
        InvalidArgument: The config in it cannot be read.

    """
    if not isinstance(request, controller_pb2.AddModelRequest):
        return isinstance(request, controller_pb2.AddVersionRequest)
    if request.hints.memory_bytes:
        return False
    residency = parse_model_config(request.config).residency
    return residency != model_config_pb2.ON_DEMAND


def version_of(request: Any, model: HostedModel) -> int | None:
    """Returns the version that a request brings; None if there is none.

    Args:
        request: Adds a model or a version.
        model: The model with it.

    """
    if isinstance(request, controller_pb2.AddVersionRequest):
        return request.version
    return max(versions_in(read_config(model).base_path) or (), default=None)


def judged(model: HostedModel, version: int, probed: Probed) -> HostedModel:
    """Returns a model with a version quarantined that crashed, or set free if it did not."""
    quarantined = {**model.quarantined}
    config = read_config(model)
    if probed.crash:
        quarantined[str(version)] = probed.crash
        exclude(config, [version])
    elif probed.is_sound and str(version) in quarantined:
        del quarantined[str(version)]
        kept = [each for each in config.excluded_versions if each != version]
        config.ClearField("excluded_versions")
        config.excluded_versions.extend(kept)
    else:
        return model
    return replace(model, config=config_text(config), quarantined=quarantined)


def exclude(config: ModelConfig, versions: Iterable[int]) -> None:
    """Has servers pass over these versions, too."""
    known = config.excluded_versions
    known.extend(each for each in versions if each not in known)


def how_quarantined(model: HostedModel, version: str) -> str:
    """Returns a sentence on a version that is quarantined."""
    return (
        f"version {version} is quarantined: {model.quarantined[version]}; add it again to "
        "have it tried again"
    )


def _read(reply: pb.ProbeResponse, address: str) -> Probed:
    match reply.outcome:
        case pb.ProbeResponse.CRASHED:
            return Probed(crash=f"{reply.reason} (on {address})")
        case pb.ProbeResponse.REFUSED:
            return Probed(refusal=f"{address} could not load it: {reply.reason}")
    taken = max(reply.load_peak_bytes, reply.work_peak_bytes)
    return Probed(is_sound=True, version_bytes=taken)


def _with_most_room(now: Snapshot, partition: str) -> Iterator[str]:
    """Yields the servers of a partition that answer."""
    fleet = now.fleet
    free = free_bytes(fleet)
    jobs = [
        job
        for job in fleet.jobs.values()
        if job.partition == partition and job.takes_models and job.name in now.jobs_seen
    ]
    jobs.sort(key=lambda job: (-free[job.name], job.name))
    addresses = [
        address for job in jobs for address in now.jobs_seen[job.name].answering
    ]
    yield from addresses[:_MOST_SERVERS]
