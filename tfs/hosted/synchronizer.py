"""Makes serving jobs load what the store wants, and tells routers which servers answer.

A thread looks at the store and at every server at intervals, and at once if somebody says
that something changed. When a server's models change, or it has a new process, it is told
the whole list of its models (AdminService.Aspire), which is idempotent, like aspired
versions. Each message bears the fleet's id, the epoch of whoever leads, the revision of the
store and a number, by which servers refuse what is older than what they were told. What
servers report (ListModels) goes to routers as one table. Where none of a model's servers
answered the last question, what they said before counts. A job of which no replica answers
for ``down_after_s`` is marked in the store, so that its models are placed elsewhere. When
one answers again, the mark is removed.

Any number of synchronizers may follow a store. The one that has the lease tells servers
and the store; the others only see. While the store is away, all go on by what they read
last, if need be from disk: they ask servers and route, and tell nobody anything.

("TensorFlow-Serving", section 3.1: the Synchronizer "instructs serving jobs which
models/versions to keep loaded", and "informs a Router job which models are successfully
loaded in which serving jobs".)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from tfs.core.clock import Clock
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.executor import Executor, InlineExecutor
from tfs.hosted import edits
from tfs.hosted.fleet import Fleet, HostedModel, Job, read_config
from tfs.hosted.fleet_state import Edit, FleetState, Snapshot
from tfs.hosted.load_following import LoadOptions, Scaling
from tfs.hosted.reports import (
    JobReport,
    JobSighting,
    answering,
    measured,
    routes_of,
    sightings_of,
)
from tfs.hosted.store.state_store import Lease
from tfs.proto.tfs.v1 import admin_service_pb2

log = logging.getLogger(__name__)

_LEARN_EVERY_S: Final = 30.0
_LEASE: Final = "synchronizer"
_LEASE_LOOKS: Final = 5  # for so many looks, after which another may lead


class JobClient(Protocol):
    """AdminService of serving jobs. Thread-safe; each call blocks for seconds at most."""

    def list_models(self, address: str) -> JobReport:
        """Asks a job for its models; the report's time is the caller's to note.

        Raises:
            ServingError: It does not answer, or refuses.

        """
        ...

    def aspire(self, address: str, request: admin_service_pb2.AspireRequest) -> None:
        """Tells a server what to serve; returns when it is on that server's disk.

        Raises:
            ServingError: It does not answer, or refuses.

        """
        ...

    def forget(self, address: str) -> None:
        """Closes the connection to a removed job; calls under way go on to their end."""
        ...


@dataclass(frozen=True, slots=True)
class SynchronizerOptions:
    """How jobs are watched. Immutable.

    Attributes:
        look_s: Seconds between two looks.
        down_after_s: Seconds without an answer until others take a job's place; more
            than ``look_s``, because a job answers once for each look.
        only_routes: Whether jobs are only asked, and neither they nor the store are
            told anything: for routers beside the one synchronizer that does that.
        load: How replicas follow load.
        take_over: Whether servers of another fleet, or of a newer copy of the store, are
            taken from it by the first message to each.

    """

    look_s: float = 1.0
    down_after_s: float = 10.0
    only_routes: bool = False
    take_over: bool = False
    load: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        if not self.look_s > 0:
            raise InvalidArgument(f"look_s must be positive: {self.look_s}")
        if not self.down_after_s > self.look_s:
            raise InvalidArgument(
                f"down_after_s must be more than {self.look_s:g}, the seconds between "
                f"two looks at a server: {self.down_after_s:g}"
            )


_Told = tuple[float, int, frozenset[str]]
"""The start of the process that was told, by whom (epoch), and its models' configs."""


@dataclass(slots=True)
class _ServerRecord:
    """What is known of a server. Written by one call of each kind to it at a time."""

    answered_s: float
    report: JobReport | None = None  # None: it did not answer the last question
    last_report: JobReport | None = None
    told: _Told | None = None
    # What it had been told when it was asked for its last report.
    told_before: _Told | None = None
    problem: str = ""
    is_asked: bool = False
    is_told: bool = False

    def current(self) -> frozenset[str]:
        """Returns the configs that its process was told before its last report."""
        told, report = self.told_before, self.report
        is_of_it = told and report and told[0] == report.started_s
        return told[2] if told and is_of_it else frozenset()


RoutesListener = Callable[[Mapping[str, tuple[str, ...]]], None]
"""Takes the addresses that answer for each model; a new mapping each time."""


class Synchronizer:
    """Keeps servers in step with the store.

    ``nudge`` is thread-safe; the rest is for the thread that looks, except ``start`` and
    ``close``.

    Args:
        state: The wanted state; is told of jobs that come and go, and of measured memory.
        client: Calls the servers.
        on_routes: Called after each look, on the thread that looks.
        clock: Times everything.
        executor: Runs the calls of servers. One that hangs holds up no look, and no
            other server while there are threads left.
        options: How often to look, and how long to wait for a job.
        job_problem: Says what is wrong with the processes of a job; empty if nothing is.
        holder: How this synchronizer is called where it leads.

    """

    def __init__(
        self,
        state: FleetState,
        client: JobClient,
        on_routes: RoutesListener,
        clock: Clock,
        executor: Executor | None = None,
        options: SynchronizerOptions | None = None,
        job_problem: Callable[[str], str] = lambda _: "",
        holder: str = "",
    ) -> None:
        self._state = state
        self._client = client
        self._on_routes = on_routes
        self._clock = clock
        self._executor = executor or InlineExecutor()
        self._options = options or SynchronizerOptions()
        self._job_problem = job_problem
        self._holder = holder
        self._lease: Lease | None = None
        self._lease_s = clock.now()  # until then nobody else has it
        self._num_told = 0
        self._scaling = Scaling(self._options.load)
        self._servers: dict[str, _ServerRecord] = {}
        self._learned_s = clock.now()
        self._trouble = ""  # why the last look failed; empty if it did not
        self._last: Snapshot | None = None
        self._looked_s: float | None = None  # when the last look began
        # What the last look that went on to its end was about.
        self._settled: tuple[object, ...] = ()
        # What routers were told last was about.
        self._routed: tuple[object, ...] = ()
        # Guards the next three; notified when one of the last two is set. Leaf.
        self._changed = threading.Condition()
        self._has_news = False
        self._is_nudged = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks on a thread of its own until ``close``."""
        self._thread = threading.Thread(
            target=self._run, name="synchronizer", daemon=True
        )
        self._thread.start()

    def nudge(self) -> None:
        """Has the next look begin now, because something changed; never blocks."""
        with self._changed:
            self._is_nudged = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, after the look that is under way; idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def leads(self) -> bool:
        """Whether this synchronizer is the one that tells servers what to serve."""
        return self._lease is not None

    def look(self) -> Fleet:
        """Looks at the store, calls the servers, and returns the wanted state.

        Raises:
            ServingError: The store cannot be read, or is another one than before. Servers
                were asked and routes told by what was read before.

        """
        trouble: ServingError | None = None
        try:
            self._last = self._state.read()
            self._state.copy.keep(self._last)
        except ServingError as error:
            trouble, self._lease = error, None
            self._last = self._last or self._state.copy.read()
        fleet = (self._last or Snapshot()).fleet
        self._excuse()
        self._ask_all(fleet)
        if trouble is not None:
            raise trouble
        if self._options.only_routes or not self._take_lease():
            return fleet
        # This comes first, so that a job that is back is told what it is to serve from
        # now on.
        fleet = self._note_jobs(fleet)
        reports = self.reports
        scaled = self._scaling.wanted(self._clock.now(), fleet, reports)
        if scaled:
            fleet = self._change(edits.follow_load(scaled))
        jobs_seen = {name: self._seen(job) for name, job in fleet.jobs.items()}
        moment = fleet, self._lease, jobs_seen
        if self._is_settled(moment):
            return fleet
        self._settled = ()  # unless all of this is done
        self._tell_all(fleet, reports)
        known = {
            address: (report, self._servers[address].current())
            for address, report in reports.items()
        }
        self._state.note(sightings_of(fleet, known), jobs_seen, self._lease)
        self._settled = moment
        return fleet

    def _is_settled(self, moment: tuple[object, ...]) -> bool:
        """Whether nothing changed since servers were told and the store was.

        Of ten thousand models on a thousand servers something does in one look of ten.
        Every half a minute all is said anew all the same, and memory learned.
        """
        is_due = self._clock.now() - self._learned_s >= _LEARN_EVERY_S
        if is_due:
            self._learned_s = self._clock.now()
            self._change(edits.learn(measured(self.reports)))
        return not is_due and self._settled == moment

    def look_safely(self) -> None:
        """Looks, and logs what is wrong with the store: once, and when it is well again."""
        try:
            self.look()
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

    @property
    def reports(self) -> Mapping[str, JobReport]:
        """The last reports of all servers that answer, by address."""
        records = [(address, each.report) for address, each in self._servers.items()]
        return {address: report for address, report in records if report is not None}

    def _take_lease(self) -> bool:
        """Takes or renews the right to tell; returns whether this synchronizer has it."""
        ttl_s = _LEASE_LOOKS * self._options.look_s
        until_s = self._clock.now() + ttl_s
        held = self._lease
        self._lease = self._state.store.acquire(_LEASE, self._holder, ttl_s)
        if self._lease is not None:
            self._lease_s = until_s
        if (held is None) != (self._lease is None):
            state = "leads" if self._lease else "follows"
            log.info("event=synchronizer_%s holder=%s", state, self._holder)
        return self._lease is not None

    def _change(self, edit: Edit) -> Fleet:
        return self._state.change(edit, self._lease).fleet

    def _ask_all(self, fleet: Fleet) -> None:
        wanted = [each for job in fleet.jobs.values() for each in job.addresses]
        gone = [each for each in self._servers if each not in set(wanted)]
        for address in gone:
            del self._servers[address]
        for address in wanted:
            record = self._servers.setdefault(address, _ServerRecord(self._clock.now()))
            if not record.is_asked:
                record.is_asked = True
                self._executor.submit(partial(self._ask, address, record))
        with self._changed:
            has_news, self._has_news = self._has_news, False
        if has_news:
            self._settled = self._routed = ()
        silent = self._silent()
        moment = fleet, set(silent)
        if self._routed != moment:
            self._routed = moment
            self._on_routes(routes_of(fleet, self.reports, silent))
        for address in gone:  # after no more requests go there
            self._client.forget(address)

    def _tell_all(self, fleet: Fleet, reports: Mapping[str, JobReport]) -> None:
        wanted = wanted_models(fleet, answering(fleet, reports), reports)
        for job_name, names in wanted.items():
            job = fleet.jobs[job_name]
            models = [fleet.models[name] for name in names]
            there = [each for each in job.addresses if each in reports]
            for address in there:
                self._tell_if_new(address, reports[address], models)
            is_known = bool(there) or job.is_down or not job.addresses
            if names or not is_known:
                continue
            if job.is_leaving:
                self._change(edits.drop_job(job_name))
            elif job.max_replicas and job.num_replicas > job.min_replicas:
                self._change(edits.rest_job(job_name))

    def _seen(self, job: Job) -> JobSighting:
        records = [(each, self._servers.get(each)) for each in job.addresses]
        answering = [each for each, record in records if record and record.report]
        own = self._job_problem(job.name)
        problems = [own] if own else [r.problem for _, r in records if r and r.problem]
        return JobSighting(tuple(answering), "; ".join(problems))

    def _excuse(self) -> None:
        """Holds it against no job that for a while nobody looked.

        The store could not be read, or this process was stopped, or its machine asleep:
        all jobs would count as down at the next look.
        """
        now_s, before_s = self._clock.now(), self._looked_s
        self._looked_s = now_s
        # Looks may come late on a busy machine, and take as long again themselves.
        if before_s is None or now_s - before_s <= 2 * self._options.look_s:
            return
        unseen_s = now_s - before_s - self._options.look_s
        for record in self._servers.values():
            record.answered_s = min(record.answered_s + unseen_s, now_s)

    def _silent(self) -> Mapping[str, JobReport]:
        """The last reports of the jobs that missed a question and are not given up."""
        since_s = self._clock.now() - self._options.down_after_s
        return {
            address: each.last_report
            for address, each in self._servers.items()
            if each.report is None
            and each.last_report is not None
            and each.answered_s > since_s
        }

    def _say_news(self) -> None:
        with self._changed:
            self._has_news = True
        self.nudge()

    def _run(self) -> None:
        while True:
            self.look_safely()
            with self._changed:
                if not (self._stopping or self._is_nudged):
                    self._clock.wait(
                        self._changed, self._clock.now() + self._options.look_s
                    )
                self._is_nudged = False
                if self._stopping:
                    return

    def _ask(self, address: str, record: _ServerRecord) -> None:
        if self._is_gone(address, record):  # while this waited for a thread
            return
        told, before = record.told, (record.report, record.told_before)
        try:
            report = self._client.list_models(address)
            report = replace(report, at_s=self._clock.now())
            if before[0] is None:
                record.problem = ""
            record.told_before = told
            record.report = record.last_report = report
            record.answered_s = self._clock.now()
            if before != (report, told):
                self._say_news()
        except ServingError as error:
            record.report = None
            _note_problem(address, record, error)
            if before[0] is not None:
                self._say_news()
        finally:
            record.is_asked = False
            self._close_if_gone(address, record)

    def _tell_if_new(
        self,
        address: str,
        report: JobReport,
        models: Sequence[HostedModel],
    ) -> None:
        record, epoch = self._servers[address], self._lease.epoch if self._lease else 0
        wanted = report.started_s, epoch, frozenset(each.config for each in models)
        if record.is_told or record.told == wanted:
            return
        request = self._message(epoch, models)
        request.take_over = self._options.take_over and record.told is None

        def tell() -> None:
            if self._is_gone(address, record) or not self._still_leads():
                record.is_told = False
                return
            try:
                self._client.aspire(address, request)
                record.told = wanted
                record.problem = ""
            except ServingError as error:
                _note_problem(address, record, error)
                with self._changed:
                    self._has_news = True  # the next look tries again
                return
            finally:
                record.is_told = False
                self._close_if_gone(address, record)
            names = [each.name for each in models]
            log.info("event=job_told address=%s models=%s", address, ",".join(names))
            self._say_news()

        record.is_told = True
        self._executor.submit(tell)

    def _message(
        self, epoch: int, models: Sequence[HostedModel]
    ) -> admin_service_pb2.AspireRequest:
        self._num_told += 1
        request = admin_service_pb2.AspireRequest(
            claim=admin_service_pb2.FleetClaim(
                fleet=self._state.fleet_id(),
                name=self._state.store.name,
                epoch=epoch,
                revision=self._last.revision if self._last else 0,
                sequence=self._num_told,
            ),
            num_models=len(models),
        )
        listed = request.config.model_config_list
        listed.SetInParent()
        listed.config.extend(map(read_config, models))
        return request

    def _still_leads(self) -> bool:
        """Whether nobody else can have the lease, by this machine's clock."""
        return self._clock.now() < self._lease_s

    def _is_gone(self, address: str, record: _ServerRecord) -> bool:
        return self._servers.get(address) is not record

    def _close_if_gone(self, address: str, record: _ServerRecord) -> None:
        """Closes the connection that a call opened whose server was removed meanwhile."""
        if self._is_gone(address, record):
            self._client.forget(address)

    def _note_jobs(self, fleet: Fleet) -> Fleet:
        """Notes which jobs went down or came back; returns the wanted state."""
        now_s, changed = self._clock.now(), {}
        for name, job in fleet.jobs.items():
            known = [self._servers.get(each) for each in job.addresses]
            records = [each for each in known if each is not None]
            if not records:
                continue
            answered_s = max(each.answered_s for each in records)
            is_silent = now_s - answered_s >= self._options.down_after_s
            is_back = any(each.report is not None for each in records)
            if job.is_down != is_silent and (is_silent or is_back):
                state = "down" if is_silent else "up"
                log.warning("event=job_%s job=%s", state, name)
                changed[name] = is_silent
        return self._change(edits.note_jobs(changed)) if changed else fleet


def _note_problem(address: str, record: _ServerRecord, error: ServingError) -> None:
    if record.problem != str(error):
        log.warning("event=job_problem address=%s problem=%s", address, error)
    record.problem = str(error)


def wanted_models(
    fleet: Fleet,
    answering: Mapping[str, Collection[str]],
    reporting: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """Returns the models of each job, by name; pure.

    Args:
        fleet: The wanted state.
        answering: The addresses that answer for each model, by what servers report.
        reporting: The addresses of the servers that report anything.

    """
    wanted: dict[str, list[str]] = {job: [] for job in fleet.jobs}
    job_at = {at: name for name, job in fleet.jobs.items() for at in job.addresses}
    there = {
        name: [each for each in job.addresses if each in reporting]
        for name, job in fleet.jobs.items()
    }
    for name in fleet.models:
        placed = fleet.placement.get(name, ())
        for job in placed:
            if job in wanted:
                wanted[job].append(name)
        at = answering.get(name, ())
        if placed and all(
            there.get(job) and all(each in at for each in there[job]) for job in placed
        ):
            continue
        # This also holds for a model without any place: what serves goes on serving.
        for job in {job_at[each] for each in at}.difference(placed):
            wanted[job].append(name)
    return {job: tuple(sorted(names)) for job, names in wanted.items()}
