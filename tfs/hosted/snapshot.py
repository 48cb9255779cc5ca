"""The state of a fleet at one revision of its store, and the rows that it is made of.

A change of one model among ten thousand reads and writes one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from tfs.hosted.fleet import (
    Fleet,
    HostedModel,
    Job,
    job_row,
    model_row,
    read_job,
    read_model,
    replaced,
)
from tfs.hosted.packing import free_bytes
from tfs.hosted.reports import JobSighting, ModelSighting
from tfs.hosted.store.state_store import Feed, Transaction

T = TypeVar("T")

JOB: Final = "job"
MODEL: Final = "model"
MODEL_SEEN: Final = "model seen"
JOB_SEEN: Final = "job seen"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one revision. Immutable.

    Attributes:
        revision: Counts changes; 0 before the first.
        fleet: The wanted state.
        models_seen: How each model fared when a synchronizer last looked.
        jobs_seen: How each job fared.

    """

    revision: int = 0
    fleet: Fleet = field(default_factory=Fleet)
    models_seen: Mapping[str, ModelSighting] = field(default_factory=dict)
    jobs_seen: Mapping[str, JobSighting] = field(default_factory=dict)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    JOB: read_job,
    MODEL: read_model,
    MODEL_SEEN: ModelSighting.from_row,
    JOB_SEEN: JobSighting.from_row,
}


def followed(last: Snapshot, feed: Feed) -> Snapshot:
    """Returns the state after a feed that was read from the revision of ``last``.

    Raises:
        DataLoss: A row contains something else.

    """
    if not feed.changes and not feed.is_snapshot:
        return last
    start = Snapshot() if feed.is_snapshot else last
    rows: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}
    for change in feed.changes:
        if change.kind in _READERS:
            read, value = _READERS[change.kind], change.value
            rows[change.kind][change.key] = None if value is None else read(value)
    fleet = start.fleet
    if feed.is_snapshot or rows[JOB] or rows[MODEL]:
        fleet = Fleet(
            merged(fleet.jobs, rows[JOB]),
            merged(fleet.models, {n: m and m[0] for n, m in rows[MODEL].items()}),
            merged(fleet.packing, {n: m and m[1] for n, m in rows[MODEL].items()}),
        )
    return Snapshot(
        feed.revision,
        fleet,
        merged(start.models_seen, rows[MODEL_SEEN]),
        merged(start.jobs_seen, rows[JOB_SEEN]),
    )


def merged(of: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """Returns the same object where nothing changes: whoever looks on sees that at once."""
    if not changes:
        return of
    merged = dict(of)
    for name, each in changes.items():
        if each is None:
            merged.pop(name, None)
        else:
            merged[name] = each
    return merged


def write(
    transaction: Transaction, before: Snapshot, after: Fleet, reason: str
) -> Snapshot:
    """Writes the rows that differ, and why; returns the state with them."""
    old, revision = before.fleet, before.revision
    for name in replaced(old.jobs, after.jobs):
        job = after.jobs.get(name)
        if job != old.jobs.get(name):
            row = None if job is None else job_row(job)
            revision = transaction.put(JOB, name, row, reason)
    free: Mapping[str, int] = {}
    for name in {
        **replaced(old.models, after.models),
        **replaced(old.packing, after.packing),
    }:
        model = after.models.get(name)
        if model is None:
            revision = transaction.put(MODEL, name, None, reason)
            continue
        placed, was = after.packing.get(name, ()), old.packing.get(name, ())
        if model is old.models.get(name) and placed == was:
            continue
        if model != old.models.get(name) or set(placed) != set(was):
            if not free and not set(placed) <= set(was):
                free = free_bytes(after)
            why = reason + _moves(old, after, free, model, placed)
            row = model_row(model, placed)
            revision = transaction.put(MODEL, name, row, why)
    return replace(before, revision=revision, fleet=after)


def _moves(
    old: Fleet,
    new: Fleet,
    free: Mapping[str, int],
    model: HostedModel,
    placed: tuple[str, ...],
) -> str:
    """Returns why a model is where it is, for the history; empty if it did not move."""
    said = []
    was = old.packing.get(model.name, ())
    if not model.num_replicas:
        return ""
    for name in placed:
        if name not in was:
            left = (free[name] + model.memory_bytes) / (1 << 20)
            said.append(f"placed on {name}, which had {left:.0f} MiB free")
    said += [
        f"taken from {name}, {_fate(old.jobs, new.jobs, name)}"
        for name in was
        if name not in placed
    ]
    num = new.num_placed(model.name)
    if placed and num < model.num_replicas:
        said.append(
            f"on {num} of {model.num_replicas} servers: there are no more for it"
        )
    if not placed and (was or model.name not in old.models):
        said.append("no job has room for it")
    return "".join(f"; {each}" for each in said)


def _fate(old: Mapping[str, Job], new: Mapping[str, Job], name: str) -> str:
    job = new.get(name)
    if job is None:
        return "which was removed"
    if job.is_down:
        return "which is down"
    if job.is_leaving:
        return "which leaves"
    return "which others need, or where it is one too many"
