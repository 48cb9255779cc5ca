"""Channels to jobs are made when used, and closed when nothing is under way any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import grpc
import pytest

from tfs.core.errors import Cancelled
from tfs.hosted.routing.job_channels import JobChannels
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.testing.patience import PATIENCE_S


class Job:
    """Answers Aspire once it is let, over channels that a test has."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.channels = JobChannels()
        self._asking = ThreadPoolExecutor(2)
        methods = {"Aspire": grpc.unary_unary_rpc_method_handler(self._answer)}
        handler = grpc.method_handlers_generic_handler("tfs.v1.AdminService", methods)
        self._server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _answer(self, message: bytes, context: object) -> bytes:
        self.arrived.release()
        assert self.may_answer.wait(PATIENCE_S)
        return b""

    def ask(self) -> Future[None]:
        asked = self._asking.submit(
            self.channels.aspire, self.address, pb.AspireRequest()
        )
        assert self.arrived.acquire(timeout=PATIENCE_S)
        return asked

    def close(self) -> None:
        self.may_answer.set()
        self.channels.close()
        self._server.stop(0).wait()
        self._asking.shutdown()


@pytest.fixture
def job() -> Iterator[Job]:
    """A job."""
    made = Job()
    yield made
    made.close()


def test_a_job_that_is_let_go_answers_what_it_was_asked(job: Job) -> None:
    """The channel closes behind the last call, not under it."""
    early = job.ask()
    job.channels.keep(())
    job.channels.keep(())
    job.may_answer.set()
    early.result(PATIENCE_S)
    job.ask().result(PATIENCE_S)


def test_closing_ends_calls_also_of_jobs_let_go(job: Job) -> None:
    """Whoever closes waits for nobody."""
    asked = job.ask()
    job.channels.keep(())
    job.channels.close()
    assert isinstance(asked.exception(PATIENCE_S), Cancelled)
