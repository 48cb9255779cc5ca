"""Makes serving jobs load what the store wants, and tells routers which servers answer.

A thread reads along in the store, and looks at every server at intervals, and at once when
something changed. When a server's models change, or it has a new process, it is told
the whole list of its models. Each message bears the fleet's id, the epoch of whoever leads,
the revision of the store and a number, by which servers refuse what is older than what they
were told. What servers report goes to routers as one table. A job of which no replica
answers for ``down_after_s`` is marked in the store until one does, so that its models are
placed elsewhere.

Any number of synchronizers may follow a store. The one that has the lease tells servers
and the store; the others only see. While the store is away, all go on by what they read
last, if need be from disk: they ask servers and route, and tell nobody anything.

("TensorFlow-Serving", section 3.1: the Synchronizer "instructs serving jobs which
models/versions to keep loaded", and "informs a Router job which models are successfully
loaded in which serving jobs".)
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.executor import Executor, InlineExecutor
from tfs.hosted import edits
from tfs.hosted.fleet import Fleet, Job, read_config
from tfs.hosted.fleet_state import Edit, FleetState
from tfs.hosted.jobs.job_runtime import Replica, RunningJobs, keep_jobs
from tfs.hosted.load_following import WINDOW_S, Scaling
from tfs.hosted.reports import (
    NOTHING,
    Configs,
    JobReport,
    JobSighting,
    ModelSighting,
    measured,
)
from tfs.hosted.routing.fleet_router import Routes
from tfs.hosted.servers import JobClient, Servers, Told
from tfs.hosted.sighting_table import SightingTable
from tfs.hosted.snapshot import Snapshot
from tfs.hosted.store.state_store import Lease
from tfs.proto.tensorflow_serving.config.model_server_config_pb2 import (
    ModelServerConfig,
)
from tfs.proto.tfs.v1 import admin_service_pb2

log = logging.getLogger(__name__)

_LEARN_EVERY_S: Final = 30.0
_LEASE: Final = "synchronizer"
_LEASE_LOOKS: Final = 5  # for so many looks, after which another may lead
# For so long after a change its effects are looked for more often.
_STIR_S: Final = 5.0
_SOON_S: Final = 0.2
_READ_EVERY_S: Final = 0.1  # in the store, which costs some 50 us


@dataclass(frozen=True, slots=True)
class SynchronizerOptions:
    """How jobs are watched. Immutable."""

    look_s: float = 1.0  # between two looks
    down_after_s: float = 10.0  # without an answer, until others take a job's place
    window_s: float = WINDOW_S  # over which load is averaged
    only_routes: bool = False  # neither jobs nor the store are told anything
    # Servers of another fleet, or of a newer copy of the store, are taken from it by the
    # first message to each.
    take_over: bool = False

    def __post_init__(self) -> None:
        if not self.look_s > 0:
            raise InvalidArgument(f"look_s must be positive: {self.look_s}")
        if not self.down_after_s > self.look_s:
            raise InvalidArgument(
                f"down_after_s must be more than {self.look_s:g}, the seconds between "
                f"two looks at a server: {self.down_after_s:g}"
            )


class Synchronizer:
    """Keeps servers in step with the store.

    ``nudge`` and ``wake`` are thread-safe; the rest is for the thread that looks, except
    ``start`` and ``close``.

    Args:
        state: The wanted state; is told of jobs that come and go, and of measured memory.
        client: Calls the servers.
        on_routes: Called on the thread that looks, when there are other routes than before.
        clock: Times everything.
        executor: Runs the calls of servers.
        options: How often to look, and how long to wait for a job.
        jobs: Those of the fleet; None: other processes run them.
        holder: How this synchronizer is called where it leads.
        on_state: Called on the thread that looks, time and again, with the newest state.

    """

    def __init__(
        self,
        state: FleetState,
        client: JobClient,
        on_routes: Callable[[Routes], None],
        clock: Clock,
        executor: Executor | None = None,
        options: SynchronizerOptions | None = None,
        jobs: RunningJobs | None = None,
        holder: str = "",
        on_state: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        self._state = state
        self._on_routes = on_routes
        self._clock = clock
        self._options = options or SynchronizerOptions()
        self._jobs = jobs
        self._holder = holder
        self._on_state = on_state
        # A look may take as long as the wait for it, and others are given as long again;
        # one look alone has no server given up.
        most_s = min(3 * self._options.look_s, self._options.down_after_s / 2)
        executor = executor or InlineExecutor()
        self._servers = Servers(client, clock, executor, self.nudge, most_s)
        self._table = SightingTable()
        self._scaling = Scaling(self._options.window_s)
        self._lease: Lease | None = None
        self._lease_s = clock.now()  # until then nobody else has it
        self._num_told = 0
        self._learned_s = clock.now()
        self._trouble = ""  # why the last look failed; empty if it did not
        self._last = Snapshot()
        self._routed: Routes | None = None
        # What the store has of models if nobody else wrote it, and those that fare
        # otherwise since.
        self._noted: Mapping[str, ModelSighting] = {}
        self._unnoted: set[str] = set()
        # What servers were told last, and as a message: replicas are told the same.
        self._listed: tuple[Configs, ModelServerConfig] = {}, ModelServerConfig()
        self._looked_s = self._rests_until_s = -math.inf
        # Guards the next four; notified when one of them is set. Leaf.
        self._changed = threading.Condition()
        self._is_nudged = False
        self._waking: set[str] = set()
        self._stirs_until_s = clock.now()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks on a thread of its own until ``close``."""
        self._thread = threading.Thread(
            target=self._run, name="synchronizer", daemon=True
        )
        self._thread.start()

    def wake(self, model: str) -> None:
        """Has the next look, now, give a server to a model that had none while nobody asked."""
        with self._changed:
            self._waking.add(model)
        self.nudge()

    def nudge(self) -> None:
        """Has the next look begin now, because something changed; never blocks."""
        with self._changed:
            self._is_nudged = True
            self._stirs_until_s = self._clock.now() + _STIR_S
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, after the look that is under way, and leads no more; idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        held, self._lease, self._lease_s = self._lease, None, self._clock.now()
        if held is not None:
            with (
                contextlib.suppress(ServingError),  # else it expires
                self._state.store.begin(writes=True) as transaction,
            ):
                transaction.release(held)

    def look(self) -> Fleet:
        """Looks at the store, calls the servers, and returns the wanted state.

        Raises a ServingError if the store cannot be used; servers were asked and routes told
        by what was read before.
        """
        trouble: ServingError | None = None
        with self._changed:
            waking, self._waking = self._waking, set()
        try:
            self._last = self._state.read()
            for name in waking:
                self._last = self._state.change(edits.wake(name))
            self._state.copy.keep(self._last)
        except ServingError as error:
            trouble, self._lease = error, None
            if not self._last.revision:
                self._last = self._state.copy.read() or self._last
        fleet = self._last.fleet
        self._servers.ask(each for job in fleet.jobs.values() for each in job.addresses)
        reports = self._see(fleet)
        if trouble is not None:
            raise trouble
        if self._jobs is not None:
            keep_jobs(self._jobs, self._state, fleet, self._table.routes, reports)
        if self._options.only_routes or not self._take_lease():
            return fleet
        # This comes first, so that a job that is back is told what it is to serve from
        # now on.
        fleet = self._note_jobs(fleet, reports)
        if self._clock.now() - self._learned_s >= _LEARN_EVERY_S:
            self._learned_s = self._clock.now()
            fleet = self._change(edits.learn(measured(reports)))
        scaled = self._scaling.wanted(self._clock.now(), fleet, reports)
        if scaled:
            fleet = self._change(edits.follow_load(scaled))
        self._see(fleet)
        self._tell_all(fleet, reports)
        self._note(fleet, reports)
        return fleet

    def look_safely(self) -> None:
        """Looks, and logs what is wrong with the store: once, and when it is well again."""
        self._safely(self.look)

    def _safely(self, do: Callable[[], object]) -> None:
        try:
            do()
        except ServingError as error:
            if str(error) != self._trouble:
                log.error("event=fleet_not_synchronized problem=%s", error)
            self._trouble = str(error)
        except Exception:
            log.exception("event=synchronizer_failed")
        else:
            if self._trouble:
                log.info("event=fleet_synchronized after=%s", self._trouble)
            self._trouble = ""

    def _replicas(self) -> Iterable[Replica]:
        """Returns those that run here."""
        return chain.from_iterable(self._jobs.seen.values() if self._jobs else ())

    def _read_along(self) -> None:
        now = self._state.read()
        self._on_state(now)
        if now.revision != self._last.revision:
            self.nudge()

    def _take_lease(self) -> bool:
        """Takes or renews the right to tell; returns whether this synchronizer has it."""
        ttl_s = _LEASE_LOOKS * self._options.look_s
        until_s = self._clock.now() + ttl_s
        held = self._lease
        with self._state.store.begin(writes=True) as transaction:
            taken = transaction.acquire(_LEASE, self._holder, ttl_s)
        self._lease = taken
        if self._lease is not None:
            self._lease_s = until_s
        if (held is None) != (self._lease is None):
            state = "leads" if self._lease else "follows"
            log.info("event=synchronizer_%s holder=%s", state, self._holder)
        return self._lease is not None

    def _change(self, edit: Edit) -> Fleet:
        return self._state.change(edit, self._lease).fleet

    def _see(self, fleet: Fleet) -> Mapping[str, JobReport]:
        """Tells routers what follows from what servers said; these are told after that.

        Returns the reports of those that answer.
        """
        heard = self._servers.heard(self._options.down_after_s)
        for each in self._replicas():
            if each.address in heard and heard[each.address].at_s < each.started_s:
                heard[each.address] = NOTHING  # that was another process
        self._unnoted |= self._table.take(fleet, heard)
        if self._routed != self._table.routes:
            self._routed = dict(self._table.routes)
            self._on_routes(self._routed)
        return {at: each for at, each in heard.items() if not each.is_silent}

    def _tell_all(self, fleet: Fleet, reports: Mapping[str, JobReport]) -> None:
        epoch = self._lease.epoch if self._lease else 0
        for job_name, configs in self._table.wanted.items():
            job = fleet.jobs[job_name]
            there = [each for each in job.addresses if each in reports]
            for address in there:
                self._servers.tell(
                    address,
                    Told(reports[address].started_s, epoch, configs),
                    partial(self._message, fleet, configs),
                    # Nobody else can have the lease, by this machine's clock.
                    lambda: self._clock.now() < self._lease_s,
                )
            is_known = bool(there) or job.is_down or not job.addresses
            if is_known and not configs and job.may_go:
                self._change(edits.empty_job(job_name))

    def _message(
        self, fleet: Fleet, configs: Configs, is_first: bool
    ) -> admin_service_pb2.AspireRequest:
        self._num_told += 1
        request = admin_service_pb2.AspireRequest(
            claim=admin_service_pb2.FleetClaim(
                fleet=self._state.fleet_id(),
                name=self._state.store.name,
                epoch=self._lease.epoch if self._lease else 0,
                revision=self._last.revision,
                sequence=self._num_told,
            ),
            num_models=len(configs),
            take_over=self._options.take_over and is_first,
        )
        if self._listed[0] is not configs:
            message = ModelServerConfig()
            message.model_config_list.SetInParent()
            message.model_config_list.config.extend(
                read_config(fleet.models[each].config) for each in sorted(configs)
            )
            self._listed = configs, message
        request.config.CopyFrom(self._listed[1])
        return request

    def _note(self, fleet: Fleet, reports: Mapping[str, JobReport]) -> None:
        """Notes how models and jobs fare."""
        seen = self._last.models_seen
        if seen is not self._noted:  # somebody else wrote it, or we begin
            self._unnoted |= {*self._table.names(), *seen}
        models = {each: self._table.sighting(each) for each in self._unnoted}
        jobs = {name: self._seen(job, reports) for name, job in fleet.jobs.items()}
        self._noted = self._state.note(models, jobs, self._lease).models_seen
        self._unnoted = set()

    def _seen(self, job: Job, reports: Mapping[str, JobReport]) -> JobSighting:
        before = self._last.jobs_seen.get(job.name, JobSighting()).answering
        known = self._servers.known(job.addresses)
        problems = [each.problem for each in known.values() if each.problem]
        replicas = self._jobs.seen.get(job.name, ()) if self._jobs is not None else ()
        outdated = [each.address for each in replicas if each.is_outdated(job)]
        # One that answers and has a problem refuses what it is told, one that was not told
        # anything yet may, and one with other limits is to make way.
        following = tuple(
            at
            for at, each in known.items()
            if at in reports and not each.problem and (each.told or at in before)
            if at not in outdated
        )
        own = [each.problem for each in replicas if each.problem]
        own += [f"{each} has its limits of before" for each in outdated]
        return JobSighting(following, "; ".join(own or problems))

    def _note_jobs(self, fleet: Fleet, reports: Mapping[str, JobReport]) -> Fleet:
        """Notes which jobs went down or came back; returns the wanted state."""
        changed, patience_s = {}, self._options.down_after_s
        for name, job in fleet.jobs.items():
            known = self._servers.known(job.addresses).values()
            is_silent = all(each.silent_s >= patience_s for each in known)
            is_back = any(each in reports for each in job.addresses)
            if known and job.is_down != is_silent and (is_silent or is_back):
                state = "down" if is_silent else "up"
                log.warning("event=job_%s job=%s", state, name)
                changed[name] = is_silent
        return self._change(edits.note_jobs(changed)) if changed else fleet

    def _run(self) -> None:
        while True:
            begun_s = self._clock.now()
            with self._changed:
                is_due = begun_s >= self._next_look_s_locked(begun_s)
                self._is_nudged = self._is_nudged and not is_due
            if is_due:
                self.look_safely()
                self._looked_s = self._clock.now()
                # However much happens, others have as long as a look took; the lease is
                # for more than that.
                rest_s = min(self._looked_s - begun_s, self._options.look_s)
                self._rests_until_s = self._looked_s + rest_s
            if not self._trouble:
                self._safely(self._read_along)
            with self._changed:
                now_s = self._clock.now()
                reads_s = now_s + _READ_EVERY_S
                while not self._stopping and now_s < reads_s:
                    wakes_s = min(reads_s, self._next_look_s_locked(now_s))
                    if wakes_s <= now_s:
                        break
                    self._clock.wait(self._changed, wakes_s)
                    now_s = self._clock.now()
                if self._stopping:
                    return

    def _next_look_s_locked(self, now_s: float) -> float:
        if self._is_nudged:
            return self._rests_until_s
        stirs = now_s < self._stirs_until_s
        return self._looked_s + min(
            _SOON_S if stirs else math.inf, self._options.look_s
        )
