"""What a version takes, and whether it crashes: found out before any server is told of it.

A server of the partition probes it, in a process of its own (AdminService.Probe); nothing
is kept of a probe: who asks again has it done again. Where none can, the bytes of its files
count, and a little for the code around them, until servers have measured it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sources.remote.storage import RemoteFileSystem
from sources.storage.file_system import AnyFileSystem, is_remote, local_path
from sources.version_policy import name_versions
from tfs.core.clock import Clock
from tfs.core.errors import Aborted, FailedPrecondition, ServingError
from tfs.core.version_directory import payload_files
from tfs.hosted.fleet import HostedModel, config_text, read_config
from tfs.hosted.packing import free_bytes
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import admin_service_pb2 as pb

log = logging.getLogger(__name__)

PER_VERSION_BYTES: Final = 16 << 20
"""Modules, activations and queues of a version, as measured with small models."""

_LIMIT_S: Final = 60.0
_MOST_ENDED: Final = 2

AskForProbe = Callable[[str, pb.ProbeRequest, float], pb.ProbeResponse]
"""Asks the server at an address within so many seconds; raises Aborted if it ended."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of probing a version. Immutable."""

    is_sound: bool = False  # it was loaded and called
    version_bytes: int = 0  # the most memory that it took; 0: not known
    crash: str = ""  # how it crashed
    refusal: str = ""  # why it cannot be loaded


UNPROBED: Final = Probed()


def probe(
    ask: AskForProbe,
    clock: Clock,
    model: HostedModel,
    version: int,
    now: Snapshot,
    deadline_s: float,
) -> Probed:
    """Has a model's version probed where the most room is; blocks.

    A server that ends is no answer; two of them are. A version that was not tried in time,
    or that no server can try, is served untried: its servers load it in a process of its own
    as well.
    """
    config = read_config(model.config)
    config.ClearField("excluded_versions")
    asked = pb.ProbeRequest(config=config, version=version)
    until_s = min(deadline_s, clock.now() + _LIMIT_S)
    ended: list[str] = []
    for address in _with_most_room(now, model.partition):
        left_s = until_s - clock.now()
        if left_s <= 0:
            break
        try:
            return _read(ask(address, asked, left_s), address)
        except Aborted:
            ended.append(address)
            if len(ended) == _MOST_ENDED:
                both = " and ".join(ended)
                return Probed(crash=f"{both} ended while they tried it")
        except ServingError as error:
            what = f"{model.name}/{version}", address, error
            log.info("event=not_tried servable=%s address=%s problem=%s", *what)
    return UNPROBED


def judged(model: HostedModel, version: int, probed: Probed) -> HostedModel:
    """Returns a model with a version quarantined that crashed, or set free if it did not."""
    known, config = {**model.quarantined}, read_config(model.config)
    was_known = known.pop(str(version), None) is not None
    if not probed.crash and not (probed.is_sound and was_known):
        return model
    excluded = {*config.excluded_versions} - {version}
    if probed.crash:
        known[str(version)] = probed.crash
        excluded.add(version)
    config.excluded_versions[:] = sorted(excluded)
    return replace(model, config=config_text(config), quarantined=known)


def _read(reply: pb.ProbeResponse, address: str) -> Probed:
    match reply.outcome:
        case pb.ProbeResponse.CRASHED:
            return Probed(crash=f"{reply.reason} (on {address})")
        case pb.ProbeResponse.REFUSED:
            return Probed(refusal=f"{address} could not load it: {reply.reason}")
    taken = max(reply.load_peak_bytes, reply.work_peak_bytes)
    return Probed(is_sound=True, version_bytes=taken)


def _with_most_room(now: Snapshot, partition: str) -> list[str]:
    """Returns servers of a partition that answer."""
    jobs = [
        job
        for job in now.fleet.jobs.values()
        if job.partition == partition and job.takes_models and job.name in now.jobs_seen
    ]
    free = free_bytes(now.fleet)
    jobs.sort(key=lambda job: (-free[job.name], job.name))
    return [address for job in jobs for address in now.jobs_seen[job.name].answering]


def newest_version_bytes(base_path: str) -> int:
    """Returns the estimated memory of the newest version below a base path.

    Raises FailedPrecondition where that cannot be seen from here.
    """
    try:
        found = name_versions(
            AnyFileSystem(RemoteFileSystem()).list_directories(base_path)
        )
        if found:
            newest = f"{base_path.rstrip('/')}/{found[max(found)]}"
            return size_of(newest) + PER_VERSION_BYTES
        wrong = "holds no version yet"
    except OSError as error:
        wrong = f"cannot be looked at from here ({error})"
    raise FailedPrecondition(
        f"{base_path} {wrong}; say what one replica takes (--memory)"
    )


def versions_in(base_path: str) -> Sequence[int] | None:
    """Returns the versions in a base path; None if it cannot be seen from here."""
    try:
        return sorted(name_versions(os.listdir(base_path)))
    except OSError:
        return None


def size_of(path: str) -> int:
    """Returns the bytes of a version's files."""
    if is_remote(path):
        return sum(RemoteFileSystem().file_sizes(path).values())
    path = local_path(path)
    return sum(os.path.getsize(f"{path}/{each}") for each in payload_files(path))
