"""tfs.frontends.grpcio keeps what every transport promises."""

from __future__ import annotations

import gc
import threading
import weakref

import grpc
import pytest

from tests.core.conformance.transport import (
    STREAM_CHECKS,
    TRANSPORT_CHECKS,
    TransportCheck,
    over_tls,
)
from tfs.core.call import Call, ListenerOptions, MethodKind, RpcMethod
from tfs.core.errors import NotFound
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.grpcio.transport import GrpcioOptions, GrpcioTransport
from tfs.testing.patience import PATIENCE_S

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


def make(loop: ServingLoop) -> GrpcioTransport:
    return GrpcioTransport(loop)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_grpcio_is_a_transport(check: TransportCheck) -> None:
    """Each promise of the seam, with a real gRPC client over loopback."""
    check(make)


@pytest.mark.parametrize(
    "check", TRANSPORT_CHECKS + STREAM_CHECKS, ids=lambda check: check.__name__
)
def test_grpcio_is_a_transport_over_tls(check: TransportCheck) -> None:
    """Encryption changes no promise of a transport."""
    check(over_tls(make))


@pytest.mark.parametrize("kind", list(MethodKind))
def test_nothing_is_left_of_a_call_that_failed(kind: MethodKind) -> None:
    """A failed call is freed without the garbage collector: its message may be long."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Fail"
    calls: list[weakref.ref[Call]] = []

    def handle(call: Call) -> None:
        calls.append(weakref.ref(call))
        try:
            raise NotFound("nothing")
        except NotFound as error:
            call.fail(error)

    transport = make(loop)
    gc.disable()
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, handle, kind)},
        )
        with grpc.insecure_channel(address, OPTIONS) as channel:
            ask = channel.stream_stream(path, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                list(ask(iter([b"a message"]), timeout=PATIENCE_S))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        for _ in range(500):
            if calls[0]() is None:
                break
            threading.Event().wait(0.01)
        assert calls[0]() is None
    finally:
        gc.enable()
        transport.close()
        loop.close()


def test_a_channel_argument_reaches_the_library() -> None:
    """What the operator says of grpcio's channels overrides what this server sets."""
    loop = ServingLoop()
    loop.start()
    path = "/test.Service/Echo"
    short = (("grpc.max_receive_message_length", 1000),)
    transport = GrpcioTransport(loop, GrpcioOptions(channel_arguments=short))
    try:
        (address,) = transport.start(
            [ListenerOptions("grpc", "127.0.0.1:0")],
            {path: RpcMethod(path, lambda call: call.reply(b"here"))},
        )
        with grpc.insecure_channel(address, OPTIONS) as channel:
            echo = channel.unary_unary(path, bytes, bytes)
            assert echo(bytes(1000), timeout=PATIENCE_S) == b"here"
            with pytest.raises(grpc.RpcError) as caught:
                echo(bytes(1001), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        transport.close()
        loop.close()
