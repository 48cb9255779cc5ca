"""The state of a fleet at one revision of its store, and the rows that it is made of.

A change of one model among ten thousand reads and writes one row. A copy of the wanted
state is kept in a file as well, for a start without the store.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final

from tfs.core.errors import DataLoss
from tfs.core.system.replaced_file import replace_file
from tfs.hosted.fleet import Fleet, HostedModel, Job, merged, replaced
from tfs.hosted.packing import free_bytes
from tfs.hosted.reports import JobSighting, ModelSighting, ReplicaSighting
from tfs.hosted.store.state_store import Feed, Transaction

log = logging.getLogger(__name__)

JOB: Final = "job"
MODEL: Final = "model"
MODEL_SEEN: Final = "model seen"
JOB_SEEN: Final = "job seen"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The wanted state at one revision, and how models and jobs fared. Immutable."""

    revision: int = 0  # before the first change
    fleet: Fleet = field(default_factory=Fleet)
    models_seen: Mapping[str, ModelSighting] = field(default_factory=dict)
    jobs_seen: Mapping[str, JobSighting] = field(default_factory=dict)


def row_of(value: object) -> str | None:
    """Returns what is kept of a value, or of values by name, as text; None of None."""
    return None if value is None else json.dumps(value, default=_fields)


def _fields(value: Any) -> dict[str, Any]:
    # Without the copies that ``asdict`` makes.
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _made(kind: Callable[..., object], form: Mapping[str, Any]) -> object:
    return kind(**{name: _frozen(each) for name, each in form.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    JOB: partial(_made, Job),
    MODEL: partial(_made, HostedModel),
    MODEL_SEEN: lambda form: {n: _made(ReplicaSighting, f) for n, f in form.items()},
    # Earlier releases noted a third value.
    JOB_SEEN: lambda form: JobSighting(*map(_frozen, form[:2])),
}


def _read(kind: str, row: str) -> Any:
    try:
        return _READERS[kind](json.loads(row))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DataLoss(f"the fleet's state cannot be read: {error}") from error


def followed(last: Snapshot, feed: Feed) -> Snapshot:
    """Returns the state after a feed that was read from the revision of ``last``.

    Raises DataLoss if a row contains something else.
    """
    start = Snapshot() if feed.is_snapshot else last
    rows: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}
    for change in feed.changes:
        if change.kind in _READERS:
            row = change.value
            value = None if row is None else _read(change.kind, row)
            rows[change.kind][change.key] = value
    return Snapshot(
        feed.revision,
        start.fleet.changed(rows[MODEL], rows[JOB]),
        merged(start.models_seen, rows[MODEL_SEEN]),
        merged(start.jobs_seen, rows[JOB_SEEN]),
    )


def write(
    transaction: Transaction, before: Snapshot, after: Fleet, reason: str
) -> Snapshot:
    """Writes the rows that differ, and why; returns the state with them."""
    old = before.fleet
    for name in replaced(old.jobs, after.jobs):
        transaction.put(JOB, name, row_of(after.jobs.get(name)), reason)
    free = functools.cache(lambda: free_bytes(after))  # asked for if anything moves
    for name in replaced(old.models, after.models):
        model = after.models.get(name)
        why = reason if model is None else reason + _moves(old, after, model, free)
        transaction.put(MODEL, name, row_of(model), why)
    revision = transaction.revision or before.revision
    return replace(before, revision=revision, fleet=after)


def _moves(
    old: Fleet, new: Fleet, model: HostedModel, free: Callable[[], Mapping[str, int]]
) -> str:
    """Returns why a model is where it is, for the history; empty if it did not move."""
    before = old.models.get(model.name)
    placed, was = model.placed, before.placed if before else ()
    if not model.num_replicas:
        return ""
    said = ""
    for name in placed:
        if name not in was:
            left = (free()[name] + model.memory_bytes) / (1 << 20)
            said += f"; placed on {name}, which had {left:.0f} MiB free"
    for name in was:
        if name not in placed:
            said += f"; taken from {name}, {_fate(new.jobs.get(name))}"
    num, wanted = new.num_placed(model.name), model.num_replicas
    if placed and num < wanted:
        said += f"; on {num} of {wanted} servers: there are no more for it"
    if not placed and (was or not before):
        said += "; no job has room for it"
    return said


def _fate(job: Job | None) -> str:
    if job is None:
        return "which was removed"
    if job.is_down:
        return "which is down"
    if job.is_leaving:
        return "which leaves"
    return "which others need, or where it is one too many"


class FleetCopy:
    """A file with a line for each job and model; none if its path is empty. For one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: Fleet | None = None

    def keep(self, snapshot: Snapshot) -> None:
        """Writes the wanted state, if it is another one; what fails is logged."""
        fleet = snapshot.fleet
        if not self._path or fleet is self._kept:
            return
        self._kept = fleet
        head = json.dumps({"revision": snapshot.revision, "jobs": len(fleet.jobs)})
        rows = *fleet.jobs.values(), *fleet.models.values()
        lines = "\n".join([head, *map(_kept_row, rows)])
        try:
            replace_file(self._path, lines, is_durable=True)
        except OSError as error:
            log.warning("event=fleet_copy_failed path=%s problem=%s", self._path, error)

    def read(self) -> Snapshot | None:
        """Returns what was kept last; None, logged, if there is no copy to be read."""
        if not self._path or not os.path.exists(self._path):
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                first, *rows = file.read().splitlines()
            head = json.loads(first)
            num_jobs, revision = int(head["jobs"]), int(head["revision"])
            jobs = [_read(JOB, each) for each in rows[:num_jobs]]
            models = [_read(MODEL, each) for each in rows[num_jobs:]]
        except (OSError, ValueError, KeyError, TypeError, DataLoss) as error:
            log.warning("event=fleet_copy_unread path=%s problem=%s", self._path, error)
            return None
        named = ({each.name: each for each in found} for found in (jobs, models))
        return Snapshot(revision, Fleet(*named))


# Of ten thousand models, few are other ones than when the copy was last written.
_kept_row = functools.lru_cache(maxsize=1 << 14)(
    lambda each: json.dumps(each, default=_fields)
)
