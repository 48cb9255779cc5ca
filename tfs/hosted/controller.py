"""Takes users' requests: each acts once, and is answered when it is in force.

Every request is one transaction on the store. It edits the wanted state and places all
models anew. It is refused as a whole if anything that was asked for would have no
place. Synchronizers and routers follow the store; nothing here calls a server.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument, NotFound, ServingError
from tfs.hosted import controller_report
from tfs.hosted.controller_report import waits_for
from tfs.hosted.edit_reader import EditReader
from tfs.hosted.fleet_state import Edit, FleetState
from tfs.hosted.probes import AskForProbe, probe
from tfs.hosted.snapshot import MODEL, Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb

_MARGIN_S: Final = 0.5  # an answer leaves so long before its call's deadline
_LONGEST_ID: Final = 200


class Controller:
    """The requests of a fleet. Thread-safe; each blocks on the store.

    Args:
        state: The fleet.
        reader: Turns requests into edits.
        clock: Times waits.
        nudge: Called after a change, so that it is acted on at once.
        model_stores: Where versions of new models are uploaded to, by partition.
        ask_for_probe: Has a server probe versions before they are added; None does not.

    """

    def __init__(
        self,
        state: FleetState,
        reader: EditReader,
        clock: Clock,
        nudge: Callable[[], None] = lambda: None,
        model_stores: Mapping[str, str] | None = None,
        ask_for_probe: AskForProbe | None = None,
    ) -> None:
        self._model_stores = model_stores or {}
        self._ask_for_probe = ask_for_probe
        self._state = state
        self._reader = reader
        self._clock = clock
        self._nudge = nudge
        # Guards the next; leaf.
        self._lock = threading.Lock()
        # Who waits: shown each state until they say that they are done.
        self._waiting: list[Callable[[Snapshot], bool]] = []

    def change(
        self,
        request: Any,
        deadline_s: float | None,
        on_op: Callable[[pb.Op], None],
        owner: str = "",
    ) -> None:
        """Acts on a request that has an Edit; ``on_op`` is called once, on any thread.

        That is when the request is in force, has failed to become so, or was waited for
        long enough. A model that is added belongs to ``owner``.

        Raises:
            ServingError: It is refused, or nothing is known of what became of it.

        """
        asked = request.edit
        if not 0 < len(asked.request_id) <= _LONGEST_ID:
            raise InvalidArgument(
                f"edit.request_id must have 1 to {_LONGEST_ID} characters: a UUID, say"
            )
        until_s = math.inf if deadline_s is None else deadline_s - _MARGIN_S
        reply = self._state.commit(self._edit(request, owner, until_s), request)
        self._nudge()
        if asked.HasField("wait_s"):
            until_s = min(until_s, self._clock.now() + asked.wait_s)
        # What was wrong with the model before says nothing of a version that it brings.
        is_version = isinstance(request, pb.AddVersionRequest)

        def is_answered(state: Snapshot) -> bool:
            waiting = waits_for(state, reply, is_new=is_version)
            is_over = reply.notes or self._clock.now() >= until_s
            if waiting.what and not waiting.is_stuck and not is_over:
                return False
            reply.waits_for = waiting.what
            on_op(reply)
            return True

        self._wait(is_answered)

    def _edit(self, request: Any, owner: str, until_s: float) -> Edit:
        """Returns a request's edit, once the version that it brings was probed."""
        now = self._state.read()
        edit = self._reader.read(request, now, owner)
        if self._ask_for_probe is None or edit.probes is None:
            return edit
        try:
            model = edit.apply(now.fleet).models[edit.model]
        except ServingError:
            return edit  # it is refused whatever the version is like
        if self._state.request(request.edit.request_id) is not None:
            return edit  # a repetition gets the answer that it got before
        ask = self._ask_for_probe
        probed = probe(ask, self._clock, model, edit.probes, now, until_s)
        edit = self._reader.read(request, self._state.read(), owner, probed)
        return replace(edit, notes=(probed.refusal,)) if probed.refusal else edit

    def simulate(self, asked: pb.SimulateRequest, owner: str = "") -> pb.Simulation:
        """Says what a request of ``owner`` would do."""
        field = asked.WhichOneof("request")
        if field is None:
            raise InvalidArgument("nothing to simulate")
        now = self._state.read()
        request = getattr(asked, field)
        edit = self._reader.read(request, now, owner)
        try:
            after = edit.tried(now.fleet, request.edit)
        except ServingError as error:
            return pb.Simulation(refusal=error.message, notes=edit.notes)
        return controller_report.simulation(now, after, edit.notes)

    def op(self, asked: pb.GetOpRequest) -> pb.Op:
        """Says what became of a request; a refusal is raised."""
        done = self._state.request(asked.request_id)
        if done is None:
            raise NotFound(f"no request {asked.request_id} is known, or known any more")
        if isinstance(done, ServingError):
            raise done
        done.waits_for = waits_for(self._state.read(), done).what
        return done

    def model(self, asked: pb.GetModelRequest) -> pb.ModelInfo:
        """Reports a model; one that is gone, if changes of it are asked for."""
        state = self._state.read()
        found = self._model(state, asked)
        if asked.model not in state.fleet.models and not found.changes:
            what = "tfs hosted status shows what there is"
            raise NotFound(f"no model {asked.model}; {what}")
        return found

    def fleet(self, asked: pb.ListFleetRequest) -> pb.FleetInfo:
        """Reports everything."""
        state = self._state.read()
        report = controller_report.fleet(state)
        report.model_stores.update(self._model_stores)
        if asked.num_changes:
            report.changes.extend(self._changes(asked.num_changes))
        return report

    def watch(
        self,
        asked: pb.GetModelRequest,
        on_model: Callable[[pb.ModelInfo | None], None],
        is_open: Callable[[], bool],
    ) -> None:
        """Calls ``on_model`` with a model now, and after each change while ``is_open``.

        The last time it is called with None, when the model is gone.
        """
        last: pb.ModelInfo | None = None

        def has_ended(state: Snapshot) -> bool:
            nonlocal last
            if not is_open():
                return True
            if asked.model not in state.fleet.models:
                on_model(None)
                return True
            try:
                found = self._model(state, asked)
            except ServingError:  # the store is away; the next state is shown again
                return False
            if found != last:
                last = found
                on_model(found)
            return False

        self._wait(has_ended)

    def take(self, state: Snapshot) -> None:
        """Answers what waited for ``state``; called when something may have changed."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        left = [each for each in waiting if not each(state)]
        with self._lock:
            self._waiting += left

    def _wait(self, is_done: Callable[[Snapshot], bool]) -> None:
        if not is_done(self._state.read()):
            with self._lock:
                self._waiting.append(is_done)

    def _model(self, state: Snapshot, asked: pb.GetModelRequest) -> pb.ModelInfo:
        report = controller_report.model(state, asked.model)
        if asked.num_changes:
            found = self._changes(asked.num_changes, MODEL, asked.model)
            report.changes.extend(found)
        return report

    def _changes(
        self, most: int, kind: str = "", key: str = ""
    ) -> list[pb.FleetChange]:
        with self._state.store.begin(writes=False) as transaction:
            found = transaction.history(most, kind, key)
        return [
            pb.FleetChange(revision=each.revision, at_s=each.at_s, why=each.why)
            for each in found
        ]
