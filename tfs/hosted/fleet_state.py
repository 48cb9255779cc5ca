"""A fleet in its store: read along as it changes, and changed in transactions.

Every process that uses a store has one of these. It keeps the last state that it read or
wrote, and brings it up to date by the store's feed.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format

from tfs.core.errors import (
    BY_CODE,
    Aborted,
    Code,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unknown,
)
from tfs.hosted.fleet import Fleet, merged, news
from tfs.hosted.reports import JobSighting, ModelSighting
from tfs.hosted.snapshot import (
    JOB_SEEN,
    MODEL,
    MODEL_SEEN,
    FleetCopy,
    Snapshot,
    followed,
    row_of,
    write,
)
from tfs.hosted.store.state_store import EXPIRING, Lease, StateStore, Transaction
from tfs.proto.tfs.v1 import controller_pb2 as pb

_REQUEST: Final = EXPIRING + "request"
_FLEET: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of a fleet that can be tried out, or made. Immutable."""

    why: str  # what makes it, for people: "add-model digits"
    apply: Callable[[Fleet], Fleet]  # pure; raises a ServingError
    model: str = ""  # that it is about
    job: str = ""
    version: int | None = None
    probes: int | None = None  # the version that it brings, which is to be tried first
    num_servers: int = 0  # on which it asks for the model to be, at least
    notes: tuple[str, ...] = ()  # why it will not be in force by itself

    def generation(self, fleet: Fleet) -> int:
        """Returns the generation of its model or job; 0 if there is none."""
        found = fleet.models.get(self.model) or fleet.jobs.get(self.job)
        return found.generation if found else 0

    def tried(self, fleet: Fleet, asked: pb.Edit) -> Fleet:
        """Applies it; Aborted if its model or job has not the generation asked for."""
        now = self.generation(fleet)
        if asked.HasField("if_generation") and asked.if_generation != now:
            raise Aborted(
                f"{self.model or self.job} is at generation {now}, not "
                f"{asked.if_generation}: somebody changed it; look at it again"
            )
        return self.apply(fleet)


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
        """Returns what tells this fleet from all others; made with its store."""
        if not self._fleet_id:
            with self.store.begin(writes=True) as transaction:
                known = transaction.get(_FLEET, "id")
                if known is None:
                    known = uuid.uuid4().hex
                    transaction.put(_FLEET, "id", known)
            self._fleet_id = known
        return self._fleet_id

    def read(self) -> Snapshot:
        """Returns the present state.

        Raises:
            FailedPrecondition: The store is older than what was seen here, or unusable.
            Unavailable: It cannot be reached.
            DataLoss: It contains something else.

        """
        with self.store.begin(writes=False) as transaction:
            return self._advanced(transaction)

    def change(self, edit: Edit, lease: Lease | None = None) -> Snapshot:
        """Makes an edit; returns the state afterwards. If it raises, nothing changed.

        Raises Aborted if somebody else has the lease.
        """
        with self.store.begin(writes=True) as transaction:
            if lease is not None:
                transaction.check(lease)
            before = self._advanced(transaction)
            after = write(transaction, before, edit.apply(before.fleet), edit.why)
        return self._kept(after)

    def commit(self, edit: Edit, request: Any) -> pb.Op:
        """Makes an edit that a user asked for, once: a repetition gets the same answer.

        A refusal is an answer, too, and is noted with the model. The request has an Edit.

        Raises:
            InvalidArgument: The id named another request before.
            Aborted: The model or job has another generation.
            ServingError: What ``edit`` raises.

        """
        asked, digest = request.edit, _digest(request)
        with self.store.begin(writes=True) as transaction:
            known = transaction.get(_REQUEST, asked.request_id)
            if known is None:
                answer = self._answer_to(transaction, edit, asked)
                known = json.dumps({"content": digest, "answer": answer})
                transaction.put_expiring(_REQUEST, asked.request_id, known)
        if json.loads(known)["content"] != digest:
            raise InvalidArgument(
                f"request id {asked.request_id} was used for another request; take a new "
                "one"
            )
        outcome = _outcome(known)
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def _answer_to(
        self, transaction: Transaction, edit: Edit, asked: pb.Edit
    ) -> object:
        """Makes an edit, or notes why not; returns the answer as it is kept."""
        before = self._advanced(transaction)
        try:
            wanted = edit.tried(before.fleet, asked)
            after = write(transaction, before, wanted, edit.why)
        except ServingError as error:
            if edit.model:
                row = row_of(before.fleet.models.get(edit.model))
                why = f"{edit.why}; refused: {error.message}"
                transaction.put(MODEL, edit.model, row, why)
            return [error.code, error.message]
        done = pb.Op(
            request_id=asked.request_id,
            what=edit.why,
            model=edit.model,
            job=edit.job,
            revision=after.revision,
            generation=edit.generation(after.fleet),
            notes=edit.notes,
            version=edit.version,
            num_servers=edit.num_servers,
        )
        return json_format.MessageToDict(done)

    def request(self, request_id: str) -> pb.Op | ServingError | None:
        """Returns what became of a request; None if it is not known (any more)."""
        with self.store.begin(writes=False) as transaction:
            text = transaction.get(_REQUEST, request_id)
        return None if text is None else _outcome(text)

    def note(
        self,
        models: Mapping[str, ModelSighting | None],
        jobs: Mapping[str, JobSighting],
        lease: Lease | None = None,
    ) -> Snapshot:
        """Notes how these models fare, or (None) that they are gone, and how all jobs do.

        Returns the state afterwards; raises as :meth:`change` does.
        """
        before = self.read()
        models = news(before.models_seen, models)
        there = news(before.jobs_seen, {**dict.fromkeys(before.jobs_seen), **jobs})
        if not models and not there:
            return before
        with self.store.begin(writes=True) as transaction:
            if lease is not None:
                transaction.check(lease)
            now = self._advanced(transaction)
            for kind, seen in ((MODEL_SEEN, models), (JOB_SEEN, there)):
                for name, each in seen.items():
                    # Without a reason: nobody asked for it.
                    transaction.put(kind, name, row_of(each))
        seen_now = merged(now.models_seen, models), merged(now.jobs_seen, there)
        return self._kept(Snapshot(transaction.revision, now.fleet, *seen_now))

    def _advanced(self, transaction: Transaction) -> Snapshot:
        with self._lock:
            last = self._last
        feed = transaction.feed(last.revision)
        seen = max(last.revision, self._least)
        if feed.revision < seen:
            raise FailedPrecondition(
                f"the fleet's store {self.store.name} is at revision {feed.revision}, and "
                f"revision {seen} was seen here: it is an older copy, or its file went; "
                "put the newest back, or start again with --take_over"
            )
        return self._kept(followed(last, feed))

    def _kept(self, now: Snapshot) -> Snapshot:
        """Goes on from a state that is in the store."""
        with self._lock:
            if now.revision > self._last.revision:
                self._last = now
        return now


def _outcome(known: str) -> pb.Op | ServingError:
    answer = json.loads(known)["answer"]
    if isinstance(answer, list):
        code, message = answer
        return BY_CODE.get(Code(code), Unknown)(message)
    return json_format.ParseDict(answer, pb.Op(), ignore_unknown_fields=True)


def _digest(request: Any) -> str:
    """Returns what tells a repetition of a request from another request."""
    content = type(request)()
    content.CopyFrom(request)
    content.ClearField("edit")
    asked_for = content.SerializeToString(deterministic=True)
    return hashlib.sha256(type(request).__name__.encode() + asked_for).hexdigest()
