"""Jobs are asked by threads that wait, for so long at most, and told what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tfs.core.call import Call, ListenerOptions, RpcMethod
from tfs.core.clock import MonotonicClock
from tfs.core.errors import Aborted, DeadlineExceeded, FailedPrecondition, Unavailable
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.transport import ExpressTransport
from tfs.hosted.reports import NOTHING
from tfs.hosted.routing.admin_requests import AdminRequests
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.testing.patience import PATIENCE_S

METHODS = ("Aspire", "ListModels", "Probe")


class Job:
    """Answers ListModels at once and holds everything else; is asked by ``requests``."""

    def __init__(self, folder: Path) -> None:
        self.arrived = threading.Semaphore(0)
        self.gone = threading.Semaphore(0)
        self.held: list[Call] = []
        self.listed = pb.ListModelsResponse(revision=7, newest=7)
        self.asking = ThreadPoolExecutor(2)
        self.loop, self.own = ServingLoop(), ServingLoop()
        self.transport = ExpressTransport(self.loop)
        self.requests = AdminRequests(self.own)
        for each in (self.loop, self.own):
            each.start()
        paths = {f"/tfs.v1.AdminService/{each}" for each in METHODS}
        (self.address,) = self.transport.start(
            [ListenerOptions("grpc", f"unix:{folder}/job")],
            {each: RpcMethod(each, self._answer) for each in paths},
        )

    def _answer(self, call: Call) -> None:
        if call.method.endswith("ListModels"):
            call.reply(self.listed.SerializeToString())
            return
        call.on_cancel(self.gone.release)
        self.held.append(call)
        self.arrived.release()

    def aspire(self) -> Future[None]:
        """Returns once the job was asked."""
        asked = self.asking.submit(
            self.requests.aspire, self.address, pb.AspireRequest()
        )
        assert self.arrived.acquire(timeout=PATIENCE_S)
        return asked

    def probe(self, timeout_s: float) -> pb.ProbeResponse:
        return self.requests.probe(self.address, pb.ProbeRequest(), timeout_s)

    def answer(self) -> None:
        self.loop.post(lambda: self.held.pop().reply(b""))

    def close(self) -> None:
        self.requests.close()
        self.transport.close()
        self.asking.shutdown()
        for each in (self.loop, self.own):
            each.close(MonotonicClock.now() + PATIENCE_S)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job."""
    made = Job(tmp_path)
    yield made
    made.close()


def test_a_report_of_any_length_is_read(job: Job) -> None:
    """What a server with very many models says takes more than one message usually may."""
    for number in range(20_000):
        job.listed.models.add(name=f"model {number} {'x' * 300}")
    report = job.requests.list_models(job.address, NOTHING)
    assert (len(report.models), report.revision) == (20_000, 7)


def test_a_refusal_is_raised(job: Job) -> None:
    """As the server said it."""
    asked = job.aspire()
    refusal = FailedPrecondition("of another fleet")
    job.loop.post(lambda: job.held.pop().fail(refusal))
    error = asked.exception(PATIENCE_S)
    assert isinstance(error, FailedPrecondition)
    assert error.message == "of another fleet"


def test_a_job_that_is_let_go_answers_what_it_was_asked(job: Job) -> None:
    """The connection closes behind the last call, not under it."""
    early = job.aspire()
    job.requests.keep(())
    job.requests.keep(())
    job.answer()
    early.result(PATIENCE_S)
    late = job.aspire()
    job.answer()
    late.result(PATIENCE_S)


def test_closing_ends_calls_also_of_jobs_let_go(job: Job) -> None:
    """Whoever closes waits for nobody, and who asks later does not, either."""
    asked = job.aspire()
    job.requests.keep(())
    job.requests.close()
    assert isinstance(asked.exception(PATIENCE_S), Unavailable)
    with pytest.raises(Unavailable):
        job.requests.list_models(job.address, NOTHING)


def test_who_gets_no_answer_in_time_gives_up(job: Job) -> None:
    """A server that hangs holds nobody longer than was said, and hears of it."""
    with pytest.raises(DeadlineExceeded):  # the server's, if it is as quick
        job.probe(0.2)
    assert job.gone.acquire(timeout=PATIENCE_S)
    assert job.requests.list_models(job.address, NOTHING).revision == 7


def test_a_server_that_ends_while_it_probes_is_told_apart(job: Job) -> None:
    """From one that was not there: the version may have ended it."""
    asked = job.asking.submit(job.probe, PATIENCE_S)
    assert job.arrived.acquire(timeout=PATIENCE_S)
    job.transport.close()
    assert isinstance(asked.exception(PATIENCE_S), Aborted)
    with pytest.raises(Unavailable):
        job.probe(PATIENCE_S)
