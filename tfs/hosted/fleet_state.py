"""A fleet in its store: read along as it changes, and changed in transactions.

Every process that uses a store has one of these. It keeps the last state that it read and
brings it up to date by the store's feed, so that a change of one model among ten thousand
reads and writes one row.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from tfs.core.errors import (
    BY_CODE,
    Aborted,
    Code,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unknown,
)
from tfs.core.replaced_file import replace_file
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
from tfs.hosted.placement import free_bytes
from tfs.hosted.reports import JobSighting, ModelSighting
from tfs.hosted.store.state_store import Feed, Lease, StateStore, Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOB: Final = "job"
MODEL: Final = "model"
_MODEL_SEEN: Final = "model seen"
_JOB_SEEN: Final = "job seen"
_REQUEST: Final = "request"
_FLEET: Final = "fleet"

_TICK_S: Final = 0.2
_PAUSE_S: Final = 1.0  # after a store that could not be read
_COPY_FORMAT: Final = 1


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


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a fleet that can be tried out, or made. Immutable.

    Attributes:
        why: What makes it, for people: "add-model digits".
        apply: Returns the fleet afterwards, or raises a ``ServingError``; pure.
        model: The model it is about; empty if it is about a job.
        job: The job it is about; empty if it is about a model.
        version: The version of the model that it is about.
        notes: What whoever asked for it should know besides.

    """

    why: str
    apply: Callable[[Fleet], Fleet]
    model: str = ""
    job: str = ""
    version: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A user's request for an edit. Immutable.

    Attributes:
        id: Names it: it acts once, however often it is repeated.
        content: What it asks for, to tell a repetition from another request.
        if_generation: The generation that its model or job must have; None for any.

    """

    id: str
    content: bytes
    if_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a request. Immutable.

    Attributes:
        why: What it asked for.
        model: The model it is about, or empty.
        job: The job it is about, or empty.
        version: The version it is about.
        revision: The revision it made, or the last one if there was nothing to change.
        generation: The generation of its model or job since then; 0 if that is gone.

    """

    why: str
    model: str = ""
    job: str = ""
    version: int | None = None
    revision: int = 0
    generation: int = 0


class FleetState:
    """Reads and changes the fleet of one store. Thread-safe; blocks on the store.

    A store that is older than what was seen here is neither read nor changed.

    Args:
        store: Where the fleet is.
        copy: Where the wanted state is kept for a start without the store.
        take_over: Whether a store that is older than the copy is followed all the same.

    """

    def __init__(
        self,
        store: StateStore,
        copy: FleetCopy | None = None,
        *,
        take_over: bool = False,
    ) -> None:
        self.store = store
        self.copy = copy or FleetCopy("")
        kept = None if take_over else self.copy.read()
        self._least = kept.revision if kept else 0
        # Guards the next; leaf.
        self._lock = threading.Lock()
        self._last = Snapshot()
        self._fleet_id = ""

    def fleet_id(self) -> str:
        """Returns what tells this fleet from all others; made with its store.

        Raises:
            ServingError: The store cannot be used.

        """

        def made(transaction: Transaction) -> str:
            known = transaction.get(_FLEET, "id")
            if known is None:
                known = uuid.uuid4().hex
                transaction.put(_FLEET, "id", known)
            return known

        if not self._fleet_id:
            self._fleet_id = self.store.transact(made)
        return self._fleet_id

    def read(self) -> Snapshot:
        """Returns the present state.

        Raises:
            FailedPrecondition: The store is older than what was seen here, or cannot be
                used.
            Unavailable: It cannot be reached.
            DataLoss: It contains something else.

        """
        with self._lock:
            last = self._last
        return self._advanced(last, self.store.feed(last.revision))

    def change(self, edit: Edit, lease: Lease | None = None) -> Snapshot:
        """Makes an edit; returns the state afterwards. If it raises, nothing changed.

        Raises:
            Aborted: Somebody else has the lease.

        """

        def run(transaction: Transaction) -> Snapshot:
            before = self._within(transaction)
            return _write(transaction, before, edit.apply(before.fleet), edit)

        return self._kept(self.store.transact(run, lease))

    def commit(self, edit: Edit, request: Request) -> Committed:
        """Makes an edit that a user asked for, once: a repetition gets the same answer.

        A refusal is an answer, too, and is noted with the model.

        Raises:
            InvalidArgument: The id named another request before.
            Aborted: The model or job has another generation.
            ServingError: What ``edit`` raises.

        """

        def run(
            transaction: Transaction,
        ) -> tuple[Committed | ServingError, Snapshot | None]:
            known = transaction.get(_REQUEST, request.id)
            if known is not None:
                return _answer_before(known, request), None
            before = self._within(transaction)
            try:
                _check_generation(before.fleet, edit, request.if_generation)
                after = _write(transaction, before, edit.apply(before.fleet), edit)
            except ServingError as error:
                _note_refusal(transaction, before.fleet, edit, error)
                _remember(transaction, request, [error.code, error.message])
                return error, None
            done = Committed(
                edit.why,
                edit.model,
                edit.job,
                edit.version,
                after.revision,
                _generation(after.fleet, edit),
            )
            form = [done.why, done.model, done.job, done.version]
            _remember(transaction, request, [*form, done.revision, done.generation])
            return done, after

        outcome, after = self.store.transact(run)
        if after is not None:
            self._kept(after)
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def request(self, request_id: str) -> Committed | ServingError | None:
        """Returns what became of a request; None if it is not known (any more)."""
        text = self.store.transact(lambda t: t.get(_REQUEST, request_id))
        return None if text is None else _answer(json.loads(text)["answer"])

    def note(
        self,
        models: Mapping[str, ModelSighting | None],
        jobs: Mapping[str, JobSighting],
        lease: Lease | None = None,
    ) -> Snapshot:
        """Notes how these models fare, or (None) that they are gone, and how all jobs do.

        Returns:
            The state afterwards.

        Raises:
            Aborted: Somebody else has the lease; nothing was noted.

        """
        before = self.read()
        models = _news(models, before.models_seen)
        news = _news(jobs, before.jobs_seen) | dict.fromkeys(
            before.jobs_seen.keys() - jobs.keys()
        )
        if not models and not news:
            return before

        def run(transaction: Transaction) -> Snapshot:
            now = self._within(transaction)
            revision = now.revision
            for kind, seen in ((_MODEL_SEEN, models), (_JOB_SEEN, news)):
                for name, each in seen.items():
                    row = None if each is None else each.to_row()
                    # Without a reason: nobody asked for it.
                    revision = transaction.put(kind, name, row)
            return Snapshot(
                revision,
                now.fleet,
                _merged(now.models_seen, models),
                _merged(now.jobs_seen, news),
            )

        return self._kept(self.store.transact(run, lease))

    def _within(self, transaction: Transaction) -> Snapshot:
        with self._lock:
            last = self._last
        return self._advanced(last, transaction.feed(last.revision))

    def _advanced(self, last: Snapshot, feed: Feed) -> Snapshot:
        seen = max(last.revision, self._least)
        if feed.revision < seen:
            raise FailedPrecondition(
                f"the fleet's store {self.store.name} is at revision {feed.revision}, and "
                f"revision {seen} was seen here: it is an older copy, or its file went; "
                "put the newest back, or start again with --take_over"
            )
        return self._kept(_followed(last, feed))

    def _kept(self, now: Snapshot) -> Snapshot:
        """Goes on from a state that is in the store."""
        with self._lock:
            if now.revision > self._last.revision:
                self._last = now
        return now


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    _JOB: read_job,
    MODEL: read_model,
    _MODEL_SEEN: ModelSighting.from_row,
    _JOB_SEEN: JobSighting.from_row,
}


def _followed(last: Snapshot, feed: Feed) -> Snapshot:
    if not feed.changes and not feed.is_snapshot:
        return last
    start = Snapshot() if feed.is_snapshot else last
    rows: dict[str, dict[str, Any]] = {kind: {} for kind in _READERS}
    for change in feed.changes:
        if change.kind in _READERS:
            read, value = _READERS[change.kind], change.value
            rows[change.kind][change.key] = None if value is None else read(value)
    fleet = start.fleet
    if feed.is_snapshot or rows[_JOB] or rows[MODEL]:
        fleet = Fleet(
            _merged(fleet.jobs, rows[_JOB]),
            _merged(fleet.models, {n: m and m[0] for n, m in rows[MODEL].items()}),
            _merged(fleet.placement, {n: m and m[1] for n, m in rows[MODEL].items()}),
        )
    return Snapshot(
        feed.revision,
        fleet,
        _merged(start.models_seen, rows[_MODEL_SEEN]),
        _merged(start.jobs_seen, rows[_JOB_SEEN]),
    )


def _merged(of: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
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


def _news(now: Mapping[str, T], then: Mapping[str, object]) -> dict[str, T]:
    return {name: each for name, each in now.items() if each != then.get(name)}


def _write(
    transaction: Transaction, before: Snapshot, after: Fleet, edit: Edit
) -> Snapshot:
    """Writes the rows that differ; returns the state with them."""
    old, revision = before.fleet, before.revision
    for name in replaced(old.jobs, after.jobs):
        job = after.jobs.get(name)
        if job != old.jobs.get(name):
            row = None if job is None else job_row(job)
            revision = transaction.put(_JOB, name, row, edit.why)
    free: Mapping[str, int] = {}
    for name in {
        **replaced(old.models, after.models),
        **replaced(old.placement, after.placement),
    }:
        model = after.models.get(name)
        if model is None:
            revision = transaction.put(MODEL, name, None, edit.why)
            continue
        placed, was = after.placement.get(name, ()), old.placement.get(name, ())
        if model is old.models.get(name) and placed == was:
            continue
        if model != old.models.get(name) or set(placed) != set(was):
            if not free and not set(placed) <= set(was):
                free = free_bytes(after.models, after.jobs, after.placement)
            why = edit.why + _moves(old, after, free, model, placed)
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
    was = old.placement.get(model.name, ())
    for name in placed:
        if name not in was:
            left = (free[name] + model.memory_bytes) / (1 << 20)
            said.append(
                f"placed on {name}, the job with the least room ({left:.0f} MiB)"
            )
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


def _check_generation(fleet: Fleet, edit: Edit, wanted: int | None) -> None:
    now = _generation(fleet, edit)
    if wanted is not None and wanted != now:
        raise Aborted(
            f"{edit.model or edit.job} is at generation {now}, not {wanted}: somebody "
            "changed it; look at it again"
        )


def _generation(fleet: Fleet, edit: Edit) -> int:
    found = fleet.models.get(edit.model) or fleet.jobs.get(edit.job)
    return found.generation if found else 0


def _note_refusal(
    transaction: Transaction, fleet: Fleet, edit: Edit, error: ServingError
) -> None:
    if edit.model:
        model = fleet.models.get(edit.model)
        row = None
        if model is not None:
            row = model_row(model, fleet.placement[edit.model])
        why = f"{edit.why}; refused: {error.message}"
        transaction.put(MODEL, edit.model, row, why)


def _remember(transaction: Transaction, request: Request, answer: list[Any]) -> None:
    form = {"content": _digest(request), "answer": answer}
    transaction.put_expiring(_REQUEST, request.id, json.dumps(form))


def _answer_before(known: str, request: Request) -> Committed | ServingError:
    form = json.loads(known)
    if form["content"] != _digest(request):
        return InvalidArgument(
            f"request id {request.id} was used for another request; take a new one"
        )
    return _answer(form["answer"])


def _answer(form: list[Any]) -> Committed | ServingError:
    if isinstance(form[0], int):
        code, message = form
        return BY_CODE.get(Code(code), Unknown)(message)
    return Committed(*form)


def _digest(request: Request) -> str:
    return hashlib.sha256(request.content).hexdigest()


class StoreFollower:
    """Reads along on a thread of its own from ``start`` to ``close``.

    Args:
        state: The fleet.
        on_state: Called on that thread with the state, after each change and at least
            five times a second while the store can be read; must not block.

    """

    def __init__(self, state: FleetState, on_state: Callable[[Snapshot], None]) -> None:
        self._state = state
        self._on_state = on_state
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="follow-store", daemon=True
        )

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends soon; idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        revision = 0
        while not self._stopping.is_set():
            try:
                self._state.store.wait(revision, _TICK_S)
                snapshot = self._state.read()
                revision = snapshot.revision
                self._on_state(snapshot)
            except ServingError:
                # The synchronizer says in the log what is wrong with the store.
                self._stopping.wait(_PAUSE_S)
            except Exception:
                log.exception("event=store_follower_failed")
                self._stopping.wait(_PAUSE_S)


class FleetCopy:
    """A copy in a file. Confined to the thread that looks.

    Args:
        path: The file; its folder exists. Empty keeps no copy.

    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: Fleet | None = None

    def keep(self, snapshot: Snapshot) -> None:
        """Writes the wanted state, if it is another one; what fails is logged."""
        fleet = snapshot.fleet
        if not self._path or fleet == self._kept:
            return
        models = [
            model_row(each, fleet.placement[name])
            for name, each in fleet.models.items()
        ]
        jobs = [job_row(each) for each in fleet.jobs.values()]
        form = {
            "format": _COPY_FORMAT,
            "revision": snapshot.revision,
            "jobs": jobs,
            "models": models,
        }
        try:
            replace_file(self._path, json.dumps(form), is_durable=True)
        except OSError as error:
            log.warning("event=fleet_copy_failed path=%s problem=%s", self._path, error)
        self._kept = fleet

    def read(self) -> Snapshot | None:
        """Returns what was kept last; None, logged, if there is no copy to be read."""
        if not self._path or not os.path.exists(self._path):
            return None
        try:
            with open(self._path, encoding="utf-8") as file:
                form = json.load(file)
            if form["format"] != _COPY_FORMAT:
                raise ValueError(f"format {form['format']} is not {_COPY_FORMAT}")
            jobs = [read_job(each) for each in form["jobs"]]
            models = [read_model(each) for each in form["models"]]
            fleet = Fleet(
                {each.name: each for each in jobs},
                {each.name: each for each, _ in models},
                {each.name: placed for each, placed in models},
            )
            return Snapshot(form["revision"], fleet)
        except (OSError, ValueError, KeyError, TypeError, DataLoss) as error:
            log.warning("event=fleet_copy_unread path=%s problem=%s", self._path, error)
            return None
