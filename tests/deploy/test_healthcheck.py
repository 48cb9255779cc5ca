"""The container's health check against a small real gRPC server."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc

from tests.python_program import run_python

Behaviour = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def health_server(behaviour: Behaviour | None) -> Iterator[str]:
    """Serves `behaviour` as Health/Check on a free port; None serves nothing."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    if behaviour is not None:
        handler = grpc.unary_unary_rpc_method_handler(behaviour)
        service = grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health", {"Check": handler}
        )
        server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(10)


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("deploy/healthcheck.py", *arguments)


def test_a_serving_server_is_healthy() -> None:
    """A server that answers SERVING has no fault."""
    with health_server(lambda request, context: b"\x08\x01") as target:
        result = check(target)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_draining_server_is_unhealthy() -> None:
    """Any other status takes the container out of rotation."""
    with health_server(lambda request, context: b"\x08\x02") as target:
        result = check(target)
    assert result.returncode == 1
    assert "not serving" in result.stderr


def test_a_service_is_asked_for_by_name() -> None:
    """A liveness probe asks for less than readiness."""
    asked = []

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        asked.append(request)
        return b"\x08\x01"

    with health_server(answer) as target:
        assert check(target, "tfs.live").returncode == 0
    assert asked == [b"\x0a\x08tfs.live"]


def test_a_server_without_a_health_service_is_healthy() -> None:
    """Saying UNIMPLEMENTED takes a living server."""
    with health_server(None) as target:
        result = check(target)
    assert result.returncode == 0


def test_nobody_listening_is_unhealthy() -> None:
    """A port nobody listens on is reported with its address."""
    with health_server(None) as target:
        pass
    result = check(target)
    assert result.returncode == 1
    assert target in result.stderr


def test_a_missing_address_is_a_usage_error() -> None:
    """Without an argument the check explains itself and claims nothing."""
    result = check()
    assert result.returncode == 2
    assert "usage" in result.stderr
