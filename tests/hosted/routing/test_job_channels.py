"""Channels to jobs are made when used, and closed when nothing is under way any more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tfs.core.errors import Cancelled
from tfs.hosted.routing.job_channels import JobChannels
from tfs.hosted.routing.python_router import Outcome
from tfs.testing.patience import PATIENCE_S


class Job:
    """Answers every request with itself, once it is let."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self.may_answer = threading.Event()

    def answer(self, message: bytes, context: object) -> bytes:
        self.arrived.release()
        assert self.may_answer.wait(PATIENCE_S)
        return message


@pytest.fixture
def job() -> Iterator[tuple[Job, str]]:
    """A job, and its address."""
    made = Job()
    methods = {"C": grpc.unary_unary_rpc_method_handler(made.answer)}
    handler = grpc.method_handlers_generic_handler("a.B", methods)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, f"127.0.0.1:{port}"
    made.may_answer.set()
    server.stop(0).wait()


def test_a_job_that_is_let_go_answers_what_it_was_sent(job: tuple[Job, str]) -> None:
    """The channel closes behind the last call, not under it."""
    handler, address = job
    channels = JobChannels()
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    channels.send(address, "/a.B/C", b"early", None, (), outcomes.put)
    assert handler.arrived.acquire(timeout=PATIENCE_S)
    channels.forget(address)
    channels.forget(address)
    handler.may_answer.set()
    assert outcomes.get(timeout=PATIENCE_S) == b"early"
    assert not channels._open
    channels.send(address, "/a.B/C", b"late", None, (), outcomes.put)
    assert outcomes.get(timeout=PATIENCE_S) == b"late"
    channels.close()
    assert not channels._open


def test_closing_ends_calls_also_of_jobs_let_go(job: tuple[Job, str]) -> None:
    """Whoever closes waits for nobody."""
    handler, address = job
    channels = JobChannels()
    outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    channels.send(address, "/a.B/C", b"one", None, (), outcomes.put)
    assert handler.arrived.acquire(timeout=PATIENCE_S)
    channels.forget(address)
    channels.close()
    assert isinstance(outcomes.get(timeout=PATIENCE_S), Cancelled)
