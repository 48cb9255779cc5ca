"""Makes serving jobs load what the store wants, and tells routers which jobs answer.

A thread looks at the store and at every job at intervals. When a job's models change,
or the job has a new process, it tells the job the whole list of its models
(AdminService.ApplyConfig), which is idempotent, like aspired versions. A job that turns
out to serve something else, because somebody reloaded it, is told again. What jobs report
(ListModels) goes to routers as one table. Where none of a model's jobs answered the last
question, what they said before counts. A job that does not answer for ``down_after_s`` is
marked in the store, so that its models are placed elsewhere. When it answers again, the
mark is removed.

("TensorFlow-Serving", section 3.1: the Synchronizer "instructs serving jobs which
models/versions to keep loaded", and "informs a Router job which models are successfully
loaded in which serving jobs".)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, InvalidArgument, ServingError
from tfs.core.executor import Executor, InlineExecutor
from tfs.hosted.controller import Controller
from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_store import FleetStore, ModelSighting
from tfs.hosted.job_report import (
    JobReport,
    config_of,
    measured,
    report_of,
    routes_of,
    serves_as_told,
    sightings_of,
)
from tfs.hosted.wanted_models import wanted_models
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2

log = logging.getLogger(__name__)

_LEARN_EVERY_S: Final = 30.0
_NOTE_EVERY_S: Final = 10.0


class JobClient(Protocol):
    """AdminService of serving jobs. Thread-safe; each call blocks for seconds at most."""

    def list_models(self, address: str) -> admin_service_pb2.ListModelsResponse:
        """Asks a job for its models.

        Raises:
            ServingError: It does not answer, or refuses.

        """
        ...

    def apply(
        self, address: str, config: model_server_config_pb2.ModelServerConfig
    ) -> None:
        """Tells a job what to serve; returns when the job has accepted it.

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

    """

    look_s: float = 1.0
    down_after_s: float = 10.0
    only_routes: bool = False

    def __post_init__(self) -> None:
        if not self.look_s > 0:
            raise InvalidArgument(f"look_s must be positive: {self.look_s}")
        if not self.down_after_s > self.look_s:
            raise InvalidArgument(
                f"down_after_s must be more than {self.look_s:g}, the seconds between "
                f"two looks at a server: {self.down_after_s:g}"
            )


@dataclass(slots=True)
class _JobRecord:
    """What is known of a job. Written by one call of each kind to the job at a time."""

    answered_s: float
    report: JobReport | None = None  # None: it did not answer the last question
    last_report: JobReport | None = None
    # The start of the process that was told, and the config.
    told: tuple[float, bytes] | None = None
    # What it had been told when it was asked for its last report.
    told_before: tuple[float, bytes] | None = None
    # The base paths of its models when it was last told again because of them.
    strayed: Mapping[str, str] | None = None
    problem: str = ""
    is_asked: bool = False
    is_told: bool = False


RoutesListener = Callable[[Mapping[str, tuple[str, ...]]], None]
"""Takes the addresses that answer for each model; a new mapping each time."""


class Synchronizer:
    """Keeps jobs in step with the store. Except ``start`` and ``close``, for one thread.

    Args:
        store: The wanted state.
        controller: Is told of jobs that come and go, and of measured memory.
        client: Calls the jobs.
        on_routes: Called after each look, on the thread that looks.
        clock: Times everything.
        executor: Runs the calls of jobs. A job that hangs holds up no look, and no
            other job while there are threads left.
        options: How often to look, and how long to wait for a job.

    """

    def __init__(
        self,
        store: FleetStore,
        controller: Controller,
        client: JobClient,
        on_routes: RoutesListener,
        clock: Clock,
        executor: Executor | None = None,
        options: SynchronizerOptions | None = None,
    ) -> None:
        self._store = store
        self._controller = controller
        self._client = client
        self._on_routes = on_routes
        self._clock = clock
        self._executor = executor or InlineExecutor()
        self._options = options or SynchronizerOptions()
        self._jobs: dict[str, _JobRecord] = {}
        self._learned_s = clock.now()
        self._noted: Mapping[str, ModelSighting] | None = None
        self._noted_s = clock.now()
        self._trouble = ""  # why the last look failed; empty if it did not
        self._revision = 0  # the last one that was read
        self._looked_s: float | None = None  # when the last look began
        # Guards the next; notified to end the thread. Leaf.
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Looks on a thread of its own until ``close``."""
        self._thread = threading.Thread(
            target=self._run, name="synchronizer", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, after the look that is under way; idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> Fleet:
        """Looks at the store, calls the jobs, and returns the wanted state.

        Raises:
            ServingError: The store cannot be read, or is another one than before. Jobs
                and routes stay as they are.

        """
        fleet = self._read()
        self._excuse()
        gone = [each for each in self._jobs if each not in fleet.jobs]
        for address in gone:
            del self._jobs[address]
        for address in fleet.jobs:
            record = self._jobs.setdefault(address, _JobRecord(self._clock.now()))
            if not record.is_asked:
                record.is_asked = True
                self._executor.submit(partial(self._ask, address, record))
        reports = self.reports
        self._on_routes(routes_of(fleet, reports, self._silent()))
        for address in gone:  # after no more requests go there
            self._client.forget(address)
        if self._options.only_routes:
            return fleet
        # This comes first, so that a job that is back is told what it is to serve from
        # now on.
        fleet = self._note_jobs(fleet)
        answering = {address: each.answering for address, each in reports.items()}
        for address, names in wanted_models(fleet, answering).items():
            if address in reports:
                self._tell_if_new(address, reports[address], config_of(fleet, names))
            job = fleet.jobs[address]
            is_known = address in reports or job.is_down
            if job.is_leaving and is_known and not names:
                self._controller.drop_job(address)
        if self._clock.now() - self._learned_s >= _LEARN_EVERY_S:
            self._learned_s = self._clock.now()
            self._controller.learn(measured(reports))
        self._note_sightings(sightings_of(fleet, reports))
        return fleet

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

    def _note_sightings(self, seen: Mapping[str, ModelSighting]) -> None:
        now_s = self._clock.now()
        if seen != self._noted or now_s - self._noted_s >= _NOTE_EVERY_S:
            self._store.note_sightings(seen)
            self._noted, self._noted_s = seen, now_s

    def _read(self) -> Fleet:
        # If the file is removed, the next look makes an empty one.
        revision = self._store.read()
        if revision.number < self._revision:
            raise FailedPrecondition(
                f"the fleet's store {self._store.path} went back from revision "
                f"{self._revision} to {revision.number}: it was lost, or an older one was "
                "put in its place; put the newest back, or restart to follow this one"
            )
        self._revision = revision.number
        return revision.fleet

    @property
    def reports(self) -> Mapping[str, JobReport]:
        """The last reports of all jobs that answer."""
        records = [(address, each.report) for address, each in self._jobs.items()]
        return {address: report for address, report in records if report is not None}

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
        for record in self._jobs.values():
            record.answered_s = min(record.answered_s + unseen_s, now_s)

    def _silent(self) -> Mapping[str, JobReport]:
        """The last reports of the jobs that missed a question and are not given up."""
        since_s = self._clock.now() - self._options.down_after_s
        return {
            address: each.last_report
            for address, each in self._jobs.items()
            if each.report is None
            and each.last_report is not None
            and each.answered_s > since_s
        }

    def _run(self) -> None:
        while True:
            self.look_safely()
            with self._changed:
                if not self._stopping:
                    self._clock.wait(
                        self._changed, self._clock.now() + self._options.look_s
                    )
                if self._stopping:
                    return

    def _ask(self, address: str, record: _JobRecord) -> None:
        if self._is_gone(address, record):  # while this waited for a thread
            return
        told = record.told
        try:
            report = report_of(self._client.list_models(address))
            record.told_before = told
            record.report = record.last_report = report
            record.answered_s = self._clock.now()
        except ServingError as error:
            record.report = None
            _note_problem(address, record, error)
        finally:
            record.is_asked = False
            self._close_if_gone(address, record)

    def _tell_if_new(
        self,
        address: str,
        report: JobReport,
        config: model_server_config_pb2.ModelServerConfig,
    ) -> None:
        record = self._jobs[address]
        wanted = report.started_s, config.SerializeToString(deterministic=True)
        if record.is_told:
            return
        if record.told == wanted:
            if record.told_before != wanted:
                return
            if serves_as_told(report, config):
                record.strayed = None
                return
            if report.base_paths == record.strayed:
                return  # to say it again did not help: an override of its own, perhaps
            names = ",".join(report.base_paths)
            log.warning("event=job_strayed address=%s models=%s", address, names)
            record.strayed, record.told = report.base_paths, None

        def tell() -> None:
            if self._is_gone(address, record):
                return
            try:
                self._client.apply(address, config)
                record.told = wanted
                record.problem = ""
            except ServingError as error:
                _note_problem(address, record, error)
                return
            finally:
                record.is_told = False
                self._close_if_gone(address, record)
            names = [each.name for each in config.model_config_list.config]
            log.info("event=job_told address=%s models=%s", address, ",".join(names))

        record.is_told = True
        self._executor.submit(tell)

    def _is_gone(self, address: str, record: _JobRecord) -> bool:
        return self._jobs.get(address) is not record

    def _close_if_gone(self, address: str, record: _JobRecord) -> None:
        """Closes the connection that a call opened whose job was removed meanwhile."""
        if self._is_gone(address, record):
            self._client.forget(address)

    def _note_jobs(self, fleet: Fleet) -> Fleet:
        """Tells the controller which jobs went down or came back; returns the wanted state."""
        now_s = self._clock.now()
        for address, job in fleet.jobs.items():
            record = self._jobs[address]
            is_silent = now_s - record.answered_s >= self._options.down_after_s
            if job.is_down != is_silent and (is_silent or record.report is not None):
                state = "down" if is_silent else "up"
                log.warning("event=job_%s address=%s", state, address)
                fleet = self._controller.note_job(address, is_down=is_silent).fleet
        return fleet


def _note_problem(address: str, record: _JobRecord, error: ServingError) -> None:
    if record.problem != str(error):
        log.warning("event=job_problem address=%s problem=%s", address, error)
    record.problem = str(error)
